"""What an exception means for the message that met it. Pure.

| verdict   | what happened                                            | what follows                             |
|-----------|----------------------------------------------------------|------------------------------------------|
| transient | a deadlock or a serialization failure                    | the batch runs again, no attempt counts  |
| lost      | the connection broke, or a commit's outcome is unknown   | not the message's fault, no attempt counts |
| permanent | undecodable, named permanent, or a wrong use of `tx`     | dead at once                             |
| retry     | everything else                                          | again after a back-off, dead after N     |
"""

from __future__ import annotations

import enum
import traceback
from collections.abc import Iterator

from tallymark.apply.decoding import DecodeFailed
from tallymark.errors import OutcomeUnknown, Stale, TallymarkError, Unreachable, UsageError, text_of
from tallymark.inbox.ports import Failed, Queued, TransactionSpoilt
from tallymark.observe.masking import mask
from tallymark.policy import Backoff

SENTENCE_LENGTH = 500
TRACEBACK_LENGTH = 8_000
# Masked with so much more than is shown, so that no secret escapes by being cut in half.
_MARGIN = 200
# A payload quoted in an error can be one line of megabytes.
_LINE_LENGTH = 1_000

_TRANSIENT = ("40001", "40P01")
# The server is going away, or ended a session that was idle for too long.
_GONE = ("57P01", "57P02", "57P03", "57P05", "25P03")
# No connection, no room, the system's own errors: no handler brings them about.
_NO_HANDLERS = ("08", "53", "58")
# Connection, transaction state, resources, limits, object state, operator intervention, system, internal.
_SERVERS_OWN = ("08", "25", "53", "54", "55", "57", "58", "XX")


class Verdict(enum.StrEnum):
    """What an exception means; the module's docstring says what follows."""

    TRANSIENT = "transient"
    LOST = "lost"
    PERMANENT = "permanent"
    RETRY = "retry"


def verdict_of(
    error: BaseException,
    permanent: tuple[type[Exception], ...] = (),
    *,
    lost: bool | None = None,
    transient: bool = True,
) -> Verdict:
    """What this exception means; `lost` says whether our own connection is gone, where somebody knows.

    Where nobody knows it is told from the exception: a handler that talks to another database could mislead that. So
    could one that meets another database's deadlock, or a trigger that raises that code: nobody can tell, but whoever
    has seen it too often says `transient=False`.
    """
    if lost or (lost is None and isinstance(error, OutcomeUnknown | Stale)):
        return Verdict.LOST
    if transient and sqlstate_of(error) in _TRANSIENT:
        return Verdict.TRANSIENT
    if lost is None and _connection_gone(error):
        return Verdict.LOST
    if isinstance(error, (DecodeFailed, UsageError, *permanent)):
        return Verdict.PERMANENT
    return Verdict.RETRY


def is_deferred_violation(error: BaseException) -> bool:
    """Whether a transaction's own end raised this: a constraint that is checked at the commit was violated.

    Nobody knows by whom. Run carefully, each message is checked by itself. What a handler raises comes as
    HandlerFailed and what our own statements meet as a TallymarkError, so that nothing else looks like this.
    """
    code = sqlstate_of(error)
    if code is None or isinstance(error, TallymarkError):
        return False
    # A constraint trigger may raise whatever it likes; but not what means that the server is in trouble.
    return code not in _TRANSIENT and code[:2] not in _SERVERS_OWN


def is_spoilt(error: BaseException) -> bool:
    """Whether a transaction that handlers had used failed by itself, on a database that is there and answers.

    By what a handler has set in it (a role, read only, a time-out) or left for its commit: it will fail again, and
    waiting for the database, which is well, would be for ever.
    """
    if isinstance(error, TallymarkError):
        return isinstance(error, TransactionSpoilt)
    code = sqlstate_of(error)  # a commit's, for all others are told in our words
    return code is not None and code not in (*_TRANSIENT, *_GONE) and code[:2] not in _NO_HANDLERS


def failed(
    queued: Queued,
    error: BaseException,
    verdict: Verdict,
    *,
    attempts: int,
    backoff: Backoff,
    hold_key: bool,
    random: float,
) -> Failed:
    """This attempt failed: when to try again, or that it is dead."""
    attempt = queued.attempts + 1
    dead = verdict is Verdict.PERMANENT or attempt >= attempts
    again_in_s = None if dead else backoff.delay(attempt, random)
    return Failed(queued, sentence(error), traceback_text(error), again_in_s, hold_key)


def sqlstate_of(error: BaseException) -> str | None:
    """The database's code, through whatever wraps it."""
    for each in _chain(error):
        code = getattr(each, "sqlstate", None) or getattr(each, "pgcode", None)
        if isinstance(code, str):
            return code
    return None


def constraint_of(error: BaseException) -> str | None:
    """The constraint that was violated, where one was."""
    for each in _chain(error):
        name = getattr(getattr(each, "diag", None), "constraint_name", None)
        if isinstance(name, str):
            return name
    return None


def sentence(error: BaseException) -> str:
    """Class and message in one line, without secrets, cut where it gets long."""
    # SQLAlchemy's own text carries the statement and its parameters; the driver's says what was wrong.
    told = getattr(error, "orig", None) or error
    text = " ".join(text_of(told)[: 10 * SENTENCE_LENGTH].split())
    whole = f"{type(error).__name__}: {text}" if text else type(error).__name__
    text = mask(whole[: SENTENCE_LENGTH + _MARGIN]).replace("\0", "␀")
    return text if len(text) <= SENTENCE_LENGTH else text[: SENTENCE_LENGTH - 1] + "…"


def traceback_text(error: BaseException) -> str:
    """The traceback without secrets; where it is long, its end, which says what was raised and where."""
    frames = error.__traceback__
    # How we got to the handler is the same every time, and says nothing.
    while frames is not None and frames.tb_frame.f_globals.get("__name__", "").startswith("tallymark.apply."):
        frames = frames.tb_next
    text = "".join(traceback.format_exception(type(error), error, frames or error.__traceback__))
    lines = (
        line if len(line) <= _LINE_LENGTH else line[:_LINE_LENGTH] + "…\n" for line in text.splitlines(True)
    )
    # PostgreSQL's text holds no zero byte.
    text = mask("".join(lines)[-TRACEBACK_LENGTH - _MARGIN :]).replace("\0", "␀")
    return text if len(text) <= TRACEBACK_LENGTH else "…" + text[1 - TRACEBACK_LENGTH :]


def _connection_gone(error: BaseException) -> bool:
    if isinstance(error, Unreachable):
        return True
    for each in _chain(error):
        code = getattr(each, "sqlstate", None)
        if isinstance(code, str):
            return code in _GONE or code.startswith("08")
        kinds = {kind.__name__ for kind in type(each).__mro__ if kind.__module__.startswith("psycopg")}
        if kinds & {"OperationalError", "InterfaceError"}:
            return True
    return False


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error and what it wraps: SQLAlchemy's `.orig`, Django's `__cause__`."""
    seen: set[int] = set()
    each: BaseException | None = error
    while each is not None and id(each) not in seen:
        yield each
        seen.add(id(each))
        inner = getattr(each, "orig", None)
        each = inner if isinstance(inner, BaseException) else each.__cause__
