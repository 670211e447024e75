"""P13: a relay stopped past its lease, its lane taken over and finished, then woken: it is fenced and adds nothing."""

from __future__ import annotations

import pytest

from tests.journal import LogRecord
from tests.relay.ground import Ground
from tests.waiting import wait_for


@pytest.mark.parametrize("point", ["relay.before_kafka_commit", "relay.before_mark", "relay.after_claim"])
def test_a_zombie_is_fenced_and_adds_nothing(ground: Ground, point: str) -> None:
    ground.add(200)
    with ground.relay(crash_point=f"{point}:3:stop") as zombie:
        zombie.wait_stopped()
        in_doubt = ground.value("select count(*) from tallymark.batches where state = 'sending'")
        assert in_doubt in (1, 2), "one on its way, and behind it perhaps one that is only claimed"
        with ground.relay(lease_seconds=3) as successor:
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
            assert successor.wait(30) == 0, successor.output
        assert zombie.is_alive(), zombie.output
        assert "Traceback" not in zombie.output, zombie.output
        # The same process takes the lane again, now rightfully, with a new epoch.
        ground.add(50)
        ground.wait_sent()
        zombie.terminate()
        assert zombie.wait(30) == 0, zombie.output
    found = ground.compare()
    assert found.expected == 300
    assert found.is_clean, found
    # Not even an aborted copy came from the zombie after it woke.
    after = ground.log(committed=False)
    assert _places(before) <= _places(after)
    fresh = [r for r in after if r.position <= 200 and (r.partition, r.offset) not in _places(before)]
    assert fresh == []


@pytest.mark.parametrize("mode", ["callback", pytest.param("sync", marks=pytest.mark.full)])
def test_a_zombie_without_transactions_marks_nothing(ground: Ground, mode: str) -> None:
    """Nothing fences its producer: what it had in hand may come twice; its marks and claims change nothing."""
    ground.add(200)
    with ground.relay(mode=mode, crash_point="relay.before_mark:1:stop") as zombie:
        zombie.wait_stopped()
        with ground.relay(mode=mode, lease_seconds=3):
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
