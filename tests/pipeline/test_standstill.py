"""A cluster that has nobody for us: that it is so is said, and once."""

from __future__ import annotations

import pytest

from tallymark.local.cluster import LocalCluster
from tallymark.pipeline.standstill import Standstill
from tests.conftest import MakeTopic
from tests.pipeline.archiving import Ground
from tests.pipeline.standalone import standalone

__all__ = ["standalone"]


def test_it_is_said_once_until_tasks_run_again() -> None:
    seen = Standstill()
    waits = [seen.saw(waiting=True, running=False, now=now) for now in (0, 10, 19, 21, 30)]
    assert waits == [None, None, None, 21, None]
    assert seen.saw(waiting=True, running=True, now=31) is None
    again = [seen.saw(waiting=True, running=False, now=now) for now in (32, 50, 53)]
    assert again == [None, None, 21]


def test_between_two_batches_nobody_has_to_work() -> None:
    seen = Standstill()
    looks = [(0, True), (15, False), (20, True), (39, True), (41, True)]
    said = [seen.saw(waiting=waiting, running=False, now=now) for now, waiting in looks]
    assert said == [None, None, None, None, 21]


@pytest.mark.full
def test_a_cluster_without_room_is_named(
    standalone: LocalCluster,
    make_topic: MakeTopic,
    bootstrap_servers: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    ground = Ground(bootstrap_servers, tmp_path_factory.mktemp("archive"), [make_topic(3)])
    ground.send(30)
    much = ("--conf", "spark.executor.memory=900g")
    with ground.child("--available-now", *much, master=standalone.spark.url) as child:
        child.wait_output("no executor has taken a task of ours for 2", within=120)
        assert f"{standalone.spark.url} has none for us (spark.executor.memory=900g" in child.output
