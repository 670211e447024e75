"""P1 to P5 under random kills, end to end: each message's effect once, in order, sums right."""

from __future__ import annotations

import pytest

from tallymark.local.cluster import LocalCluster
from tests.torture.journey import JourneyPlan, JourneyResult, torture_journey


def _check(result: JourneyResult) -> None:
    assert not result.faults, result.as_json()
    assert result.applied.messages > 100, "the producers did next to nothing"
    assert result.kills > 0


@pytest.mark.timeout(400)
@pytest.mark.full
@pytest.mark.parametrize("mode", ["inline", "deferred"])
def test_inboxes_killed_stopped_and_cut_off_apply_each_message_once(cluster: LocalCluster, mode: str) -> None:
    plan = JourneyPlan(
        seconds=12, seed=2, with_relay=False, mode=mode, inboxes=2, writers=2, spare=("broker", "postgres")
    )
    _check(torture_journey(cluster, plan))


@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("seed", "mode"), [(21, "inline"), (22, "deferred")])
def test_the_whole_journey_with_everything_killed(cluster: LocalCluster, seed: int, mode: str) -> None:
    _check(torture_journey(cluster, JourneyPlan(seconds=120, seed=seed, with_relay=True, mode=mode)))
