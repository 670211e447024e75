"""The relay's store, PostgreSQL and SQLite alike: who has the lane, and what a stale owner can still do (nothing)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tallymark.errors import Stale
from tallymark.lifecycle import HoldState, Mode
from tallymark.relay.ports import Exclusion, Hold, Lane, RelayStore
from tests.store.conftest import Ground, next_batch
from tests.waiting import wait_for


def taken(store: RelayStore, owner: str = "a", seconds: float = 60) -> Lane:
    lane = store.take(owner, seconds)
    assert lane is not None
    return lane


def test_the_identity_is_made_once(ground: Ground) -> None:
    first = ground.store().identity()
    assert first == ground.store().identity()
    assert (first.lanes, first.receipts_topic_id) == (1, None)


def test_the_receipts_topic_is_recorded_once(ground: Ground) -> None:
    store = ground.store()
    store.record_receipts_topic("first")
    store.record_receipts_topic("second")
    assert store.identity().receipts_topic_id == "first"


def test_a_lane_that_is_held_cannot_be_taken(ground: Ground) -> None:
    a, b = ground.store(), ground.store()
    lane = taken(a)
    assert (lane.owner, lane.epoch, lane.covered, lane.last_number, lane.receipt) == ("a", 1, 0, -1, None)
    assert b.take("b", 60) is None
    assert a.renew("a", 60) == {(0, 1)}
    assert b.renew("b", 60) == frozenset()


def test_a_released_lane_is_free_at_once(ground: Ground) -> None:
    a, b = ground.store(), ground.store()
    a.release(taken(a))
    assert taken(b, "b").epoch == 2
    assert a.renew("a", 60) == frozenset()


def test_a_lease_that_ran_out_is_taken_over_and_not_renewed(ground: Ground) -> None:
    a, b = ground.store(), ground.store()
    old = taken(a, seconds=0.05)
    new = wait_for(lambda: b.take("b", 60), what="the lease runs out")
    assert new is not None
    assert (new.owner, new.epoch) == ("b", 2)
    assert a.renew("a", 60) == frozenset()
    with pytest.raises(Stale):
        a.reread(old)
    a.release(old)
    assert b.reread(new).owner == "b", "a stale release changed the lane"


def test_relays_that_live_are_counted(ground: Ground) -> None:
    a, b = ground.store(), ground.store()
    assert a.join("a", Mode.SYNC, (), 60) == 1
    assert a.join("a", Mode.SYNC, (), 60) == 1
    assert b.join("b", Mode.TRANSACTIONAL, ("min.insync.replicas",), 60) == 2
    b.leave("b")
    assert a.join("a", Mode.SYNC, (), 60) == 1
    b.join("c", Mode.SYNC, (), 0.01)
    wait_for(lambda: a.join("a", Mode.SYNC, (), 60) == 1, what="c is no longer counted")


def test_a_halted_lane_is_not_taken(ground: Ground) -> None:
    a = ground.store()
    lane = taken(a)
    a.halt(lane, "the receipts do not fit")
    assert a.take("b", 60) is None
    assert ground.sql("select halted, owner from ~lanes") == [("the receipts do not fit", None)]


def test_a_paused_lane_says_so(ground: Ground) -> None:
    a = ground.store()
    lane = taken(a)
    ground.sql("update ~lanes set paused = " + ("true" if ground.kind == "postgres" else "1"))
    assert a.reread(lane).paused is True


def test_fenced_attempts_are_counted(ground: Ground) -> None:
    a = ground.store()
    a.count_fenced(0)
    a.count_fenced(0)
    assert ground.sql("select fenced from ~lanes") == [(2,)]


Write = Callable[[RelayStore, Lane], object]

WRITES: dict[str, Write] = {
    "reread": lambda s, lane: s.reread(lane),
    "claim": lambda s, lane: s.advance(lane, claim=next_batch(lane, 3)),
    "mark": lambda s, lane: s.advance(lane, mark=next_batch(replace(lane, last_number=-1, covered=0), 2)),
    "progress": lambda s, lane: s.progress(lane, 9),
    "exclude": lambda s, lane: s.exclude(
        lane, next_batch(replace(lane, last_number=-1, covered=0), 2), Exclusion(failed={1: "bad"})
    ),
    "hold": lambda s, lane: s.update_hold(lane, Hold("t", HoldState.HELD, 0, "unknown")),
}


@pytest.mark.parametrize("taker", ["b", "a"])
@pytest.mark.parametrize("write", WRITES)
def test_a_stale_epoch_is_refused_and_changes_nothing(ground: Ground, write: str, taker: str) -> None:
    """Whoever took the lane since: another relay, or the same one anew."""
    ground.add(3)
    a, b = ground.store(), ground.store()
    old = a.advance(taken(a), claim=next_batch(taken_view(), 2, messages=2))
    a.release(old)
    taken(b, taker)
    before = everything(ground)
    with pytest.raises(Stale):
        WRITES[write](a, old)
    assert everything(ground) == before


def test_what_raises_nothing_changes_nothing_either_when_stale(ground: Ground) -> None:
    ground.add(3)
    a, b = ground.store(), ground.store()
    old = a.advance(taken(a), claim=next_batch(taken_view(), 2, messages=2))
    a.exclude(old, next_batch(taken_view(), 2), Exclusion(failed={1: "bad"}, topics={"t": "held"}))
    a.release(old)
    taken(b, "b")
    ground.sql("update ~parked set state = 'retrying'")
    before = everything(ground)
    a.halt(old, "late")
    a.end_hold(old, "t")
    assert a.claim_retry(old, next_batch(old, 2), 10)[1] is None
    assert everything(ground) == before


def taken_view() -> Lane:
    """What a fresh lane looks like to its first owner."""
    return Lane(0, "a", 1, 0, -1, None)


def everything(ground: Ground) -> list[list[tuple[object, ...]]]:
    return [
        ground.sql(f"select * from ~{table} order by 1")
        for table in ("lanes", "batches", "parked", "topic_holds", "outbox")
    ]
