"""The same `add` on SQLite: in the caller's transaction, with the caller's kind of connection, or refused."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tallymark import Draft, MessageState, NotInTransaction, Outbox, SchemaMismatch, UsageError
from tallymark.store.sqlite.schema import create

OUTBOX = Outbox("/edge")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "edge.db"


@pytest.fixture
def tx(path: Path) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(path)
    connection.execute("create table sales (n integer)")
    yield connection
    connection.close()


def count(path: Path) -> int:
    connection = sqlite3.connect(path)
    try:
        (found,) = connection.execute("select count(*) from tallymark_outbox").fetchone()
        return int(found)
    finally:
        connection.close()


def test_the_first_message_makes_the_tables_and_commits_with_the_rest(
    path: Path, tx: sqlite3.Connection
) -> None:
    tx.execute("insert into sales values (1)")
    id_ = OUTBOX.add(tx, "sales", {"n": 1}, key="box 1")
    assert OUTBOX.state(tx, id_) is MessageState.PENDING
    tx.commit()
    assert count(path) == 1
    assert create(path).made is False


def test_rolled_back_with_the_rest(path: Path, tx: sqlite3.Connection) -> None:
    create(path)
    tx.execute("insert into sales values (1)")
    OUTBOX.add(tx, "sales", 1, dedup_key="sale 1")
    OUTBOX.add_many(tx, [Draft("sales", n) for n in range(5)])
    tx.rollback()
    assert (count(path), tx.execute("select count(*) from sales").fetchone()) == (0, (0,))
    OUTBOX.add(tx, "sales", 1, dedup_key="sale 1")
    tx.commit()
    assert count(path) == 1


def test_adding_first_begins_the_transaction_that_the_rest_joins(path: Path, tx: sqlite3.Connection) -> None:
    OUTBOX.add(tx.cursor(), "sales", 1)
    assert tx.in_transaction
    tx.execute("insert into sales values (1)")
    tx.rollback()
    assert tx.execute("select count(*) from sales").fetchone() == (0,)
    assert not tx.execute("select * from sqlite_master where name like 'tallymark%'").fetchall()


def test_autocommit_is_refused_and_an_explicit_transaction_is_not(path: Path) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    with pytest.raises(NotInTransaction, match="only be added inside a transaction"):
        OUTBOX.add(connection, "sales", 1)
    with pytest.raises(NotInTransaction):
        OUTBOX.add_many(connection, [Draft("sales", 1)])
    connection.execute("begin")
    OUTBOX.add(connection, "sales", 1)
    connection.execute("commit")
    connection.close()
    assert count(path) == 1


def with_autocommit(path: Path, value: bool) -> sqlite3.Connection:
    options: dict[str, Any] = {"autocommit": value}
    connection: sqlite3.Connection = sqlite3.connect(path, **options)
    return connection


@pytest.mark.skipif(sys.version_info < (3, 12), reason="sqlite3.connect(autocommit=) came with Python 3.12")
def test_the_drivers_own_autocommit(path: Path) -> None:
    connection = with_autocommit(path, True)
    with pytest.raises(NotInTransaction):
        OUTBOX.add(connection, "sales", 1)
    connection.close()
    connection = with_autocommit(path, False)
    OUTBOX.add(connection, "sales", 1)
    connection.rollback()
    OUTBOX.add(connection, "sales", 1)
    connection.commit()
    connection.close()
    assert count(path) == 1


def test_an_add_that_is_refused_leaves_the_transaction_as_it_was(path: Path, tx: sqlite3.Connection) -> None:
    create(path)
    tx.execute(
        "insert into tallymark_topics (topic, topic_id, partitions, max_message_bytes) values ('small', 'i', 1, 10)"
    )
    first = OUTBOX.add(tx, "sales", 1, dedup_key="sale 1")
    with pytest.raises(UsageError, match="a value of 11 bytes is larger than topic small takes"):
        OUTBOX.add(tx, "small", "x" * 11, dedup_key="sale 2")
    with pytest.raises(UsageError, match="larger than topic small takes"):
        OUTBOX.add_many(tx, [Draft("small", "x"), Draft("small", "x" * 11)])
    with pytest.raises(UsageError, match="dedup_key sale 1 was added before"):
        OUTBOX.add(tx, "sales", 2, dedup_key="sale 1")
    assert OUTBOX.add(tx, "sales", 2, dedup_key="sale 1", if_exists="ignore") == first
    OUTBOX.add(tx, "small", "x" * 10, dedup_key="sale 2")
    tx.commit()
    assert count(path) == 2


def test_a_row_factory_of_the_callers_own_is_no_matter(tx: sqlite3.Connection) -> None:
    tx.row_factory = lambda _cursor, row: {"row": row}
    id_ = OUTBOX.add(tx, "sales", 1, dedup_key="a", serialize_key=True, key="k")
    assert OUTBOX.add(tx, "sales", 1, dedup_key="a", if_exists="ignore") == id_
    assert OUTBOX.state(tx, id_) is MessageState.PENDING


def test_later_is_delayed(tx: sqlite3.Connection) -> None:
    id_ = OUTBOX.add(tx, "sales", 1, deliver_after=timedelta(hours=1))
    status = OUTBOX.status(tx, id_)
    assert status is not None
    assert (status.state, status.position) == (MessageState.DELAYED, None)


def test_there_is_no_asynchronous_form(tx: sqlite3.Connection) -> None:
    with pytest.raises(UsageError, match="sqlite3 is synchronous"):
        asyncio.run(OUTBOX.add_async(tx, "sales", 1))


def test_asking_a_file_without_an_outbox(tx: sqlite3.Connection) -> None:
    with pytest.raises(SchemaMismatch, match="no outbox in this file"):
        OUTBOX.state(tx, "01998877-0000-7000-8000-000000000000")


def test_a_newer_version_is_refused(path: Path) -> None:
    create(path)
    with sqlite3.connect(path) as connection:
        connection.execute("update tallymark_identity set version = 99")
    with pytest.raises(SchemaMismatch, match="has version 99") as refused:
        create(path)
    assert "upgrade" in refused.value.remedy


def test_the_file_is_in_wal_mode(path: Path) -> None:
    create(path)
    assert sqlite3.connect(path).execute("pragma journal_mode").fetchone() == ("wal",)


@contextmanager
def another_writes(path: Path) -> Iterator[threading.Event]:
    """Another connection has written, and commits when the event is set."""
    writing, may_go = threading.Event(), threading.Event()

    def write() -> None:
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("begin immediate")
            other.execute("insert into sales values (0)")
            writing.set()
            may_go.wait(30)
            other.execute("commit")

    thread = threading.Thread(target=write)
    thread.start()
    assert writing.wait(30)
    try:
        yield may_go
    finally:
        may_go.set()
        thread.join(30)


ADDS: dict[str, Callable[[sqlite3.Connection], object]] = {
    "add": lambda tx: OUTBOX.add(tx, "sales", 1),
    "named": lambda tx: OUTBOX.add(tx, "sales", 1, dedup_key="sale 1"),
    "many": lambda tx: OUTBOX.add_many(tx, [Draft("sales", n) for n in range(3)]),
}


@pytest.mark.parametrize("first", ADDS.values(), ids=ADDS)
@pytest.mark.parametrize("begun", ["by us", "by itself"])
def test_adding_first_waits_for_another_writer(
    path: Path, tx: sqlite3.Connection, first: Callable[[sqlite3.Connection], object], begun: str
) -> None:
    """The relay, most often. SQLite waits for nobody when a transaction that has read begins to write."""
    tx.commit()
    create(path)
    if begun == "by itself":  # as the driver does from Python 3.12 on, with autocommit=False
        tx.execute("begin")
    with another_writes(path) as may_go:
        # The other one lets go only when this one asks for the right to write: whoever does not wait fails before.
        tx.set_trace_callback(lambda sql: may_go.set() if "tallymark_identity" in sql else None)
        first(tx)
    tx.commit()
    assert count(path) >= 1
