"""What handlers get (P5): always inside the inbox's transaction, and never the right to end it."""

from __future__ import annotations

import threading
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.rows import dict_row
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from tallymark.errors import Problem, UsageError
from tallymark.inbox.ports import InboxTx
from tallymark.store.postgres.inboxstore import PostgresInboxStore
from tests.inbox_store.conftest import MakeStore, message, query
from tests.inbox_store.handing import Use, handle, nested, pay, run, state
from tests.outbox.callers import django_connection


class Base(DeclarativeBase):
    pass


class Account(Base):
    __tablename__ = "account"
    name: Mapped[str] = mapped_column(primary_key=True)
    balance: Mapped[int]


def test_effect_and_message_commit_together(any_store: PostgresInboxStore, ledger: str) -> None:
    handle(any_store, pay, pay)
    handle(any_store, pay)
    assert state(ledger) == (2, 85)


def test_a_handlers_error_comes_through_and_nothing_is_left(
    any_store: PostgresInboxStore, ledger: str
) -> None:
    def fail(tx: Any) -> None:
        pay(tx)
        raise ZeroDivisionError("no such account")

    with pytest.raises(ZeroDivisionError, match="no such account"):
        handle(any_store, fail)
    assert state(ledger) == (0, 100)
    handle(any_store, pay)
    assert state(ledger) == (1, 95)


@pytest.mark.parametrize("way", ["commit", "rollback", "close"])
def test_ending_the_transaction_is_refused_and_named(
    any_store: PostgresInboxStore, ledger: str, way: str
) -> None:
    def end(tx: Any) -> None:
        pay(tx)
        getattr(tx, way)()

    with pytest.raises(UsageError, match=rf"handler called tx\.{way}\(\)") as refused:
        handle(any_store, end)
    assert refused.value.remedy
    assert state(ledger) == (0, 100)
    handle(any_store, pay)
    assert state(ledger) == (1, 95), "and the next batch is none the worse"


@pytest.mark.parametrize(
    "statement",
    [
        "commit",
        " END ",
        "-- done\nRollback",
        "abort",
        "begin",
        "start transaction",
        "/* x */ commit work",
        "select 1; commit",
        "select 'x'; commit",
        "select 'it''s; ' || $a$;$a$; commit and chain",
        "do $$ begin perform 1; end $$; rollback",
        'select E\'\\\'; \', "a;b" from (select 1 as "a;b") t; end',
        "/* a /* b */ c */ commit",
        "select 1; /* ' */ commit; -- '",
        "set role pg_monitor",
        "SET LOCAL ROLE pg_monitor",
        "set session role pg_monitor",
        "select 1; reset role",
        "set session authorization default",
        "reset session authorization",
        "set transaction read only",
        "set session characteristics as transaction read only",
    ],
)
def test_statements_that_end_the_transaction_are_refused_and_named(
    any_store: PostgresInboxStore, kind: str, ledger: str, statement: str
) -> None:
    with pytest.raises(UsageError, match="handler called"):
        handle(any_store, lambda tx: run(tx, statement))
    assert state(ledger) == (0, 100)


@pytest.mark.parametrize(
    "statement",
    [
        "savepoint s; rollback to s",
        "do $$ begin perform 1; end $$",
        "select '; commit'",
        "select 'end' as beginning",
        "select 'a'; /* ; commit */ select 1 -- ; commit",
        "select case when true then 1 end; select E'\\'; commit'",
        "create or replace function f() returns integer begin atomic; select 1; end",
        "set local lock_timeout = '5s'",
        "set constraints all immediate",
        "set session lock_timeout = '0'",
    ],
)
def test_other_statements_are_not(any_store: PostgresInboxStore, ledger: str, statement: str) -> None:
    handle(any_store, pay, lambda tx: run(tx, statement))
    assert state(ledger) == (1, 95)


def test_statements_made_of_parts_are_refused_too(make_store: MakeStore, ledger: str) -> None:
    for use in (
        lambda tx: tx.execute(sql.SQL("select {}; commit").format("x")),
        lambda tx: tx.execute(b"commit"),
        lambda tx: list(tx.cursor().stream("commit")),
        lambda tx: tx.cursor().copy("commit").__enter__(),
    ):
        with pytest.raises(UsageError, match="handler called"):
            handle(make_store(), use)
    assert state(ledger) == (0, 100)


def test_autocommit_is_refused(make_store: MakeStore) -> None:
    def switch(tx: Any) -> None:
        tx.autocommit = True

    with pytest.raises(UsageError, match="autocommit"):
        handle(make_store(), switch)


def test_ways_round_the_guard_are_noticed(make_store: MakeStore, ledger: str) -> None:
    """psycopg has more than one kind of cursor: what a handler ended with one of them does not go on unnoticed."""
    store = make_store()

    def end(tx: Any) -> None:
        psycopg.ClientCursor(tx).execute("commit")

    with pytest.raises(UsageError, match="something that ended its transaction"):
        handle(store, end)

    def go_on(tx: Any) -> None:
        end(tx)
        pay(tx)

    with pytest.raises(UsageError, match="something that ended its transaction"):
        handle(store, go_on)
    handle(store, pay)
    assert state(ledger)[1] == 95


def test_a_handler_may_set_savepoints(any_store: PostgresInboxStore, ledger: str) -> None:
    def try_twice(tx: Any) -> None:
        with pytest.raises(Exception, match="duplicate key"), nested(tx):
            run(tx, "insert into account values ('alice', 0)")
        with nested(tx):
            pay(tx)

    handle(any_store, try_twice)
    assert state(ledger) == (1, 95)


def test_our_savepoint_undoes_one_message_and_keeps_the_rest(
    any_store: PostgresInboxStore, ledger: str
) -> None:
    def attempt(tx: InboxTx, use: Use) -> None:
        with tx.savepoint():
            use(tx.handed)
            tx.settle_handed()

    def fail(tx: Any) -> None:
        pay(tx)
        raise ZeroDivisionError

    with any_store.begin() as tx:
        tx.keep([message(0)])
        attempt(tx, pay)
        with pytest.raises(ZeroDivisionError):
            attempt(tx, fail)
        with pytest.raises(Exception, match="duplicate key"):
            attempt(tx, lambda handed: run(handed, "insert into account values ('alice', 0)"))
        attempt(tx, pay)
    assert state(ledger) == (1, 90)


def test_a_swallowed_database_error_does_not_pass_for_a_commit(
    any_store: PostgresInboxStore, ledger: str
) -> None:
    """PostgreSQL answers the COMMIT of such a transaction with a ROLLBACK, and no error."""

    def swallow(tx: Any) -> None:
        with pytest.raises(Exception, match="duplicate key"):
            run(tx, "insert into account values ('alice', 0)")

    with pytest.raises(UsageError, match="went on after a database error"):
        handle(any_store, swallow)
    assert state(ledger) == (0, 100)


def test_an_id_that_comes_again_begins_the_transaction_anew(
    any_store: PostgresInboxStore, ledger: str
) -> None:
    once = message(0)
    for expected in ([0], []):
        with any_store.begin() as tx:
            assert list(tx.keep([once]).new) == expected
            pay(tx.handed)
            tx.settle_handed()
    assert state(ledger) == (1, 90)


def test_a_deadlock_comes_through_with_its_code(make_store: MakeStore, ledger: str) -> None:
    one, two = make_store(), make_store()
    codes: list[str | None] = []

    def cross(store: PostgresInboxStore, first: str, second: str, met: threading.Barrier) -> None:
        try:
            with store.begin() as tx:
                run(tx.handed, f"update account set balance = 1 where name = '{first}'")
                met.wait(20)
                run(tx.handed, f"update account set balance = 1 where name = '{second}'")
        except psycopg.Error as error:
            codes.append(error.sqlstate)

    met = threading.Barrier(2)
    threads = [
        threading.Thread(target=cross, args=(one, "alice", "bob", met)),
        threading.Thread(target=cross, args=(two, "bob", "alice", met)),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert codes == ["40P01"]


def test_what_a_handler_sets_on_the_connection_is_gone_with_the_next_batch(make_store: MakeStore) -> None:
    store, rows = make_store(), list[Any]()

    def change(tx: Any) -> None:
        tx.row_factory = dict_row

    with store.begin() as tx:
        change(tx.handed)
        assert not tx.any_queued()
        assert list(tx.keep([message(0)]).new) == [0]
    handle(store, lambda tx: rows.extend(tx.execute("select 1").fetchall()))
    assert rows == [(1,)]


def test_alchemys_pending_objects_are_written_before_the_mark(make_store: MakeStore, ledger: str) -> None:
    store = make_store(tx="sqlalchemy")
    handle(store, lambda tx: tx.add(Account(name="carol", balance=3)))
    assert query(ledger, "select balance from account where name = 'carol'") == [(3,)]
    with pytest.raises(IntegrityError):
        handle(store, lambda tx: tx.add(Account(name="carol", balance=4)))
    handle(store, lambda tx: setattr(tx.get(Account, "carol"), "balance", 9))
    assert query(ledger, "select balance from account where name = 'carol'") == [(9,)]


def test_django_must_be_on_the_same_database(database: str, ledger: str, make_store: MakeStore) -> None:
    connection = django_connection(database)
    try:
        with pytest.raises(UsageError, match="is database") as refused:
            handle(make_store(tx="django"), pay)
        assert "same database" in refused.value.remedy
    finally:
        connection.close()


def test_an_unknown_kind_is_refused(ledger: str) -> None:
    with pytest.raises(UsageError, match="tx='peewee'"):
        PostgresInboxStore(ledger, "ledger", tx="peewee")


def test_versions_go_up_only(make_store: MakeStore) -> None:
    """C11, with the inbox's own table, and with the team's."""
    store, audit, long = make_store(), make_store("audit"), b"x" * 9000
    with store.begin() as tx:
        assert [tx.raise_version("transfers", key, 5) for key in (b"a", b"b", long)] == [True] * 3
        assert [tx.raise_version("transfers", b"a", version) for version in (5, 4, 6, 6)] == [
            False,
            False,
            True,
            False,
        ]
        assert not tx.raise_version("transfers", long, 5)
        assert tx.raise_version("fees", b"a", 1)
        assert tx.locked_version("account", "name", "version", "alice") == 7
        assert tx.locked_version("public.account", "name", "version", "bob") is None
        assert tx.locked_version("account", "name", "version", "nobody") is None
    with audit.begin() as tx:
        assert tx.raise_version("transfers", b"a", 1)
    with pytest.raises(UsageError, match="acount"), store.begin() as tx:
        tx.locked_version("acount", "name", "version", "alice")


def test_a_locked_version_is_locked(make_store: MakeStore, ledger: str) -> None:
    with make_store().begin() as tx:
        tx.locked_version("account", "name", "version", "alice")
        with psycopg.connect(ledger) as other, pytest.raises(psycopg.errors.LockNotAvailable):
            other.execute("select from account where name = 'alice' for update nowait")


def test_a_stopped_process_cannot_hold_a_position_it_has_moved(make_store: MakeStore, ledger: str) -> None:
    """Long handlers are left in peace; from the moved position to the commit there is a limit."""
    from tests.inbox_store.conftest import move, taken

    store = make_store(idle_limit_s=777)
    (mine,) = taken(store)
    show = "select current_setting('idle_in_transaction_session_timeout')"
    with store.begin() as tx:
        assert run(tx.handed, show) == [("777s",)]
        tx.advance([move(mine, 5)])
        assert run(tx.handed, show) == [("30s",)]
    with store.begin() as tx:
        assert run(tx.handed, show) == [("777s",)]


def test_our_own_errors_are_explained(make_store: MakeStore, ledger: str) -> None:
    with pytest.raises(Problem, match="PostgreSQL says"), make_store().begin() as tx:
        tx.keep([message(0, source="a\0b")])
