"""What an exception means, and what is kept of it."""

from __future__ import annotations

from types import SimpleNamespace

import psycopg
import pytest
import sqlalchemy.exc
from django.db import utils as django_errors

from tallymark.apply.decoding import DecodeFailed
from tallymark.apply.failure import (
    Verdict,
    constraint_of,
    failed,
    is_deferred_violation,
    sentence,
    sqlstate_of,
    traceback_text,
    verdict_of,
)
from tallymark.errors import NotInTransaction, OutcomeUnknown, Problem, UsageError
from tallymark.observe import masking
from tallymark.policy import Backoff
from tests.apply.given import queued


def in_sqlalchemy(error: Exception) -> Exception:
    return sqlalchemy.exc.DBAPIError("select 1", {"password": "x"}, error)


def in_django(error: Exception) -> Exception:
    outer: Exception = django_errors.OperationalError("wrapped")
    outer.__cause__ = error
    return outer


DEADLOCK, SERIAL = psycopg.errors.DeadlockDetected("d"), psycopg.errors.SerializationFailure("s")


@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        (DEADLOCK, Verdict.TRANSIENT),
        (SERIAL, Verdict.TRANSIENT),
        (in_sqlalchemy(DEADLOCK), Verdict.TRANSIENT),
        (in_django(SERIAL), Verdict.TRANSIENT),
        (OutcomeUnknown("a commit timed out"), Verdict.LOST),
        (psycopg.OperationalError("the connection is closed"), Verdict.LOST),
        (psycopg.InterfaceError("the connection is closed"), Verdict.LOST),
        (psycopg.errors.AdminShutdown("bye"), Verdict.LOST),
        (in_sqlalchemy(psycopg.errors.AdminShutdown("bye")), Verdict.LOST),
        (DecodeFailed("not JSON"), Verdict.PERMANENT),
        (UsageError("a handler may not commit"), Verdict.PERMANENT),
        (NotInTransaction("gone"), Verdict.PERMANENT),
        (KeyError("rev"), Verdict.PERMANENT),
        (IndexError("a kind of LookupError"), Verdict.PERMANENT),
        (ValueError("5"), Verdict.RETRY),
        (psycopg.errors.UniqueViolation("twice"), Verdict.RETRY),
        (psycopg.errors.LockNotAvailable("later"), Verdict.RETRY),
        (psycopg.errors.QueryCanceled("statement timeout"), Verdict.RETRY),
    ],
)
def test_verdicts(error: Exception, verdict: Verdict) -> None:
    assert verdict_of(error, (LookupError,)) is verdict


def test_another_databases_broken_connection_is_the_handlers_own_failure() -> None:
    error = psycopg.OperationalError("connection refused")
    assert verdict_of(error, lost=False) is Verdict.RETRY
    assert verdict_of(error, lost=True) is Verdict.LOST
    assert verdict_of(ValueError("whatever came of it"), lost=True) is Verdict.LOST


def test_patience_with_deadlocks_ends() -> None:
    assert verdict_of(DEADLOCK, transient=False) is Verdict.RETRY
    assert verdict_of(DEADLOCK, (psycopg.Error,), transient=False) is Verdict.PERMANENT
    assert verdict_of(DEADLOCK, lost=True, transient=False) is Verdict.LOST


def test_what_only_a_commit_can_raise() -> None:
    violation = psycopg.errors.ForeignKeyViolation("no such account")
    ours = Problem("the inbox has no place for an id")
    ours.__cause__ = psycopg.errors.CheckViolation("no partition")
    raised = psycopg.errors.RaiseException("by a constraint trigger")
    for error in (violation, in_django(violation), in_sqlalchemy(violation), raised):
        assert is_deferred_violation(error)
    for error in (
        ours,
        DEADLOCK,
        psycopg.errors.DiskFull("x"),
        psycopg.OperationalError("gone"),
        ValueError("5"),
    ):
        assert not is_deferred_violation(error)


def test_again_after_a_back_off_and_dead_after_the_last_attempt() -> None:
    def again(attempts: int, verdict: Verdict = Verdict.RETRY) -> float | None:
        return failed(
            queued({}, attempts=attempts),
            ValueError("5"),
            verdict,
            attempts=4,
            backoff=Backoff(1.0, 3.0),
            hold_key=True,
            random=0.0,
        ).again_in_s

    assert [again(attempts) for attempts in range(5)] == [1.0, 2.0, 3.0, None, None]
    assert again(0, Verdict.PERMANENT) is None


def test_codes_and_constraints_through_what_wraps_them() -> None:
    class Violation(psycopg.errors.UniqueViolation):
        diag = SimpleNamespace(constraint_name="ledger_entry_pkey")  # type: ignore[assignment]

    error = Violation("twice")
    for wrapped in (error, in_sqlalchemy(error), in_django(error)):
        assert (sqlstate_of(wrapped), constraint_of(wrapped)) == ("23505", "ledger_entry_pkey")
    assert (sqlstate_of(ValueError()), constraint_of(ValueError())) == (None, None)


def test_a_chain_that_bites_its_tail() -> None:
    first, second = ValueError("1"), ValueError("2")
    first.__cause__, second.__cause__ = second, first
    assert sqlstate_of(first) is None


def test_the_sentence_is_one_line_without_secrets() -> None:
    masking.remember("hunter22")
    assert sentence(ValueError("no\n  account  5")) == "ValueError: no account 5"
    assert sentence(ValueError()) == "ValueError"
    assert sentence(ValueError("login with hunter22")) == "ValueError: login with ********"
    assert sentence(in_sqlalchemy(ValueError("inner"))) == "DBAPIError: inner"
    assert sentence(ValueError("a\0b")) == "ValueError: a␀b"
    long = sentence(ValueError("x" * 10_000))
    assert (len(long), long[-1]) == (500, "…")
    # Cut after it was masked: half a secret is one, too.
    assert "hunt" not in sentence(ValueError("x" * (500 - len("ValueError: ") - 5) + "hunter22"))


def test_the_traceback_says_where_without_secrets() -> None:
    masking.remember("hunter22")

    def handler() -> None:
        raise ValueError("hunter22\0")

    with pytest.raises(ValueError, match="hunter22") as raised:
        handler()
    text = traceback_text(raised.value)
    assert "in handler" in text
    assert text.endswith("ValueError: ********␀\n")
    cut = traceback_text(ValueError("many words\n" * 2_000))
    assert (len(cut), cut[0]) == (8_000, "…")
    assert len(traceback_text(ValueError("x" * 1_000_000))) < 1_100
