"""What is repaired is queued in its place among those of its key, by position, while nobody works on it."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import psycopg
import pytest

from tallymark.inbox.identity import key_hash
from tallymark.inbox.ports import Queued, Received
from tallymark.store.postgres.inboxstore import PostgresInboxStore
from tallymark.store.postgres.replay import ReplayStore
from tests.inbox_store.conftest import message, query
from tests.waiting import wait_for


@pytest.fixture
def replay(ledger: str) -> Iterator[ReplayStore]:
    store = ReplayStore(ledger, "ledger")
    yield store
    store.close()


def lost(position: int) -> Received:
    return message(None, position=position)


def waiting(store: PostgresInboxStore, *offsets: int) -> None:
    """Kept and queued, in this order."""
    rows = [message(offset) for offset in offsets]
    with store.begin() as tx:
        tx.keep(rows)
        tx.enqueue([Queued(each, key_hash(each.topic, each.key, each.id)) for each in rows])


def positions(url: str) -> list[int]:
    return [
        row[0]
        for row in query(
            url, "select i.position from tallymark.queue q join tallymark.inbox i using (id) order by q.seq"
        )
    ]


def test_before_those_that_wait_behind_it(
    ledger: str, store: PostgresInboxStore, replay: ReplayStore
) -> None:
    waiting(store, 9, 19)
    rows = [lost(n) for n in (3, 4, 5, 12, 13, 25)]
    kept, why = replay.repair(rows, lambda _: {})
    assert (kept, why) == (6, {})
    assert positions(ledger) == [3, 4, 5, 10, 12, 13, 20, 25]


def test_what_is_refused_is_not_kept(ledger: str, replay: ReplayStore) -> None:
    one, other = lost(1), lost(2)
    kept, why = replay.repair([one, other], lambda _: {one.id: "no"})
    assert (kept, why, positions(ledger)) == (1, {one.id: "no"}, [2])


def test_it_looks_only_when_nobody_works_on_the_key(
    ledger: str, store: PostgresInboxStore, replay: ReplayStore
) -> None:
    waiting(store, 9)
    key = key_hash("transfers", b"alice", message().id)
    looked = threading.Event()

    def look(_: object) -> dict[object, str]:
        looked.set()
        return {}

    with psycopg.connect(ledger) as worker:
        worker.execute("select pg_advisory_xact_lock(hashtextextended('tallymark ledger', %s))", [key])
        repairing = threading.Thread(target=replay.repair, args=([lost(3)], look))
        repairing.start()
        wait_for(
            lambda: (
                query(ledger, "select count(*) from pg_locks where locktype = 'advisory' and not granted")[0][
                    0
                ]
                > 0
            ),
            what="the repair waits for the worker",
        )
        assert not looked.is_set()
    repairing.join(10)
    assert looked.is_set()
