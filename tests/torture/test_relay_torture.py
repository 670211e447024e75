"""P1, P2, P3 under random kills: nothing missing, nothing twice, order kept."""

from __future__ import annotations

import pytest

from tallymark.local.cluster import LocalCluster
from tests.torture.relay import Plan, Result, torture


def _check(result: Result) -> None:
    assert not result.faults, result.as_json()
    assert result.verdict.messages > 100, "the writers did next to nothing"
    assert result.kills > 0


@pytest.mark.full
@pytest.mark.timeout(300)
def test_relays_killed_stopped_and_cut_off_lose_and_double_nothing(cluster: LocalCluster) -> None:
    _check(torture(cluster, Plan(seconds=12, seed=1, relays=2, writers=3, spare=("broker", "postgres"))))


@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [11, 12])
def test_relays_brokers_and_postgres_killed_lose_and_double_nothing(cluster: LocalCluster, seed: int) -> None:
    _check(torture(cluster, Plan(seconds=120, seed=seed)))
