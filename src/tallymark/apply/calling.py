"""One call of a handler inside its transaction, under its scheme. What the handler raises comes out as it is."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from tallymark.apply.handlers import Handler
from tallymark.apply.incoming import Message
from tallymark.apply.schemes import Promised
from tallymark.apply.watch import Watch
from tallymark.crashpoint import reached
from tallymark.errors import OutcomeUnknown, Problem, UsageError, said
from tallymark.inbox.ports import InboxTx, Queued
from tallymark.lifecycle import ApplicationOutcome

APPLIED = ApplicationOutcome.APPLIED
ALREADY = ApplicationOutcome.ALREADY
OLDER = ApplicationOutcome.OLDER

# A message that was decoded, with the row that it came from.
Ready = tuple[Queued, Message]


def call_one(
    tx: InboxTx, handler: Handler, ready: Ready, watch: Watch, *, check: bool = False
) -> ApplicationOutcome:
    """Hand over one message. `check` looks at deferred constraints too, so that what violates them fails alone."""
    queued, message = ready
    _refuse_abandoned(watch)
    watch.began((queued,), handler.handler_timeout_s)
    try:
        if not _admits(tx, handler, message, {}):
            return OLDER
        # A handler of lists is given a list of one.
        return _once(tx, handler, [message] if handler.batch else message, check=check)
    finally:
        watch.ended()


def call_list(
    tx: InboxTx, handler: Handler, ready: Sequence[Ready], watch: Watch, *, check: bool = False
) -> list[ApplicationOutcome]:
    """Hand over a list, without what is older; where one of them was there already, each of them alone."""
    _refuse_abandoned(watch)
    watch.began([queued for queued, _ in ready], handler.handler_timeout_s)
    try:
        promised: Promised = {}
        admitted = [_admits(tx, handler, message, promised) for _, message in ready]
        messages = [message for (_, message), newer in zip(ready, admitted, strict=True) if newer]
        if messages and _once(tx, handler, messages, check=check) is ALREADY:
            return [call_one(tx, handler, each, watch, check=check) for each in ready]
        return [APPLIED if newer else OLDER for newer in admitted]
    finally:
        watch.ended()


def _refuse_abandoned(watch: Watch) -> None:
    if watch.is_abandoned():
        raise OutcomeUnknown("a handler hung here, and its transaction was ended by another thread")


def _once(tx: InboxTx, handler: Handler, given: Any, *, check: bool) -> ApplicationOutcome:
    if not handler.once.needs_savepoint:
        _call(tx, handler, given, check=check)
        return APPLIED
    try:
        with tx.savepoint():
            # The constraint that says *already* may be a deferred one.
            _call(tx, handler, given, check=True)
    except Exception as error:
        if handler.once.already(error):
            tx.settle_handed()
            return ALREADY
        raise
    return APPLIED


def _admits(tx: InboxTx, handler: Handler, message: Message, promised: Promised) -> bool:
    try:
        return handler.once.admits(message, tx, promised)
    except (Exception, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise ended(handler, error) from error


def _call(tx: InboxTx, handler: Handler, given: Any, *, check: bool) -> None:
    try:
        result = handler.function(given, tx.handed)
    except (Exception, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise ended(handler, error) from error
    if result is not None and inspect.isawaitable(result):
        if inspect.iscoroutine(result):
            result.close()
        raise UsageError(
            f"the handler {handler.name} gave back something to await; handlers are plain functions",
            remedy="do the work in the function itself",
        )
    reached("apply.mid_handler")
    tx.settle_handed(check=check)


def ended(handler: Handler, error: BaseException) -> Problem:
    """What is no Exception (SystemExit, CancelledError, GeneratorExit, a gevent Timeout), as a failure like any other.

    One message must not be able to end the thread or the process again and again.
    """
    if isinstance(error, SystemExit):
        return Problem(f"the handler {handler.name} called sys.exit({error.code!r})")
    return Problem(f"the handler {handler.name} raised {said(error)}")
