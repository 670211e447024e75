"""At Spark's width: a standalone cluster ingests and archives a long log, and loses a worker under each.

TALLYMARK_TEST_MESSAGES says how long (300,000 unless told; 5 million takes some minutes):

    TALLYMARK_TEST_MESSAGES=5000000 .venv/bin/python -m pytest tests/pipeline/test_width.py -s
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from bench.filled import fill

from tallymark.local.cluster import LocalCluster
from tests.children import Child
from tests.conftest import MakeTopic
from tests.inbox.ground import Ground
from tests.pipeline import marks
from tests.pipeline.archiving import Ground as Archiving
from tests.pipeline.grounds import pipeline
from tests.pipeline.standalone import standalone
from tests.waiting import wait_for

__all__ = ["standalone"]

MESSAGES = int(os.environ.get("TALLYMARK_TEST_MESSAGES", "300000"))
PARTITIONS = 6
# So that a worker dies in the midst of things however many there are.
BATCHES = 5
# An effect that can be told from one made twice.
APPLY = "insert into counted (messages) select count(*) from {batch}"
WITHIN = 120 + MESSAGES / 5_000


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_inbox_log_and_archive_are_the_same_though_workers_are_killed(
    standalone: LocalCluster, inbox_ground: Ground, make_topic: MakeTopic, tmp_path: Path
) -> None:
    ground = inbox_ground
    ground.topic = make_topic(PARTITIONS)
    ground.query("create table counted (messages bigint)")
    with told("filled"):
        fill(ground.servers, ground.topic, MESSAGES)
    batch = ("--max-offsets", str(min(200_000, MESSAGES // BATCHES)))
    with (
        told("ingested"),
        pipeline(ground, tmp_path, *batch, sql=APPLY, master=standalone.spark.url, lease_seconds=10) as child,
    ):
        wait_for(
            lambda: at_work(ground, child), within=WITHIN, what="tasks load the second batch or a later one"
        )
        lose_a_worker(standalone, child)
        assert child.wait(WITHIN) == 0, child.output
    standalone.up()
    archiving = Archiving(ground.servers, tmp_path / "archive", [ground.topic])
    # What compaction replaces goes at once: afterwards there is nothing but what counts.
    options = ("--max-offsets", str(min(1_000_000, MESSAGES // BATCHES)), "--grace", "0")
    with told("archived"), archiving.child("--available-now", *options, master=standalone.spark.url) as child:
        wait_for(lambda: writing(archiving, child), within=WITHIN, what="tasks write a batch")
        lose_a_worker(standalone, child)
        assert child.wait(WITHIN) == 0, child.output
        assert json.loads(child.output.splitlines()[-1])["rows"] == MESSAGES
    with told("compared"):
        log = marks.in_the_log(ground.servers, ground.topic, MESSAGES)
        inbox = marks.in_the_inbox(ground.url, ground.name)
        archive = marks.in_the_archive(archiving.files())
    assert len(log) == log.distinct == MESSAGES
    assert inbox.differs_from(log) is None
    assert archive.differs_from(log) is None
    assert not archiving.strays()
    assert ground.value("select sum(messages) from counted") == MESSAGES
    assert ground.value("select count(*) from tallymark.applications") == MESSAGES
    assert ground.value("select sum(kept) from tallymark.ingested") == MESSAGES
    standalone.up()


def at_work(ground: Ground, child: Child) -> bool:
    """A batch was committed, and tasks load another."""
    assert child.is_alive(), child.output
    return bool(
        ground.value(
            "select exists (select from tallymark.ingested) and exists (select from pg_stat_activity"
            " where datname = current_database() and application_name = 'tallymark pipeline task' and state = 'active')"
        )
    )


def writing(archiving: Archiving, child: Child) -> bool:
    assert child.is_alive(), child.output
    return any(path.stat().st_size for path in (archiving.folder / "staging").rglob("*.parquet"))


def lose_a_worker(standalone: LocalCluster, child: Child) -> None:
    """kill -9 of a worker; its executor, which is its child, dies with it."""
    standalone.process("spark-worker-1").kill()
    assert child.is_alive(), child.output


@contextmanager
def told(what: str) -> Iterator[None]:
    """How long a part took, for whoever runs this with -s."""
    began = time.monotonic()
    yield
    print(f"{MESSAGES:,} messages {what} in {time.monotonic() - began:,.1f} s")
