"""P1, P2, P3: a relay killed at each of its crash points, then another one; outbox and log are compared by id.

`transactional`: nothing missing, nothing twice, order kept, every time. `callback` and `sync`: nothing missing, order
kept, and what stands twice comes from batches that were on their way when the relay died: no more than those.
"""

from __future__ import annotations

import signal
from typing import Any

import pytest

from tallymark.lifecycle import Mode
from tallymark.policy import ModePolicy
from tests import journal
from tests.children import Child
from tests.relay.conftest import MakeGround
from tests.relay.ground import Ground

MESSAGES = 300
BATCH = 40
LANES = 2

# Where no Kafka transaction is, there is no commit to crash at.
IN_A_TRANSACTION = ("relay.before_kafka_commit", "relay.after_kafka_commit")
EVERYWHERE = (
    "relay.before_claim",
    "relay.after_claim",
    "relay.mid_produce",
    "relay.before_mark",
    "relay.after_mark",
)
AT_LEAST_ONCE = [(mode, point) for mode in (Mode.CALLBACK, Mode.SYNC) for point in EVERYWHERE]
# The two at which most is on its way: everything acknowledged and nothing marked; a batch half handed over.
SAMPLE = {
    (Mode.CALLBACK, "relay.before_mark"),
    (Mode.CALLBACK, "relay.mid_produce"),
    (Mode.SYNC, "relay.before_mark"),
    (Mode.SYNC, "relay.mid_produce"),
}


@pytest.mark.parametrize("point", EVERYWHERE + IN_A_TRANSACTION)
def test_transactional_loses_nothing_doubles_nothing_and_keeps_order(
    make_ground: MakeGround, point: str
) -> None:
    ground = make_ground(lanes=LANES)
    ground.add(MESSAGES)
    # Each lane's first batch is its empty first receipt: past these, with some messages sent and some not.
    count = 2 if point == "relay.mid_produce" else 2 * LANES
    _crash(ground, Mode.TRANSACTIONAL, f"{point}:{count}")
    assert not journal.all_sent(ground.url), "the crash came too late to show anything"
    ground.send_all(mode="transactional", batch_messages=BATCH)
    found = ground.compare()
    assert found.expected == MESSAGES
    assert found.is_clean, found


def test_copies_of_an_aborted_transaction_are_there_for_whoever_reads_uncommitted(ground: Ground) -> None:
    """Pitfall 26: once in the log is what a read_committed reader sees, and only such a one."""
    ground.add(BATCH)
    _crash(ground, Mode.TRANSACTIONAL, "relay.before_kafka_commit:2")
    assert len(ground.log(committed=False)) == BATCH
    assert ground.log() == []
    ground.send_all(mode="transactional", batch_messages=BATCH)
    found = ground.compare()
    assert (found.expected, found.is_clean) == (BATCH, True), found
    aborted = ground.compare(committed=False).doubled
    assert (len(aborted), set(aborted.values())) == (BATCH, {1})


def test_two_batches_in_doubt_are_told_apart_by_the_last_receipt(ground: Ground) -> None:
    """The last two of a burst: the second is committed in Kafka before the first is marked, and both are in doubt.

    Just two, and no more behind them: a third one's claim would mark the first in time.
    """
    in_doubt = 0
    for number in range(5):
        ground.add(2 * BATCH)
        # The very first batch is the lane's empty one.
        _crash(ground, Mode.TRANSACTIONAL, f"relay.after_kafka_commit:{2 if number else 3}")
        in_doubt = ground.value("select count(*) from tallymark.batches where state = 'sending'")
        if in_doubt == 2:
            break
        # A machine so slow that a look for retries came in between: that marks the first one.
        ground.send_all(mode="transactional", batch_messages=BATCH)
    assert in_doubt == 2
    ground.send_all(mode="transactional", batch_messages=BATCH)
    assert ground.value("select count(*) from tallymark.lanes where halted is not null") == 0
    assert ground.compare().is_clean


@pytest.mark.parametrize(
    ("mode", "point"),
    [
        pytest.param(*case, marks=() if case in SAMPLE else pytest.mark.full, id="-".join(case))
        for case in AT_LEAST_ONCE
    ],
)
def test_at_least_once_loses_nothing_and_doubles_only_what_was_on_its_way(
    make_ground: MakeGround, mode: Mode, point: str
) -> None:
    ground = make_ground(lanes=LANES)
    ground.add(MESSAGES)
    # A heartbeat that comes late is a lease that ran out, and then its batch is sent again: that is not what we count.
    _crash(ground, mode, f"{point}:2", lease_seconds=60)
    ground.query("delete from tallymark.relays")
    ground.query("update tallymark.lanes set owner = null, lease_until = null")
    in_flight = _on_their_way(ground)
    assert len(in_flight) <= ModePolicy.of(mode).in_flight * BATCH * LANES
    ground.send_all(mode=str(mode), batch_messages=BATCH, lease_seconds=60)
    found = ground.compare()
    assert (found.expected, found.missing, found.reordered) == (MESSAGES, frozenset(), ()), found
    assert found.doubled.keys() <= in_flight, "something was sent again that had been marked"
    assert all(extra == 1 for extra in found.doubled.values()), found.doubled
    if point == "relay.before_mark":  # all of a batch was acknowledged and nothing marked: it is sent again
        assert found.doubled


@pytest.mark.parametrize("mode", [Mode.CALLBACK, pytest.param(Mode.SYNC, marks=pytest.mark.full)])
def test_a_batch_in_doubt_of_one_mode_is_settled_by_a_relay_of_another(ground: Ground, mode: Mode) -> None:
    """A transaction that committed and was not marked is not sent again, whatever the next relay's mode is."""
    ground.add(100)
    _crash(ground, Mode.TRANSACTIONAL, "relay.after_kafka_commit:2")
    # Behind the one in doubt, another may be claimed and not sent.
    assert len(_on_their_way(ground)) in (BATCH, 2 * BATCH)
    ground.send_all(mode=str(mode), batch_messages=BATCH)
    assert ground.compare().is_clean
    ground.add(100)
    ground.send_all(mode="transactional", batch_messages=BATCH)
    assert ground.compare().is_clean


def test_a_batch_sent_again_in_a_transaction_is_settled_as_one(ground: Ground) -> None:
    """Claimed in one mode, sent in another: whoever finds it in doubt next goes by what it was sent as."""
    ground.add(60)
    _crash(ground, Mode.CALLBACK, "relay.after_claim")
    _crash(ground, Mode.TRANSACTIONAL, "relay.after_kafka_commit")
    ground.send_all(mode="callback", batch_messages=BATCH)
    assert ground.compare().is_clean
    ground.add(60)
    ground.send_all(mode="transactional", batch_messages=BATCH)
    assert ground.compare().is_clean


@pytest.mark.full
def test_crash_after_crash_after_crash(make_ground: MakeGround) -> None:
    """Relays die one after the other while messages keep coming, two of them while they settle."""
    ground = make_ground(lanes=LANES)
    for point in ("relay.mid_produce:2", "relay.after_kafka_commit:1", "relay.before_mark:1"):
        ground.add(MESSAGES // 3)
        _crash(ground, Mode.TRANSACTIONAL, point)
    ground.send_all(batch_messages=BATCH)
    found = ground.compare()
    assert found.is_clean, found


def _crash(ground: Ground, mode: Mode, point: str, **settings: Any) -> None:
    with ground.relay(mode=str(mode), batch_messages=BATCH, crash_point=point, **settings) as relay:
        _wait_killed(relay)


def _wait_killed(relay: Child) -> None:
    assert relay.wait() == -signal.SIGKILL, relay.output


def _on_their_way(ground: Ground) -> set[str]:
    """Ids in batches that are claimed and not marked."""
    rows = ground.query(
        """
        select o.id::text from tallymark.batches b, tallymark.outbox_identity i, tallymark.outbox o
         where b.state = 'sending' and mod(o.slot, i.lanes) = b.lane
           and o.position > b.after_position and o.position <= b.upto
        """
    )
    return {row[0] for row in rows}
