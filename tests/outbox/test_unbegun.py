"""P1 where nobody has begun yet: the first call to the outbox begins what the caller's own commit ends."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.pool import NullPool

from tallymark import Draft, Outbox, UsageError
from tests.outbox.callers import ASYNC_UNBEGUN, UNBEGUN, alchemy_url, django_atomic
from tests.outbox.conftest import Ids, query

OUTBOX = Outbox("/bank")


def add_one(tx: Any) -> set[str]:
    return {str(OUTBOX.add(tx, "transfers", 1))}


def add_few(tx: Any) -> set[str]:
    return {str(each) for each in OUTBOX.add_many(tx, [Draft("transfers", n) for n in range(3)])}


def add_more_than_a_batch(tx: Any) -> set[str]:
    return {str(each) for each in OUTBOX.add_many(tx, [Draft("transfers", n) for n in range(1_500)])}


ADDS = pytest.mark.parametrize("add", [add_one, add_few, add_more_than_a_batch])


def floors(url: str) -> int:
    ((held,),) = query(
        url,
        "select count(*) from pg_locks l join pg_database d on d.oid = l.database"
        " where d.datname = current_database() and l.locktype = 'advisory'",
    )
    return int(held)


@ADDS
@pytest.mark.parametrize("caller", UNBEGUN)
def test_the_callers_commit_is_the_messages_commit(bank: str, committed: Ids, caller: str, add: Any) -> None:
    with UNBEGUN[caller](bank) as tx:
        ids = add(tx)
        assert not ids & committed()
        tx.commit()
        assert ids <= committed()
        assert floors(bank) == 0, "nothing is held any more"
        again = add(tx)
        tx.commit()
        assert again <= committed()


@ADDS
@pytest.mark.parametrize("end", ["rollback", "nothing"])
@pytest.mark.parametrize("caller", UNBEGUN)
def test_without_it_there_is_none(bank: str, committed: Ids, caller: str, add: Any, end: str) -> None:
    before = committed()
    with UNBEGUN[caller](bank) as tx:
        add(tx)
        if end == "rollback":
            tx.rollback()
            assert floors(bank) == 0
    assert committed() == before
    assert floors(bank) == 0


@pytest.mark.parametrize("caller", UNBEGUN)
def test_asking_first_begins_nothing_that_its_owner_does_not_know_of(
    bank: str, committed: Ids, caller: str
) -> None:
    with UNBEGUN[caller](bank) as tx:
        assert OUTBOX.state(tx, uuid.uuid4()) is None
        tx.rollback()
        ((idle,),) = query(
            bank,
            "select count(*) from pg_stat_activity where datname = current_database()"
            " and state like 'idle in transaction%%'",
        )
        assert idle == 0
        assert OUTBOX.state(tx, uuid.uuid4()) is None
        ids = add_few(tx)
        tx.commit()
    assert ids <= committed()


@pytest.mark.parametrize("end", ["commit", "nothing"])
@pytest.mark.parametrize("caller", ASYNC_UNBEGUN)
def test_asynchronously(bank: str, committed: Ids, caller: str, end: str) -> None:
    async def work() -> str:
        async with ASYNC_UNBEGUN[caller](bank) as tx:
            id_ = await OUTBOX.add_async(tx, "transfers", 1)
            if end == "commit":
                await tx.commit()
        return str(id_)

    assert (asyncio.run(work()) in committed()) is (end == "commit")
    assert floors(bank) == 0


def test_a_failed_copy_is_rolled_back_by_its_owner(bank: str, committed: Ids) -> None:
    """The connection is of use again: SQLAlchemy knows that it is in a transaction, and ends it."""
    engine = create_engine(alchemy_url(bank, "psycopg"), poolclass=NullPool)
    query(bank, "alter table tallymark.outbox add constraint no_bad check (topic <> 'bad')")
    try:
        with engine.connect() as tx:
            with pytest.raises(UsageError, match="no_bad"):
                OUTBOX.add_many(tx, [Draft("bad", 1)])
            tx.rollback()
            assert tx.execute(text("select 1")).scalar_one() == 1
            ids = add_few(tx)
            tx.commit()
    finally:
        query(bank, "alter table tallymark.outbox drop constraint no_bad")
    assert ids <= committed()


def test_djangos_broken_block_takes_no_more(bank: str, committed: Ids) -> None:
    """Django refuses each statement until the end of a block that it will roll back: COPY is one of them."""
    from django.db import transaction

    before = committed()
    with django_atomic(bank) as tx:
        transaction.set_rollback(True)
        with pytest.raises(transaction.TransactionManagementError):
            add_few(tx)
    assert committed() == before


def test_many_through_a_driver_without_copy_of_ours(bank: str, committed: Ids) -> None:
    """One by one, and weighed like those that COPY takes: a plain `add` of so little would not be."""
    query(
        bank,
        "insert into tallymark.topics (topic, topic_id, partitions, max_message_bytes)"
        " values ('small', 'id', 1, 100) on conflict do nothing",
    )
    before = committed()

    async def work() -> set[str]:
        async with ASYNC_UNBEGUN["SQLAlchemy session, asyncpg"](bank) as tx:
            too_large = [Draft("small", b"x"), Draft("small", b"x" * 101)]
            with pytest.raises(UsageError, match="a value of 101 bytes is larger than topic small takes"):
                await tx.run_sync(lambda session: OUTBOX.add_many(session, too_large))
            ids: set[str] = await tx.run_sync(add_few)
            await tx.commit()
        return ids

    added = asyncio.run(work())
    assert committed() == before | added
