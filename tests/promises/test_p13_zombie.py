"""P13: a relay stopped past its lease, its lane taken over and finished, then woken: it is fenced and adds nothing."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

import pytest

from tallymark.lifecycle import BatchKind, Mode
from tallymark.relay.ports import Batch, Refused, Row, Sent, TopicRecord, Unknown
from tests.journal import LogRecord
from tests.relay.ground import Ground
from tests.waiting import wait_for


# The third time is in the midst of 200 messages, and with the last of 100.
@pytest.mark.parametrize(
    ("point", "messages"),
    [
        pytest.param("relay.after_claim", 200, marks=pytest.mark.full),
        pytest.param("relay.mid_produce", 200, marks=pytest.mark.full),
        pytest.param("relay.before_flush", 200, marks=pytest.mark.full),
        pytest.param("relay.before_flush", 100, marks=pytest.mark.full),
        ("relay.before_kafka_commit", 200),
        ("relay.before_mark", 200),
    ],
)
def test_a_zombie_is_fenced_and_adds_nothing(ground: Ground, point: str, messages: int) -> None:
    ground.add(messages)
    with ground.relay(crash_point=f"{point}:3:stop") as zombie:
        zombie.wait_stopped()
        in_doubt = ground.value("select count(*) from tallymark.batches where state = 'sending'")
        assert in_doubt in (1, 2), "one on its way, and behind it perhaps one that is only claimed"
        with ground.relay(lease_seconds=30) as successor:
            ground.wait_sent()
            before = ground.log(committed=False)
            zombie.cont()
            zombie.wait_output("another relay has taken it over")
            wait_for(
                lambda: ground.value("select sum(fenced) from tallymark.lanes") >= 1,
                what="the zombie's attempt is counted",
            )
            # What comes after it goes through: the successor was not harmed by the zombie's waking.
            ground.add(50)
            ground.wait_sent()
            successor.terminate()
            assert successor.wait() == 0, successor.output
            assert "tries again" not in successor.output, "the zombie fenced the rightful owner"
        assert zombie.is_alive(), zombie.output
        assert "Traceback" not in zombie.output, zombie.output
        # The same process takes the lane again, now rightfully, with a new epoch.
        ground.add(50)
        ground.wait_sent()
        zombie.terminate()
        assert zombie.wait() == 0, zombie.output
    found = ground.compare()
    assert found.expected == messages + 100
    assert found.is_clean, found
    # Not even an aborted copy: the coordinator refuses to add partitions for a fenced producer, and where they were
    # added already, the abort that came with the fence has told their leaders.
    after = ground.log(committed=False)
    assert _places(before) <= _places(after)
    fresh = [r for r in after if r.position <= messages and (r.partition, r.offset) not in _places(before)]
    assert fresh == []


def test_a_closed_publisher_fences_nobody_and_sends_nothing(ground: Ground) -> None:
    """Its commit may still be under way in a thread when a lane is left: it must not ask Kafka why it was refused."""
    ground.add(20)
    kafka, store = ground.kafka(), ground.store()
    store.record_receipts_topic(kafka.prepare_receipts(store.identity()))
    lane = store.take("test", 60)
    assert lane is not None
    rows = store.read(lane, 0, 20, 20, 1_000_000).rows
    batch = Batch(lane.lane, 0, str(uuid.uuid4()), BatchKind.RANGE, 0, 20, 20, Mode.TRANSACTIONAL, len(rows))
    record = TopicRecord(ground.topic, "", 3, 1_048_588)
    old, new = (kafka.publisher(store.identity(), lane.lane, Mode.TRANSACTIONAL, [record]) for _ in range(2))
    old.fence()
    old.send(batch, rows)
    old.close()
    new.fence()
    new.send(batch, rows)
    assert isinstance(old.finish(), Refused | Unknown)
    assert isinstance(new.finish(), Sent)
    new.close()
    store.close()
    assert ground.compare().is_clean


@pytest.mark.parametrize("committed", [0, 1])
def test_whichever_producer_is_open_is_fenced_with_the_lane(ground: Ground, committed: int) -> None:
    """A lane's batches take two producers in turn: after an odd as after an even number, the open one is shut out."""
    ground.add(30)
    kafka, store = ground.kafka(), ground.store()
    identity = store.identity()
    store.record_receipts_topic(kafka.prepare_receipts(identity))
    lane = store.take("test", 60)
    assert lane is not None
    record = TopicRecord(ground.topic, "", 3, 1_048_588)
    old, new = (kafka.publisher(identity, lane.lane, Mode.TRANSACTIONAL, [record]) for _ in range(2))

    def batch(number: int) -> tuple[Batch, Sequence[Row]]:
        after, upto = number * 10, number * 10 + 10
        rows = store.read(lane, after, upto, 10, 1_000_000).rows
        token = str(uuid.uuid4())
        return Batch(
            lane.lane, number, token, BatchKind.RANGE, after, upto, upto, Mode.TRANSACTIONAL, 10
        ), rows

    old.fence()
    for number in range(committed):
        old.send(*batch(number))
        assert isinstance(old.finish(), Sent)
    old.send(*batch(committed))
    new.fence()
    assert isinstance(old.finish(), Refused | Unknown)
    last = new.last_receipt(None)
    assert (last.number if last else -1) == committed - 1
    for number in range(committed, 3):
        new.send(*batch(number))
        assert isinstance(new.finish(), Sent)
    old.close()
    new.close()
    store.close()
    assert ground.compare().is_clean


@pytest.mark.parametrize("mode", ["callback", pytest.param("sync", marks=pytest.mark.full)])
def test_a_zombie_without_transactions_marks_nothing(ground: Ground, mode: str) -> None:
    """Nothing fences its producer: what it had in hand may come twice; its marks and claims change nothing."""
    ground.add(200)
    with ground.relay(mode=mode, crash_point="relay.before_mark:1:stop") as zombie:
        zombie.wait_stopped()
        with ground.relay(mode=mode, lease_seconds=30):
            ground.wait_sent()
            marked = ground.query(
                "select number, version, owner, sent_at from tallymark.batches order by number"
            )
            zombie.cont()
            zombie.wait_output("another relay has taken it over")
            wait_for(
                lambda: ground.value("select sum(fenced) from tallymark.lanes") >= 1,
                what="the zombie's attempt is counted",
            )
        assert marked == ground.query(
            "select number, version, owner, sent_at from tallymark.batches order by number"
        )
    found = ground.compare()
    assert (found.missing, found.reordered) == (frozenset(), ())


def _places(records: list[LogRecord]) -> set[tuple[int, int]]:
    return {(r.partition, r.offset) for r in records}
