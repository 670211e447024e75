"""What a handler sets in its transaction holds for the inbox's own statements too, and must not stop everything (C9)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from tallymark.apply.failure import is_spoilt
from tallymark.apply.incoming import Message
from tallymark.errors import AccessDenied, OutcomeUnknown
from tallymark.inbox.ports import TransactionSpoilt
from tallymark.store.postgres.inboxstore import PostgresInboxStore
from tests.inbox_store.conftest import query
from tests.inbox_store.test_halving import COUNT, Handle, keep, stop, work

__all__ = ["stop"]

# Ways past the guard: it knows the statements, and these are functions and settings.
ROLE = "select set_config('role', 'pg_monitor', true)"
READ_ONLY = "set local transaction_read_only = on"


@pytest.mark.parametrize(
    ("run", "statement", "said"),
    [
        (keep, ROLE, "permission denied"),
        (work, ROLE, "permission denied"),
        # In a worker it ends with the savepoint that stands around the handlers.
        (keep, READ_ONLY, "read-only"),
    ],
)
def test_what_spoils_its_transaction_is_a_failed_attempt_in_the_end(
    store: PostgresInboxStore,
    ledger: str,
    stop: threading.Event,
    run: Callable[..., Any],
    statement: str,
    said: str,
) -> None:
    """Found by halves, as what costs its session; the database is well, and waiting for it would be for ever."""

    def handle(message: Message, tx: Any) -> None:
        if message.key == b"7":
            tx.execute(statement)

    run(store, handle, stop)
    assert query(ledger, "select count(*) from tallymark.applications") == [(COUNT - 1,)]
    ((attempts, reason),) = query(ledger, "select attempts, reason from tallymark.queue")
    assert attempts == 1
    assert reason.startswith("TransactionSpoilt: ")
    assert said in reason


def test_what_a_handler_left_in_the_session_ends_with_it(
    store: PostgresInboxStore, ledger: str, stop: threading.Event
) -> None:
    """A SET without LOCAL is committed with its batch: whatever comes next meets it before any handler is called."""

    def handle(message: Message, tx: Any) -> None:
        if message.key == b"7":
            tx.execute("set session default_transaction_read_only = on")

    keep(store, handle, stop)
    query(ledger, "delete from tallymark.positions")
    keep(store, lambda _message, _tx: None, stop)
    assert query(ledger, "select count(*) from tallymark.applications") == [(2 * COUNT,)]


def test_what_a_handler_left_in_a_workers_session_ends_with_it(
    store: PostgresInboxStore, ledger: str, stop: threading.Event
) -> None:
    """Two claims and more: each is committed with a SET that the next one of its session would fail by, for ever."""

    def handle(_message: Message, tx: Any) -> None:
        tx.execute("set session default_transaction_read_only = on")

    work(store, handle, stop)
    assert query(ledger, "select count(*), max(attempt) from tallymark.applications") == [(COUNT, 1)]


def deferred_trigger(ledger: str) -> None:
    query(
        ledger,
        "create function cancel() returns trigger language plpgsql as"
        " $$ begin raise exception using errcode = 'query_canceled'; end $$;"
        "create constraint trigger cancel after insert on account deferrable initially deferred"
        " for each row when (new.name = 'seven') execute function cancel()",
    )


@pytest.mark.parametrize("run", [keep, work])
def test_a_commit_that_is_refused_every_time_is_a_failed_attempt_in_the_end(
    store: PostgresInboxStore, ledger: str, stop: threading.Event, run: Callable[..., Any]
) -> None:
    """With a code that is not a constraint's: as the time-out of a trigger that the commit runs."""
    deferred_trigger(ledger)

    def handle(message: Message, tx: Any) -> None:
        if message.key == b"7":
            tx.execute("insert into account values ('seven', 0)")

    handled: Handle = handle
    try:
        run(store, handled, stop)
    finally:
        query(ledger, "drop function cancel cascade")
    assert query(ledger, "select count(*) from tallymark.applications") == [(COUNT - 1,)]
    assert query(ledger, "select attempts from tallymark.queue") == [(1,)]


def test_what_is_the_servers_own_trouble_is_waited_out() -> None:
    for known in (
        TransactionSpoilt("a role"),
        psycopg.errors.QueryCanceled(),
        psycopg.errors.RaiseException(),
    ):
        assert is_spoilt(known)
    for other in (
        psycopg.errors.DiskFull(),
        psycopg.errors.OutOfMemory(),
        psycopg.errors.AdminShutdown(),
        psycopg.errors.SerializationFailure(),
        psycopg.OperationalError("the connection is lost"),
        OutcomeUnknown("a commit"),
        AccessDenied("the password"),
        ValueError(),
    ):
        assert not is_spoilt(other)
