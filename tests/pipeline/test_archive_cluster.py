"""The archive on a real standalone Spark, a worker of it killed in mid-batch."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from confluent_kafka import Producer

from tallymark.local.cluster import LocalCluster
from tests.conftest import MakeTopic
from tests.pipeline.archiving import Ground
from tests.pipeline.standalone import standalone
from tests.waiting import wait_for

__all__ = ["standalone"]

MANY = 300_000


@pytest.fixture
def ground(make_topic: MakeTopic, bootstrap_servers: str, tmp_path: Path) -> Ground:
    return Ground(bootstrap_servers, tmp_path / "archive", [make_topic(6)])


def fill(ground: Ground, count: int) -> None:
    producer = Producer({"bootstrap.servers": ground.servers, "acks": "all", "linger.ms": 20, "log_level": 0})
    for number in range(count):
        while True:
            try:
                producer.produce(
                    ground.topics[0],
                    os.urandom(150),
                    b"%d" % number,
                    number % 6,
                    headers=[("ce_id", b"%d" % number)],
                )
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(60) == 0


@pytest.mark.full
@pytest.mark.timeout(1500)
def test_a_worker_killed_in_mid_batch_costs_nothing(standalone: LocalCluster, ground: Ground) -> None:
    fill(ground, MANY)
    staging = ground.folder / "staging"
    with ground.child("--available-now", master=standalone.spark.url) as child:
        wait_for(
            lambda: not child.is_alive() or any(path.stat().st_size for path in staging.rglob("*.parquet")),
            within=120,
            what="tasks are writing",
        )
        assert child.is_alive(), child.output
        standalone.process("spark-worker-1").kill()
        assert child.wait(200) == 0, child.output
        done = json.loads(child.output.splitlines()[-1])
    assert done["rows"] == MANY
    assert ground.rows() == ground.log()
    assert not ground.strays()
    standalone.up()
