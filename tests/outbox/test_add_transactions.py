"""P1, at its root: a message commits or rolls back with the caller's transaction, whichever driver it is of."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

import psycopg
import pytest
from sqlalchemy import Integer, String, create_engine, select, text
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from sqlalchemy.pool import NullPool

from tallymark import Draft, NotInTransaction, Outbox, SchemaMismatch, UsageError
from tests.outbox import callers
from tests.outbox.callers import ASYNC, ASYNC_AUTOCOMMIT, AUTOCOMMIT, SYNC, Rollback
from tests.outbox.conftest import Ids, query

OUTBOX = Outbox("/bank")


@pytest.mark.parametrize("caller", SYNC)
def test_committed_with_the_rest(bank: str, committed: Ids, caller: str) -> None:
    with SYNC[caller](bank) as tx:
        id_ = OUTBOX.add(tx, "transfers", {"amount": 5}, key="alice", type="transfer.made")
        many = OUTBOX.add_many(tx, [Draft("transfers", n, key="alice") for n in range(3)])
        assert isinstance(id_, uuid.UUID)
        assert not {str(each) for each in (id_, *many)} & committed()
    assert {str(each) for each in (id_, *many)} <= committed()
    rows = query(
        bank, "select id, value from tallymark.outbox where id = any(%s) order by position", [[id_, *many]]
    )
    assert rows == [(id_, b'{"amount":5}'), (many[0], b"0"), (many[1], b"1"), (many[2], b"2")]


@pytest.mark.parametrize("caller", SYNC)
def test_rolled_back_with_the_rest(bank: str, committed: Ids, caller: str) -> None:
    before = committed()
    with contextlib.suppress(Rollback), SYNC[caller](bank) as tx:
        OUTBOX.add(tx, "transfers", "x", key="alice", dedup_key=f"rolled back {caller}")
        OUTBOX.add_many(tx, [Draft("transfers", "x")])
        raise Rollback
    assert committed() == before
    with SYNC[caller](bank) as tx:  # and its name is free again
        OUTBOX.add(tx, "transfers", "x", key="alice", dedup_key=f"rolled back {caller}")
    assert len(committed()) == len(before) + 1


@pytest.mark.parametrize("caller", SYNC)
def test_state_through_the_same_transaction(bank: str, caller: str) -> None:
    with SYNC[caller](bank) as tx:
        id_ = OUTBOX.add(tx, "transfers", "x", key="alice")
        assert str(OUTBOX.state(tx, id_)) == "pending"
        assert OUTBOX.state(tx, uuid.uuid4()) is None


@pytest.mark.parametrize("caller", SYNC)
def test_refusals_are_said_in_our_words_through_every_driver(bank: str, caller: str) -> None:
    with SYNC[caller](bank) as tx:
        OUTBOX.add(tx, "transfers", "x", dedup_key=f"order {caller}")
    with (
        pytest.raises(
            UsageError, match=f"a message with dedup_key order {caller} was added before"
        ) as refused,
        SYNC[caller](bank) as tx,
    ):
        OUTBOX.add(tx, "transfers", "x", dedup_key=f"order {caller}")
    assert "if_exists" in refused.value.remedy
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("caller", AUTOCOMMIT)
def test_looking_needs_no_transaction(bank: str, caller: str) -> None:
    with psycopg.connect(bank) as connection:
        id_ = OUTBOX.add(connection, "transfers", "x")
    with AUTOCOMMIT[caller](bank) as tx:
        assert str(OUTBOX.state(tx, id_)) == "pending"


@pytest.mark.parametrize("caller", AUTOCOMMIT)
def test_autocommit_is_refused(bank: str, committed: Ids, caller: str) -> None:
    before = committed()
    with AUTOCOMMIT[caller](bank) as tx:
        with pytest.raises(NotInTransaction, match="only be added inside a transaction"):
            OUTBOX.add(tx, "transfers", "x")
        with pytest.raises(NotInTransaction):
            OUTBOX.add_many(tx, [Draft("transfers", "x")])
    assert committed() == before


def run(work: Callable[[], Awaitable[Any]]) -> Any:
    async def whole() -> Any:
        return await work()

    return asyncio.run(whole())


@pytest.mark.parametrize("caller", ASYNC)
def test_asynchronous_commit_and_rollback(bank: str, committed: Ids, caller: str) -> None:
    async def work() -> tuple[uuid.UUID, uuid.UUID]:
        async with ASYNC[caller](bank) as tx:
            kept = await OUTBOX.add_async(
                tx, "transfers", {"amount": 5}, key="alice", dedup_key=f"async {caller}"
            )
        gone = kept
        with contextlib.suppress(Rollback):
            async with ASYNC[caller](bank) as tx:
                gone = await OUTBOX.add_async(tx, "transfers", {"amount": 5}, key="alice")
                raise Rollback
        with pytest.raises(UsageError, match="was added before"):
            async with ASYNC[caller](bank) as tx:
                await OUTBOX.add_async(tx, "transfers", 1, dedup_key=f"async {caller}")
        return kept, gone

    kept, gone = run(work)
    assert kept != gone
    assert str(kept) in committed()
    assert str(gone) not in committed()


@pytest.mark.parametrize("caller", ASYNC_AUTOCOMMIT)
def test_asynchronous_autocommit_is_refused(bank: str, committed: Ids, caller: str) -> None:
    before = committed()

    async def work() -> None:
        async with ASYNC_AUTOCOMMIT[caller](bank) as tx:
            with pytest.raises(NotInTransaction, match="only be added inside a transaction"):
                await OUTBOX.add_async(tx, "transfers", "x")

    run(work)
    assert committed() == before


def test_the_other_colour_is_named(bank: str) -> None:
    async def work() -> None:
        async with ASYNC["psycopg connection"](bank) as tx:
            with pytest.raises(UsageError, match="AsyncConnection is asynchronous") as refused:
                OUTBOX.add(tx, "transfers", "x")
            assert "add_async" in refused.value.remedy
        async with ASYNC["SQLAlchemy session, asyncpg"](bank) as tx:
            with pytest.raises(UsageError, match="AsyncSession is asynchronous"):
                OUTBOX.add(tx, "transfers", "x")

    run(work)


@pytest.mark.parametrize("caller", SYNC)
@pytest.mark.parametrize("bad", [5, 2_500])
def test_of_many_with_one_that_cannot_be_sent_none_is_added(
    bank: str, committed: Ids, caller: str, bad: int
) -> None:
    """Rows are made while COPY goes on: one that cannot be made leaves the transaction as it was."""
    before = committed()
    with SYNC[caller](bank) as tx:
        kept = OUTBOX.add(tx, "transfers", "before")
        with pytest.raises(UsageError, match="a value of type object cannot be sent"):
            OUTBOX.add_many(tx, [Draft("transfers", object() if n == bad else n) for n in range(3_000)])
        many = OUTBOX.add_many(tx, [Draft("transfers", n) for n in range(3_000)])
    assert committed() == before | {str(each) for each in (kept, *many)}
    ids = query(bank, "select id from tallymark.outbox where id = any(%s) order by position", [many])
    assert [id_ for (id_,) in ids] == many


def test_what_makes_the_messages_may_ask_the_same_connection(bank: str) -> None:
    with psycopg.connect(bank) as tx:

        def asked(n: int) -> bytes:
            row = tx.execute("select %s::text", [n]).fetchone()
            assert row is not None
            return str(row[0]).encode()

        assert len(OUTBOX.add_many(tx, (Draft("t", asked(n)) for n in range(2_000)))) == 2_000
        assert len(OUTBOX.add_many(tx, [Draft("t", n) for n in range(2_000)], encode=asked)) == 2_000
        tx.rollback()


@pytest.mark.parametrize("tx", [None, "postgresql://", 5, object()])
def test_what_is_no_transaction_is_refused(tx: object) -> None:
    with pytest.raises(UsageError, match="not a transaction that the outbox knows"):
        OUTBOX.add(tx, "transfers", "x")
    with pytest.raises(UsageError, match="not a transaction that the outbox knows"):
        asyncio.run(OUTBOX.add_async(tx, "transfers", "x"))


def test_without_a_schema_init_is_named(make_database: Callable[[], str]) -> None:
    url = make_database()
    for add in (
        lambda tx: OUTBOX.add(tx, "t", "x"),
        lambda tx: OUTBOX.add_many(tx, [Draft("t", "x")]),
        lambda tx: OUTBOX.state(tx, uuid.uuid4()),
    ):
        with psycopg.connect(url) as connection:
            with pytest.raises(SchemaMismatch, match="no outbox in schema tallymark") as refused:
                add(connection)
            assert "tallymark init" in refused.value.remedy
            connection.rollback()


# Pitfall 5: the order of a key is the order of its commits only where the row's lock is taken before the position


class Base(DeclarativeBase):
    pass


class Account(Base):
    __tablename__ = "accounts"
    name: Mapped[str] = mapped_column(String, primary_key=True)
    balance: Mapped[int] = mapped_column(Integer)


def test_a_sessions_pending_update_is_flushed_before_the_position_is_drawn(bank: str) -> None:
    """T2 holds alice's row. T1's add must wait for it, and so draw the later position, as it will commit later."""
    engine = create_engine(callers.alchemy_url(bank, "psycopg"), poolclass=NullPool)
    with psycopg.connect(bank) as t2, Session(engine) as t1:
        t1.execute(text("set local lock_timeout = '200ms'"))
        t2.execute("update accounts set balance = balance + 1 where name = 'alice'")
        alice = t1.scalars(select(Account).where(Account.name == "alice")).one()
        alice.balance -= 5
        last = query(bank, "select last_value from tallymark.outbox_position")
        with pytest.raises(Exception, match="lock timeout"):
            OUTBOX.add(t1, "transfers", {"balance": alice.balance}, key="alice")
        assert query(bank, "select last_value from tallymark.outbox_position") == last, (
            "a position was drawn first"
        )
