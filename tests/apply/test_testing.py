"""tallymark.testing, as a team's own tests use it; and the examples, tested by it."""

from __future__ import annotations

import importlib
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from django.db import transaction
from sqlalchemy import create_engine, text
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from tallymark import Inbox, Message, NotInTransaction, Outbox, UniqueConstraint, UsageError
from tallymark.apply.decoding import DecodeFailed
from tallymark.cli.appref import inbox_of
from tallymark.lifecycle import Role
from tallymark.store.postgres.migrations import migrate
from tallymark.testing import added, deliver
from tests.outbox.callers import alchemy_url, django_connection

outbox = Outbox("/tests")


@pytest.fixture
def tx(ledger: str) -> Iterator[psycopg.Connection]:
    """A transaction that leaves nothing behind."""
    with psycopg.connect(ledger) as connection:
        yield connection
        connection.rollback()


def example(name: str, tx: psycopg.Connection) -> Any:
    module = importlib.import_module(f"examples.{name}")
    tx.execute(module.TABLES)
    return module


# What this transaction added


def test_added_is_what_this_transaction_added(ledger: str, tx: psycopg.Connection) -> None:
    with psycopg.connect(ledger) as other, psycopg.connect(ledger) as unfinished:
        outbox.add(other, "transfers", "committed by another")
        other.commit()
        outbox.add(unfinished, "transfers", "not committed")
        assert added(tx) == []
        first = outbox.add(
            tx, "transfers", {"amount": 5}, key="alice", type="transfer.made", headers={"a": b"\xff"}
        )
        with tx.transaction():
            outbox.add(tx, "orders", b"raw")
        tx.execute("savepoint undone")
        outbox.add(tx, "orders", "undone")
        tx.execute("rollback to undone")
        outbox.add(other, "transfers", "committed by another, later")
        other.commit()
        with tx.transaction():
            outbox.add(tx, "orders", None, key=7)
        unfinished.rollback()
    found = added(tx)
    assert [(each.topic, each.key, each.value, each.raw) for each in found] == [
        ("transfers", b"alice", {"amount": 5}, b'{"amount":5}'),
        ("orders", None, b"raw", b"raw"),
        ("orders", b"7", None, None),
    ]
    assert found[0].id == first
    assert found[0].headers["ce_type"] == b"transfer.made"
    assert found[0].headers["a"] == b"\xff"
    assert [each.position for each in found] == sorted(each.position or 0 for each in found)


def test_what_is_delayed_is_added_too(tx: psycopg.Connection) -> None:
    due = datetime.now(UTC) + timedelta(hours=1)
    outbox.add(tx, "transfers", 1, deliver_after=due)
    outbox.add(tx, "transfers", 2)
    assert [
        (each.value, each.due_at and round((each.due_at - due).total_seconds())) for each in added(tx)
    ] == [
        (2, None),
        (1, 0),
    ]


def test_added_by_sqlalchemy_and_django(ledger: str) -> None:
    with Session(create_engine(alchemy_url(ledger, "psycopg"))) as session:
        assert added(session) == []
        outbox.add(session, "transfers", 1)
        with session.begin_nested():
            outbox.add(session, "transfers", 2)
        assert [each.value for each in added(session)] == [1, 2]
        session.rollback()
    connection = django_connection(ledger)
    try:
        with transaction.atomic():
            outbox.add(connection, "transfers", 1)
            with transaction.atomic():
                outbox.add(connection, "transfers", 2)
            assert [each.value for each in added(connection)] == [1, 2]
            transaction.set_rollback(True)
    finally:
        connection.close()


# The examples


def test_the_ledger_books_once(tx: psycopg.Connection) -> None:
    bank, ledger = example("transfers", tx), example("ledger", tx)
    tx.execute("insert into account values ('alice', 100), ('bob', 100)")
    bank.transfer(tx, "alice", "bob", 5)
    (message,) = added(tx)
    assert deliver(ledger.inbox, message, tx, times=3) == ["applied", "repeated", "repeated"]
    # Both sides stand in one database here: the bank took 5, and so did the ledger.
    assert tx.execute("select * from account order by name").fetchall() == [("alice", 90), ("bob", 105)]
    # The same contents under an id of its own are another transfer to this scheme.
    assert deliver(ledger.inbox, message.value, tx, key="alice", times=1) == ["applied"]


def test_an_entry_is_entered_once_under_any_id(tx: psycopg.Connection) -> None:
    tx.execute("drop table ledger_entry")
    entries = example("entries", tx)
    made = {"entry": "e1", "payer": "alice", "payee": "bob", "amount": 5}
    assert deliver(entries.inbox, made, tx) == ["applied", "already"]
    assert deliver(entries.inbox, made, tx, times=1) == ["already"]
    assert tx.execute("select count(*) from ledger_entry").fetchone() == (1,)


def test_the_newest_level_stays(tx: psycopg.Connection) -> None:
    tx.execute("drop table stock")
    stock = example("stock", tx)
    for version, expected in ((2, ["applied", "older"]), (1, ["older", "older"]), (3, ["applied", "older"])):
        value = {"level": 10 * version, "version": version}
        assert deliver(stock.inbox, value, tx, key="apple") == expected
    assert tx.execute("select * from stock").fetchall() == [("apple", 30, 3)]


def test_the_chain_adds_one_message_for_one(tx: psycopg.Connection) -> None:
    chain = example("chain", tx)
    tx.execute("insert into account values ('bob', 100)")
    made = {"entry": "e1", "payer": "alice", "payee": "bob", "amount": 5}
    assert deliver(chain.inbox, made, tx) == ["applied", "repeated"]
    assert [(each.topic, each.key, each.value) for each in added(tx)] == [
        ("notices", b"bob", {"to": "bob", "balance": 105})
    ]


@pytest.mark.parametrize("name", ["ledger", "entries", "stock", "chain"])
def test_the_command_line_finds_the_examples(name: str) -> None:
    inbox_of(f"examples.{name}:inbox").check()


# Delivering


def test_what_the_handler_raises_is_raised_and_undone(tx: psycopg.Connection) -> None:
    inbox = Inbox("tests")

    @inbox.handler("transfers", model=importlib.import_module("examples.ledger").Transfer)
    def apply(message: Message, tx: Any) -> None:
        tx.execute("insert into effect (what) values ('x')")
        raise LookupError("no such account")

    made = {"entry": "e", "payer": "a", "payee": "b", "amount": 1}
    for _ in range(2):  # it was not kept: it can be delivered again
        with pytest.raises(LookupError, match="no such account"):
            deliver(inbox, made, tx, id="order 7")
    with pytest.raises(DecodeFailed, match="amount is missing"):
        deliver(inbox, {"entry": "e", "payer": "a", "payee": "b"}, tx)
    assert tx.execute("select count(*) from effect where what = 'x'").fetchone() == (0,)


def test_what_was_delivered_earlier_in_the_test_is_repeated(tx: psycopg.Connection) -> None:
    inbox = Inbox("tests")

    @inbox.handler("transfers")
    def apply(message: Message, tx: psycopg.Connection) -> None:
        tx.execute("insert into ledger_entry values (%s, 1)", [message.value])

    outbox.add(tx, "transfers", "e1")
    [message] = added(tx)
    assert deliver(inbox, message, tx, times=1) == ["applied"]
    assert deliver(inbox, message, tx) == ["repeated", "repeated"]
    assert tx.execute("select id from ledger_entry").fetchall() == [("e1",)]


def test_what_the_message_says(tx: psycopg.Connection) -> None:
    inbox = Inbox("tests")
    seen: list[tuple[Any, ...]] = []

    @inbox.handler("transfers")
    def apply(message: Message, tx: Any) -> None:
        seen.append(
            (message.id, message.source, message.type, message.key, message.headers["a"], message.position)
        )

    id_ = uuid.UUID("01970000-0000-7000-8000-000000000000")
    deliver(inbox, 1, tx, id="order 7", key=7, source="/shop", type="sold", headers={"a": "b"}, position=9)
    deliver(inbox, 1, tx, headers={"a": ""}, times=1)
    deliver(inbox, 1, tx, headers={"a": ""}, times=1)
    assert seen[0] == ("order 7", "/shop", "sold", b"7", b"b", 9)
    assert seen[1][5] < seen[2][5]
    assert isinstance(seen[1][0], type(id_))


def test_several_topics(tx: psycopg.Connection) -> None:
    inbox = Inbox("tests")
    for topic in ("transfers", "orders"):
        inbox.handler(topic)(lambda _message, _tx: None)
    assert deliver(inbox, 1, tx, topic="orders") == ["applied", "repeated"]
    with pytest.raises(UsageError, match="several topics: transfers, orders"):
        deliver(inbox, 1, tx)
    with pytest.raises(UsageError, match="no handler for topic 'stock'"):
        deliver(inbox, 1, tx, topic="stock")


def test_it_is_the_tests_own_transaction(ledger: str) -> None:
    inbox = Inbox("tests")

    @inbox.handler("transfers")
    def apply(message: Message, tx: Any) -> None:
        tx.execute("insert into effect (what) values ('mine')")

    with psycopg.connect(ledger) as fresh:  # nothing has begun yet
        deliver(inbox, 1, fresh)
        fresh.rollback()
        assert fresh.execute("select count(*) from effect where what = 'mine'").fetchone() == (0,)
        assert fresh.execute("select count(*) from tallymark.inbox where consumer = 'tests'").fetchone() == (
            0,
        )
    with psycopg.connect(ledger, autocommit=True) as careless, pytest.raises(NotInTransaction):
        deliver(inbox, 1, careless)


def test_a_database_that_was_made_long_ago_will_do(database: str) -> None:
    """Days are made ahead by a running inbox. Where only tests run, those of its first two weeks are all there are."""
    migrate(database, role=Role.CONSUMER)
    with psycopg.connect(database) as connection:
        days = connection.execute(
            "select inhrelid::regclass::text from pg_inherits where inhrelid::regclass::text ~ '_20[0-9]{10}$'"
        ).fetchall()
        assert len(days) > 20
        connection.execute(f"drop table {', '.join(name for (name,) in days)}")
    inbox = Inbox("tests")
    inbox.handler("transfers")(lambda _message, _tx: None)
    with psycopg.connect(database) as tx, psycopg.connect(database) as beside:
        assert deliver(inbox, 1, tx) == ["applied", "repeated"]
        assert deliver(inbox, 1, beside) == ["applied", "repeated"]
        tx.rollback()


def test_what_the_commit_would_refuse_is_raised(tx: psycopg.Connection) -> None:
    """Deferred constraints, as Django's foreign keys: a test's transaction is never committed, and would never know."""
    inbox = Inbox("tests")

    @inbox.handler("transfers")
    def hold(message: Message, tx: Any) -> None:
        tx.execute("insert into holding (name) values (%s)", [message.value])

    with pytest.raises(psycopg.errors.ForeignKeyViolation, match="holding_holder"):
        deliver(inbox, "nobody", tx)
    tx.execute("insert into holder values ('ann')")
    assert deliver(inbox, "ann", tx) == ["applied", "repeated"]
    tx.execute("insert into holding (name) values ('later')")  # what is checked late is so still


class Base(DeclarativeBase):
    pass


class Entry(Base):
    __tablename__ = "ledger_entry"
    id: Mapped[str] = mapped_column(primary_key=True)
    amount: Mapped[int]


def test_a_sqlalchemy_handler(ledger: str) -> None:
    inbox = Inbox("tests", tx="sqlalchemy")

    @inbox.handler("transfers", once=UniqueConstraint("ledger_entry_pkey"))
    def apply(message: Message, session: Session) -> None:
        session.add(
            Entry(id=message.value, amount=1)
        )  # the conflict comes when it is flushed, behind the handler

    with Session(create_engine(alchemy_url(ledger, "psycopg"))) as session:
        assert deliver(inbox, "e1", session) == ["applied", "already"]
        assert deliver(inbox, "e2", session, times=1) == ["applied"]
        assert session.execute(text("select id from ledger_entry order by id")).fetchall() == [
            ("e1",),
            ("e2",),
        ]
        session.rollback()


def test_a_django_handler(ledger: str) -> None:
    inbox = Inbox("tests", tx="django")

    @inbox.handler("transfers", once=UniqueConstraint("ledger_entry_pkey"))
    def apply(message: Message, connection: Any) -> None:
        with connection.cursor() as cursor:
            cursor.execute("insert into ledger_entry (id, amount) values (%s, 1)", [message.value])

    connection = django_connection(ledger)
    try:
        with transaction.atomic():
            assert deliver(inbox, "e1", connection) == ["applied", "already"]
            assert deliver(inbox, "e2", connection, times=1) == ["applied"]
            transaction.set_rollback(True)
    finally:
        connection.close()
