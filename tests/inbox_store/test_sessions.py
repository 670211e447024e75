"""The database session beneath a handler: lost, cut off, ended from outside. Nothing of it is in anybody's way after."""

from __future__ import annotations

import threading
from contextlib import closing
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import psycopg
import pytest

from tallymark.errors import OutcomeUnknown, UsageError
from tallymark.inbox.book import Book
from tallymark.inbox.config import InboxConfig
from tallymark.inbox.logport import Log
from tallymark.inbox.pulse import Pulse
from tallymark.inbox.screening import Screen
from tallymark.inbox.tallies import Tallies
from tallymark.observe.metrics import Metrics
from tallymark.store.postgres.inboxstore import PostgresInboxStore, application_of
from tests.inbox_store.conftest import MakeStore, instance, query
from tests.inbox_store.handing import PAY, handle, pay, run, state
from tests.inbox_store.test_unreadable import Script
from tests.outbox.callers import django_connection


def test_a_lost_server_is_unknown_and_found_again(any_store: PostgresInboxStore, ledger: str) -> None:
    def lose(tx: Any) -> None:
        query(
            ledger,
            "select pg_terminate_backend(pid, 5000) from pg_stat_activity"
            " where datname = current_database() and pid <> pg_backend_pid()",
        )
        pay(tx)

    with pytest.raises(OutcomeUnknown):
        handle(any_store, lose)
    handle(any_store, pay)
    assert state(ledger) == (1, 95)


def raw_of(tx: Any) -> Any:
    """The psycopg connection beneath."""
    if hasattr(tx, "execute_wrapper"):
        return tx.connection
    return tx.connection().connection.driver_connection if hasattr(tx, "begin_nested") else tx


def test_our_own_session_that_was_cut_off_does_not_keep_us_waiting(
    any_store: PostgresInboxStore, ledger: str
) -> None:
    """The server does not know that we are gone, and holds what we have locked: our second try would wait for it."""

    def cut_off(tx: Any) -> None:
        pay(tx)
        raw_of(tx).pgconn.send_query(b"select pg_sleep(60)")
        raw_of(tx).pgconn.finish()

    def pay_soon(tx: Any) -> None:
        run(tx, "set local lock_timeout = '8s'")
        pay(tx)

    with pytest.raises(OutcomeUnknown):
        handle(any_store, cut_off)
    handle(any_store, pay_soon)
    assert state(ledger) == (1, 95)


def test_sessions_are_known_by_their_owner_and_can_be_ended(
    kind: str, ledger: str, make_store: MakeStore, store: PostgresInboxStore
) -> None:
    """What a process that is stopped has begun must not keep its successor waiting: in Django's sessions, too."""
    connection = django_connection(ledger) if kind == "django" else None
    theirs = make_store(
        tx=kind, application=f"{application_of('host:1:t0ken')}, ledger keeper", idle_limit_s=777
    )
    with pytest.raises(ZeroDivisionError):
        handle(theirs, lambda _tx: 1 / 0)

    def be_ended(tx: Any) -> None:
        ((name, idle, alive),) = run(
            tx,
            "select current_setting('application_name'), current_setting('idle_in_transaction_session_timeout'),"
            " current_setting('tcp_keepalives_idle')",
        )
        assert (name, idle, alive) == ("tallymark inbox t0ken, ledger keeper", "777s", "10")
        store.end_sessions(["host:1:another"])
        pay(tx)
        store.end_sessions(["host:1:t0ken"])
        with psycopg.connect(ledger) as successor:
            successor.execute("set lock_timeout = '8s'")
            successor.execute(PAY)

    with pytest.raises(OutcomeUnknown):
        handle(theirs, be_ended)
    assert state(ledger) == (0, 95)
    if connection is not None:
        connection.close()


def test_those_that_say_nothing_any_more_lose_what_they_have_begun(
    kind: str, ledger: str, make_store: MakeStore, store: PostgresInboxStore
) -> None:
    """Deferred workers hold keys and rows without a partition: nobody takes over from them, and ends them by that."""
    connection = django_connection(ledger) if kind == "django" else None
    theirs = make_store(tx=kind, application=f"{application_of('host:1:t0ken')}, ledger worker")
    store.enlist(instance("host:1:t0ken"), 60)
    store.enlist(instance("host:2:me"), 60)
    lapsed = (
        "update tallymark.instances set seen_until = clock_timestamp() - %s * interval '1 s' where owner = %s"
    )

    def be_ended(tx: Any) -> None:
        pay(tx)
        assert store.end_lapsed("host:2:me") == 0, "it lives"
        query(ledger, lapsed, [60, "host:1:t0ken"])
        assert store.end_lapsed("host:2:me") == 0, "it lives: it has begun this since"
        query(ledger, lapsed, [0, "host:1:t0ken"])
        assert make_store("another").end_lapsed("host:2:me") == 0, "not this consumer's"
        assert store.end_lapsed("host:1:t0ken") == 0, "oneself"
        assert store.end_lapsed("host:2:me") == 1
        with psycopg.connect(ledger) as successor:
            successor.execute("set lock_timeout = '8s'")
            successor.execute(PAY)

    with pytest.raises(OutcomeUnknown):
        handle(theirs, be_ended)
    assert state(ledger) == (0, 95)
    if connection is not None:
        connection.close()


def test_whoever_looks_after_the_others_has_let_them_be_heard(
    ledger: str, store: PostgresInboxStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind a database that stood still all seem to have lapsed: the first one to be heard would end all the others."""
    now = [1000.0]
    monkeypatch.setattr("tallymark.inbox.pulse.time", SimpleNamespace(monotonic=lambda: now[0]))
    me, they, today = instance("host:2:me"), instance("host:1:t0ken"), datetime.now(UTC)
    config = InboxConfig("ledger", ("transfers",), owner=me.owner, lease_s=3)
    screen = Screen(lambda _topic: True, today, today)
    pulse = Pulse(store, cast(Log, Script()), Book(), screen, threading.Event(), me, config)
    for each in (me, they):
        store.enlist(each, config.lease_s)

    def beat(times: int) -> None:
        for _ in range(times):
            now[0] += 1
            pulse.run_once(Tallies(Metrics(), "ledger"), threading.Event())

    named = f"{application_of(they.owner)}, ledger worker"
    with closing(psycopg.connect(ledger, application_name=named)) as theirs:
        theirs.execute(PAY)
        query(
            ledger,
            "update tallymark.instances set seen_until = clock_timestamp() where owner = %s",
            [they.owner],
        )
        now[0] += 60
        beat(3)
        theirs.execute("select")  # the next beat of theirs may be on its way
        beat(1)
        with pytest.raises(psycopg.OperationalError):
            theirs.execute("select")


def test_django_must_commit_by_itself(ledger: str, make_store: MakeStore) -> None:
    connection = django_connection(ledger)
    store = make_store(tx="django")
    connection.settings_dict["AUTOCOMMIT"] = False
    try:
        with pytest.raises(UsageError, match="AUTOCOMMIT"):
            handle(store, pay)
    finally:
        connection.settings_dict["AUTOCOMMIT"] = True
        connection.close()


def test_a_hanging_handler_can_be_ended_from_outside(any_store: PostgresInboxStore, ledger: str) -> None:
    """It wakes as a zombie: nothing that it did or does from now on commits. Another store is not touched."""
    other = PostgresInboxStore(ledger, "ledger")
    with other.begin() as beside:
        pid = beside.handed.info.backend_pid

        def hang(tx: Any) -> None:
            pay(tx)
            ending = threading.Thread(target=any_store.abort_other)
            ending.start()
            ending.join(20)

        with pytest.raises(OutcomeUnknown):
            handle(any_store, hang)
        assert beside.handed.info.backend_pid == pid
        run(beside.handed, "select 1")
    other.close()
    assert state(ledger) == (0, 100)
    handle(any_store, pay)
    assert state(ledger) == (1, 95)
