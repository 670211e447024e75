"""Two at work at once, on PostgreSQL: an operator and a relay at one parked message, two relays at one lane."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import psycopg
import pytest

from tallymark.errors import Stale
from tallymark.lifecycle import BatchKind, HoldState, Role
from tallymark.relay.ports import Batch, Exclusion, Hold, Lane, RelayStore
from tallymark.store.postgres.migrations import migrate
from tallymark.store.postgres.relaystore import PostgresRelayStore
from tests.store.conftest import Ground, next_batch
from tests.waiting import wait_for

WRITES: dict[str, Callable[[RelayStore, Lane, Batch], object]] = {
    "exclude": lambda s, lane, batch: s.exclude(lane, batch, Exclusion(failed={1: "bad"})),
    "exclude_retry": lambda s, lane, batch: s.exclude(
        lane, replace(batch, kind=BatchKind.RETRY), Exclusion(failed={1: "bad"})
    ),
    "update_hold": lambda s, lane, _: s.update_hold(lane, Hold("t", HoldState.HELD, 0, "unknown")),
    "end_hold": lambda s, lane, _: s.end_hold(lane, "held"),
}


@pytest.mark.parametrize("write", WRITES)
def test_whoever_takes_the_lane_meanwhile_is_waited_for(database: str, write: str) -> None:
    """Its commit makes us stale: what we were about to change is not changed beside it."""
    migrate(database, lanes=1, partitions_ahead=2)
    ground = Ground(
        "postgres", lambda: PostgresRelayStore(database), lambda: psycopg.connect(database), "tallymark."
    )
    store = ground.store()
    lane = store.take("a", 60)
    assert lane is not None
    ground.add(2)
    batch = next_batch(lane, 2, messages=2)
    lane = store.advance(lane, claim=batch)
    store.update_hold(lane, Hold("held", HoldState.HELD, 0, "no right to it"))
    before = ground.sql("select * from ~batches"), ground.sql("select * from ~topic_holds")
    with psycopg.connect(database) as taker, ThreadPoolExecutor(1) as late:
        taker.execute("update tallymark.lanes set owner = 'b', epoch = epoch + 1")
        writing = late.submit(WRITES[write], store, lane, batch)
        wait_for(
            lambda: writing.done() or ground.sql("select 1 from pg_locks where not granted"),
            what="the late write waits",
        )
        taker.commit()
        if write == "end_hold":  # raises nothing: the next write will tell
            writing.result(20)
        else:
            with pytest.raises(Stale):
                writing.result(20)
    assert (ground.sql("select * from ~batches"), ground.sql("select * from ~topic_holds")) == before
    assert ground.sql("select * from ~parked") == []
    ground.close()


def test_a_message_discarded_while_a_retry_claims_it_is_not_sent(database: str) -> None:
    migrate(database, lanes=1, partitions_ahead=2)
    ground = Ground(
        "postgres", lambda: PostgresRelayStore(database), lambda: psycopg.connect(database), "tallymark."
    )
    store = ground.store()
    lane = store.take("a", 60)
    assert lane is not None
    added = ground.add(3)
    batch = next_batch(lane, 3, messages=3)
    lane = store.advance(lane, claim=batch)
    batch = store.exclude(lane, batch, Exclusion(failed={1: "bad"}, waiting={2: "w", 3: "w"}))
    lane = store.advance(lane, mark=batch)
    ground.sql("update ~parked set state = 'retrying' where position = 1")
    retry = next_batch(lane, lane.covered, kind=BatchKind.RETRY)
    with psycopg.connect(database) as operator, ThreadPoolExecutor(1) as relay:
        operator.execute("update tallymark.parked set state = 'discarded' where position = 2")
        claiming = relay.submit(store.claim_retry, lane, retry, 10)
        wait_for(
            lambda: ground.sql("select 1 from pg_locks where not granted"),
            what="the relay waits for the operator",
        )
        operator.commit()
        lane, claimed = claiming.result(20)
    assert claimed is not None
    assert claimed.messages == 2
    assert [row[1] for row in store.contents(claimed)] == [added[0], added[2]]
    store.advance(lane, mark=claimed)
    assert ground.sql("select position, state from ~parked order by position") == [
        (1, "sent"),
        (2, "discarded"),
        (3, "sent"),
    ]
    ground.close()


def test_one_relay_at_a_time_moves_what_is_due(database: str) -> None:
    """Two at once would give a key's later message the lower position."""
    migrate(database, role=Role.PRODUCER, lanes=1, partitions_ahead=2)
    store = PostgresRelayStore(database)
    with psycopg.connect(database) as other:
        other.execute("select tallymark.outbox_add('t', ''::bytea, due_at => now() - interval '1 s')")
        other.commit()
        other.execute("select pg_advisory_xact_lock(hashtextextended('tallymark delayed', 0))")
        assert store.move_due(10) == 0
        other.commit()
        assert store.move_due(10) == 1
    store.close()


def test_what_falls_due_at_one_time_is_moved_in_the_order_of_its_adding(database: str) -> None:
    """Not as it lies in the table."""
    migrate(database, role=Role.PRODUCER, lanes=1, partitions_ahead=2)
    store = PostgresRelayStore(database)
    with psycopg.connect(database) as tx:
        added = [
            tx.execute("select tallymark.outbox_add('t', ''::bytea, due_at => '2026-01-01')").fetchone()
            for _ in range(20)
        ]
        for id_ in reversed(added):  # each goes behind the others
            for moment in ("2026-01-02", "2026-01-01"):
                tx.execute("update tallymark.delayed set due_at = %s where id = %s", [moment, *(id_ or ())])
    assert [store.move_due(8) for _ in range(3)] == [8, 8, 4]
    with psycopg.connect(database) as tx:
        assert tx.execute("select id from tallymark.outbox order by position").fetchall() == added
    store.close()
