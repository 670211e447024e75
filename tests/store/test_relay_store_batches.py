"""The relay's store, PostgreSQL and SQLite alike: claims and marks, what a batch is made of, parked keys, held topics."""

from __future__ import annotations

import os
import time
from dataclasses import replace

import pytest

from tallymark.errors import Stale
from tallymark.lifecycle import BatchKind, HoldState, Mode
from tallymark.relay.config import RelayConfig
from tallymark.relay.ledger import Ledger
from tallymark.relay.ports import Exclusion, Hold, Lane, Receipt, RelayStore, TopicReport
from tests.store.conftest import Ground, next_batch


@pytest.fixture
def store(ground: Ground) -> RelayStore:
    return ground.store()


@pytest.fixture
def lane(store: RelayStore) -> Lane:
    lane = store.take("a", 60)
    assert lane is not None
    return lane


def ids(rows: object) -> list[str]:
    assert isinstance(rows, list | tuple)
    return [row[1] for row in rows]


def test_claim_then_mark_and_claim_in_one(ground: Ground, store: RelayStore, lane: Lane) -> None:
    added = ground.add(4)
    first = next_batch(lane, 2, messages=2)
    lane = store.advance(lane, claim=first)
    assert (lane.covered, lane.last_number) == (2, 0)
    assert [batch.number for batch in store.unsent(lane)] == [0]
    second = next_batch(lane, 4, messages=2)
    lane = store.advance(lane, mark=first, receipt=Receipt(0, first.token, 7), claim=second)
    assert store.reread(lane) == replace(lane, receipt=Receipt(0, first.token, 7))
    (unsent,) = store.unsent(lane)
    assert replace(unsent, age_s=0.0) == second
    assert ids(store.contents(unsent)) == added[2:]
    assert ground.sql("select number, state, receipt_offset, version from ~batches order by number") == [
        (0, "sent", 7, 2),
        (1, "sending", None, 1),
    ]
    assert ground.sql("select sent from ~lanes") == [(2,)]


def test_a_batch_knows_the_databases_clock(ground: Ground, store: RelayStore, lane: Lane) -> None:
    """When it was claimed, and anew when it is found in doubt: what Kafka is told may not lie days back."""
    ground.add(1)
    before = time.time() * 1000
    lane = store.advance(lane, claim=next_batch(lane, 1, messages=1))
    (unsent,) = store.unsent(lane)
    assert before - 1000 < lane.clock_ms <= unsent.clock_ms < time.time() * 1000 + 1000


def test_mark_and_claim_are_one_a_wrong_version_refuses_both(
    ground: Ground, store: RelayStore, lane: Lane
) -> None:
    ground.add(4)
    first = next_batch(lane, 2, messages=2)
    lane = store.advance(lane, claim=first)
    with pytest.raises(Stale):
        store.advance(lane, mark=replace(first, version=2), claim=next_batch(lane, 4))
    with pytest.raises(Stale):
        store.advance(lane, mark=first, claim=replace(next_batch(lane, 4), number=5))
    assert store.reread(lane) == lane
    assert ground.sql("select number, state, version from ~batches") == [(0, "sending", 1)]


@pytest.mark.parametrize("number", [0, 2, 7])
def test_a_number_that_is_not_the_next_is_refused(
    ground: Ground, store: RelayStore, lane: Lane, number: int
) -> None:
    ground.add(3)
    lane = store.advance(lane, claim=next_batch(lane, 1))
    with pytest.raises(Stale):
        store.advance(lane, claim=replace(next_batch(lane, 2), number=number))
    assert store.reread(lane) == lane


def test_a_batch_is_marked_once(ground: Ground, store: RelayStore, lane: Lane) -> None:
    ground.add(2)
    batch = next_batch(lane, 2, messages=2)
    lane = store.advance(lane, claim=batch)
    lane = store.advance(lane, mark=batch)
    for version in (1, 2):
        with pytest.raises(Stale):
            store.advance(lane, mark=replace(batch, version=version))
    assert ground.sql("select sent from ~lanes") == [(2,)]


def test_resolved_batches_are_counted(ground: Ground, store: RelayStore, lane: Lane) -> None:
    ground.add(1)
    batch = next_batch(lane, 1, messages=1)
    lane = store.advance(lane, claim=batch)
    store.advance(lane, mark=batch, receipt=Receipt(0, batch.token, 3), in_doubt=True)
    assert ground.sql("select resolved from ~lanes") == [(1,)]


def test_the_origin_is_empty(store: RelayStore, lane: Lane) -> None:
    origin = next_batch(lane, 0, kind=BatchKind.ORIGIN)
    lane = store.advance(lane, claim=origin)
    assert store.contents(store.unsent(lane)[0]) == []


def test_contents_are_stable_and_lose_only_what_left(ground: Ground, store: RelayStore, lane: Lane) -> None:
    added = ground.add(3) + ground.add(1, topic="other") + ground.add(1)
    batch = next_batch(lane, 5, messages=5)
    lane = store.advance(lane, claim=batch)
    ground.add(3)
    assert ids(store.contents(batch)) == added
    batch = store.exclude(
        lane, batch, Exclusion(failed={2: "too large"}, waiting={3: "waits"}, topics={"other": "unknown"})
    )
    assert (batch.version, batch.messages, batch.without_topics) == (2, 3, ("other",))
    assert ids(store.contents(batch)) == [added[0], added[4]]
    (again,) = ground.store().unsent(lane)
    assert ids(ground.store().contents(again)) == [added[0], added[4]]
    assert store.holds(lane) == (Hold("other", HoldState.HELD, 0, "unknown"),)
    assert ground.sql("select position, state, reason, batch, attempts from ~parked order by position") == [
        (2, "failed", "too large", 0, 1),
        (3, "waiting", "waits", 0, 0),
    ]


def test_exclude_needs_the_version(ground: Ground, store: RelayStore, lane: Lane) -> None:
    ground.add(2)
    batch = next_batch(lane, 2, messages=2)
    lane = store.advance(lane, claim=batch)
    store.exclude(lane, batch, Exclusion(failed={1: "bad"}))
    with pytest.raises(Stale):
        store.exclude(lane, batch, Exclusion(failed={2: "bad"}))
    with pytest.raises(Stale):
        store.advance(lane, mark=batch)
    assert ground.sql("select position from ~parked") == [(1,)]


def test_a_claim_parks_what_waits(ground: Ground, store: RelayStore, lane: Lane) -> None:
    added = ground.add(3)
    batch = next_batch(lane, 3, messages=2)
    lane = store.advance(lane, claim=batch, waiting={2: "waits"})
    assert ids(store.contents(batch)) == [added[0], added[2]]
    assert store.held_keys(lane).keys() == {("t", b"k")}


def test_retry_takes_the_queue_of_a_freed_key_in_order(ground: Ground, store: RelayStore, lane: Lane) -> None:
    alice = ground.add(3, key="alice")
    ground.add(2, key="bob")
    batch = next_batch(lane, 5, messages=5)
    lane = store.advance(lane, claim=batch)
    batch = store.exclude(
        lane, batch, Exclusion(failed={1: "bad", 4: "bad"}, waiting={2: "w", 3: "w", 5: "w"})
    )
    lane = store.advance(lane, mark=batch)
    assert store.held_keys(lane).keys() == {("t", b"alice"), ("t", b"bob")}
    wanted = next_batch(lane, lane.covered, kind=BatchKind.RETRY)
    assert store.claim_retry(lane, wanted, 10) == (lane, None)
    ground.sql("update ~parked set state = 'retrying' where position = 1")
    lane, retry = store.claim_retry(lane, wanted, 2)
    assert retry is not None
    assert (retry.number, retry.messages, lane.last_number) == (1, 2, 1)
    assert ids(store.contents(retry)) == alice[:2]
    # the second one fails again, and what is left of its key waits again
    retry = store.exclude(lane, retry, Exclusion(failed={2: "bad again"}))
    assert ids(store.contents(retry)) == alice[:1]
    lane = store.advance(lane, mark=retry)
    assert ground.sql("select position, state, attempts from ~parked order by position") == [
        (1, "sent", 1),
        (2, "failed", 1),
        (3, "waiting", 0),
        (4, "failed", 1),
        (5, "waiting", 0),
    ]
    assert store.claim_retry(lane, next_batch(lane, lane.covered, kind=BatchKind.RETRY), 10)[1] is None
    ground.sql("update ~parked set state = 'discarded' where position = 2")
    lane, last = store.claim_retry(lane, next_batch(lane, lane.covered, kind=BatchKind.RETRY), 10)
    assert last is not None
    assert ids(store.contents(last)) == alice[2:]
    store.advance(lane, mark=last)
    assert store.held_keys(lane).keys() == {("t", b"bob")}


@pytest.mark.parametrize(("size", "messages"), [(1, 1), (1100, 1), (1101, 2), (100_000, 4)])
def test_a_retry_is_bounded_in_bytes(
    ground: Ground, store: RelayStore, lane: Lane, size: int, messages: int
) -> None:
    """A row is in while what stands before it is below the limit: one giant alone still moves."""
    ground.add(4, key=None, value=bytes(1000))
    batch = next_batch(lane, 4, messages=4)
    lane = store.advance(lane, claim=batch)
    batch = store.exclude(lane, batch, Exclusion(failed=dict.fromkeys(range(1, 5), "bad")))
    lane = store.advance(lane, mark=batch)
    ground.sql("update ~parked set state = 'retrying'")
    lane, retry = store.claim_retry(lane, next_batch(lane, lane.covered, kind=BatchKind.RETRY), 10, size)
    assert retry is not None
    assert retry.messages == len(store.contents(retry)) == messages


def test_a_held_topic_is_caught_up_by_batches_of_its_own(
    ground: Ground, store: RelayStore, lane: Lane
) -> None:
    ground.add(1)
    held = ground.add(2, topic="held")
    ground.add(1)
    batch = next_batch(lane, 4, messages=4)
    lane = store.advance(lane, claim=batch)
    batch = store.exclude(lane, batch, Exclusion(topics={"held": "unknown topic"}))
    lane = store.advance(lane, mark=batch)
    (hold,) = store.holds(lane)
    store.update_hold(lane, replace(hold, state=HoldState.CATCHING_UP))
    (hold,) = store.holds(lane)
    assert hold.state is HoldState.CATCHING_UP
    piece = store.read(lane, hold.start, lane.covered, 1, 10_000, hold)
    assert (ids(piece.rows), piece.upto, piece.more) == (held[:1], 2, True)
    catch = next_batch(
        lane,
        piece.upto,
        after=hold.start,
        kind=BatchKind.TOPIC,
        topic="held",
        covered=lane.covered,
        messages=1,
    )
    lane = store.advance(lane, claim=catch)
    assert ids(store.contents(catch)) == held[:1]
    lane = store.advance(lane, mark=catch)
    assert store.holds(lane)[0].start == 2
    store.end_hold(lane, "held")
    assert store.holds(lane) == ()


def test_progress_moves_on_and_never_back(ground: Ground, store: RelayStore, lane: Lane) -> None:
    ground.add(5)
    lane = store.progress(lane, 4)
    assert store.reread(lane).covered == 4
    with pytest.raises(Stale):
        store.progress(lane, 3)


def test_a_topic_is_recorded_once_and_its_limit_anew(store: RelayStore) -> None:
    assert store.topic("t") is None
    store.record_topic(TopicReport("t", "id-1", 3, 1000))
    store.record_topic(TopicReport("t", "id-2", 6, 2000, accepted=("min.insync.replicas",)))
    record = store.topic("t")
    assert record is not None
    assert (record.topic_id, record.partitions, record.max_message_bytes) == ("id-1", 3, 2000)


def test_unsent_are_told_in_order_with_their_mode(ground: Ground, store: RelayStore, lane: Lane) -> None:
    ground.add(3)
    for upto in (1, 2, 3):
        lane = store.advance(lane, claim=next_batch(lane, upto, mode=Mode.CALLBACK, messages=1))
    unsent = ground.store().unsent(lane)
    assert [(b.number, b.mode, b.after, b.upto) for b in unsent] == [
        (0, Mode.CALLBACK, 0, 1),
        (1, Mode.CALLBACK, 1, 2),
        (2, Mode.CALLBACK, 2, 3),
    ]
    assert all(batch.age_s >= 0 for batch in unsent)


def test_a_topic_held_again_while_catching_up_keeps_its_place(
    ground: Ground, store: RelayStore, lane: Lane
) -> None:
    held = ground.add(3, topic="held")
    batch = next_batch(lane, 3, messages=3)
    lane = store.advance(lane, claim=batch)
    batch = store.exclude(lane, batch, Exclusion(topics={"held": "unknown topic"}))
    lane = store.advance(lane, mark=batch)
    store.update_hold(lane, Hold("held", HoldState.CATCHING_UP, 1, ""))
    catch = next_batch(lane, 3, after=1, kind=BatchKind.TOPIC, topic="held", covered=lane.covered, messages=2)
    lane = store.advance(lane, claim=catch)
    catch = store.exclude(lane, catch, Exclusion(topics={"held": "gone again"}))
    assert store.contents(catch) == []
    store.advance(lane, mark=catch)
    assert store.holds(lane) == (Hold("held", HoldState.HELD, 1, "gone again"),)
    with ground.transaction() as tx:
        assert str(ground.outbox.state(tx, held[2])) == "pending"


def test_a_retried_message_whose_topic_is_held_is_not_marked_as_sent(
    ground: Ground, store: RelayStore, lane: Lane
) -> None:
    """It leaves the batch as a message: a topic's catch-up does not look at what is parked."""
    ground.add(2)
    batch = next_batch(lane, 2, messages=2)
    lane = store.advance(lane, claim=batch)
    batch = store.exclude(lane, batch, Exclusion(failed={1: "bad"}, waiting={2: "waits"}))
    lane = store.advance(lane, mark=batch)
    ground.sql("update ~parked set state = 'retrying' where position = 1")
    ledger = Ledger(lane, store, RelayConfig())
    retry = ledger.claim_retry()
    assert retry is not None
    retry, left = ledger.leave_out(retry, store.contents(retry), Exclusion(topics={"t": "unknown topic"}))
    assert list(left) == []
    store.advance(ledger.lane, mark=retry)
    assert ground.sql("select position, state, reason from ~parked order by position") == [
        (1, "failed", "unknown topic"),
        (2, "waiting", "waits behind a parked message of its key"),
    ]


def test_a_catch_up_passes_over_what_is_parked_already(ground: Ground, store: RelayStore, lane: Lane) -> None:
    """Parked first, then its topic was held: the parked ones are sent by a retry, and by nothing else."""
    held = ground.add(4, topic="held")
    batch = next_batch(lane, 4, messages=4)
    lane = store.advance(lane, claim=batch)
    batch = store.exclude(lane, batch, Exclusion(failed={1: "too large"}, waiting={2: "waits"}))
    batch = store.exclude(lane, batch, Exclusion(topics={"held": "no right to it"}))
    lane = store.advance(lane, mark=batch)
    (hold,) = store.holds(lane)
    assert hold.start == 0
    piece = store.read(lane, hold.start, lane.covered, 10, 10_000, hold)
    assert ids(piece.rows) == held[2:]
    catch = next_batch(
        lane, piece.upto, after=0, kind=BatchKind.TOPIC, topic="held", covered=lane.covered, messages=2
    )
    lane = store.advance(lane, claim=catch)
    assert ids(store.contents(catch)) == held[2:]


def test_a_key_however_large_is_parked_and_freed(ground: Ground, store: RelayStore, lane: Lane) -> None:
    large = os.urandom(1_000_000).hex()  # no index takes it, and no compression helps
    ground.add(2, key=large)
    batch = next_batch(lane, 2, messages=2)
    lane = store.advance(lane, claim=batch)
    batch = store.exclude(lane, batch, Exclusion(failed={1: "too large"}, waiting={2: "waits"}))
    lane = store.advance(lane, mark=batch)
    assert store.held_keys(lane) == {("t", large.encode()): 1}
    retry = next_batch(lane, lane.covered, kind=BatchKind.RETRY)
    assert store.claim_retry(lane, retry, 10)[1] is None
    ground.sql("update ~parked set state = 'retrying' where position = 1")
    claimed = store.claim_retry(lane, retry, 10)[1]
    assert claimed is not None
    assert claimed.messages == 2


def test_what_is_parked_already_stays_as_it_is(ground: Ground, store: RelayStore, lane: Lane) -> None:
    """A batch cut anew may name a message again: neither its state nor what an operator did to it is lost."""
    ground.add(3)
    batch = next_batch(lane, 3, messages=3)
    lane = store.advance(lane, claim=batch)
    batch = store.exclude(lane, batch, Exclusion(failed={1: "too large"}, waiting={2: "waits"}))
    ground.sql("update ~parked set state = 'discarded' where position = 1")
    batch = store.exclude(lane, batch, Exclusion(failed={1: "again", 2: "again"}))
    lane = store.advance(lane, mark=batch, claim=next_batch(lane, 3), waiting={2: "again", 3: "waits"})
    assert ground.sql("select position, state, reason from ~parked order by position") == [
        (1, "discarded", "too large"),
        (2, "waiting", "waits"),
        (3, "waiting", "waits"),
    ]


def test_a_retry_waits_for_what_is_held_before_it(ground: Ground, store: RelayStore, lane: Lane) -> None:
    """Its key's earlier messages are held with their topic: they go first, by the catch-up."""
    held = ground.add(3, topic="held")
    batch = next_batch(lane, 3, messages=3)
    lane = store.advance(lane, claim=batch)
    batch = store.exclude(lane, batch, Exclusion(failed={2: "too large"}, waiting={3: "waits"}))
    batch = store.exclude(lane, batch, Exclusion(topics={"held": "no right to it"}))
    lane = store.advance(lane, mark=batch)
    ground.sql("update ~parked set state = 'retrying' where position = 2")
    retry = next_batch(lane, lane.covered, kind=BatchKind.RETRY)
    assert store.claim_retry(lane, retry, 10)[1] is None
    store.update_hold(lane, Hold("held", HoldState.CATCHING_UP, 0, "put right"))
    assert store.claim_retry(lane, retry, 10)[1] is None
    catch = next_batch(lane, 3, after=0, kind=BatchKind.TOPIC, topic="held", covered=3, messages=1)
    lane = store.advance(lane, claim=catch)
    assert ids(store.contents(catch)) == held[:1]
    lane = store.advance(lane, mark=catch)
    lane, claimed = store.claim_retry(lane, next_batch(lane, lane.covered, kind=BatchKind.RETRY), 10)
    assert claimed is not None
    assert ids(store.contents(claimed)) == held[1:]


def test_a_batch_is_adopted_by_another_mode_under_its_version(
    ground: Ground, store: RelayStore, lane: Lane
) -> None:
    ground.add(2)
    batch = next_batch(lane, 2, messages=2, mode=Mode.CALLBACK)
    lane = store.advance(lane, claim=batch)
    adopted = store.adopt(lane, batch, Mode.TRANSACTIONAL)
    (unsent,) = store.unsent(lane)
    assert replace(unsent, age_s=0.0) == adopted
    assert (adopted.mode, adopted.version) == (Mode.TRANSACTIONAL, batch.version + 1)
    with pytest.raises(Stale):
        store.adopt(lane, batch, Mode.SYNC)
    with pytest.raises(Stale):
        store.adopt(replace(lane, epoch=lane.epoch - 1), adopted, Mode.SYNC)
