"""An inbox's end, and the ways of reading that are not the usual one: fixed partitions, positions in Kafka."""

from __future__ import annotations

import signal
import time

import pytest

from tests.inbox.ground import Ground
from tests.waiting import wait_for


@pytest.mark.parametrize("sign", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.full)])
@pytest.mark.parametrize("mode", [pytest.param("inline", marks=pytest.mark.full), "deferred"])
def test_it_ends_within_seconds_under_load(inbox_ground: Ground, mode: str, sign: signal.Signals) -> None:
    ground = inbox_ground
    ground.send(500)
    with ground.inbox(mode=mode, takes=0.1) as child:
        ground.wait_applied(5, child)
        told = time.monotonic()
        child.terminate(sign)
        assert child.wait(60) == 0, child.output
        assert time.monotonic() - told < 20, "to finish them all would take longer"
        assert "Traceback" not in child.output
    applied = ground.applied()
    assert applied < 500, "it was told too late to show anything"
    # It has left: its partitions are free, and nobody waits for its session.
    assert ground.value("select count(*) from tallymark.positions where owner is not null") == 0
    assert ground.value("select count(*) from tallymark.instances") == 0
    ground.apply_all(500, mode=mode)
    found = ground.compare()
    assert found.is_clean, found


@pytest.mark.parametrize("positions", ["database", pytest.param("kafka", marks=pytest.mark.full)])
def test_fixed_partitions(inbox_ground: Ground, positions: str) -> None:
    """Each process reads its own, and no more; one that was killed is followed at once, without Kafka's wait."""
    ground = inbox_ground
    ground.send(200)
    mine, others = [(ground.topic, 0)], [(ground.topic, 1), (ground.topic, 2)]
    with ground.inbox(assign=mine, positions=positions, crash_point="inbox.after_commit:1") as child:
        assert child.wait() == -signal.SIGKILL, child.output
    assert {row[0] for row in ground.query("select distinct partition from tallymark.inbox")} == {0}
    with (
        ground.inbox(assign=mine, positions=positions) as one,
        ground.inbox(assign=others, positions=positions) as other,
    ):
        ground.wait_applied(200, one, other)
        for child in (one, other):
            child.terminate()
        for child in (one, other):
            assert child.wait() == 0, child.output
    found = ground.compare()
    assert found.is_clean, found


def test_positions_in_kafka_go_on_where_they_were_committed(inbox_ground: Ground) -> None:
    ground = inbox_ground
    ground.send(100)
    output = ground.apply_all(100, positions="kafka")
    assert "is not stopped from writing" in output, "what it costs is said at the start"
    ground.query(
        "delete from tallymark.inbox"
    )  # what is read a second time would now be applied a second time
    ground.send(50)
    ground.apply_all(150, positions="kafka")
    found = ground.compare()
    assert found.is_clean, found


def test_it_stands_ready_before_there_is_anything(inbox_ground: Ground) -> None:
    with inbox_ground.inbox() as child:
        wait_for(lambda: len(inbox_ground.positions()) == 3, what="it has its partitions")
        inbox_ground.send(1)
        inbox_ground.wait_applied(1, child)
