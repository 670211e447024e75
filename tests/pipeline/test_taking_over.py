"""Taking over from one that does not end: stopped, or on a machine that hangs. What it has begun must not hold us up."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

from tallymark.inbox.ports import Wanted
from tallymark.lifecycle import OwnerKind
from tallymark.pipeline.effects import NoEffect
from tallymark.pipeline.runs import new_run
from tallymark.pipeline.station import IngestStation, Job
from tallymark.store.postgres.connection import connect
from tallymark.store.postgres.inboxstore import PostgresInboxStore, application_of
from tallymark.store.postgres.pipelinestore import PipelineStore
from tests.inbox.ground import Ground
from tests.pipeline.grounds import Run, pipeline
from tests.waiting import wait_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OWNER = "elsewhere:1:0123456789-00000000"
TABLES = "select count(*) from pg_tables where tablename = %s"
LEASES = "select count(*) from tallymark.positions where lease_until > clock_timestamp()"


@pytest.fixture
def left(inbox_ground: Ground) -> Iterator[str]:
    """A staging table of a run whose lease has run out, and that holds the positions still."""
    ground = inbox_ground
    inbox = PostgresInboxStore(ground.url, ground.name)
    wanted = [Wanted(ground.topic, partition, "", 0) for partition in range(3)]
    inbox.take(OWNER, OwnerKind.SPARK, 0.01, wanted)
    run = new_run()
    store = PipelineStore(ground.url, lambda: inbox, schema="tallymark", consumer=ground.name, run=run)
    store.begin(OWNER, [ground.topic], "local")
    wait_for(lambda: ground.value(LEASES) == 0, what="its lease has run out")
    yield f"staging_{run}"
    inbox.close()


@contextmanager
def taken(ground: Ground) -> Iterator[None]:
    """A run that has come to have the positions and its tables, as it does before Spark is started."""
    job = Job(ground.name, (ground.topic,), NoEffect([ground.topic]))
    client, stop = {"bootstrap.servers": ground.servers}, threading.Event()
    station = IngestStation(job, client, ground.url, stop=stop, lease_s=2.0)
    try:
        station.take("local")
        assert len(station.positions()) == 3
        yield
    finally:
        station.close()


@pytest.mark.timeout(60)
def test_what_a_stopped_run_holds_is_taken_from_it(inbox_ground: Ground, left: str) -> None:
    """Its driver in the middle of a commit, with rows of the positions locked; a task of it in the middle of a COPY."""
    ground, driver = inbox_ground, f"{application_of(OWNER)}, {inbox_ground.name} commit"[:63]
    commit = connect(ground.url, application=driver, autocommit=False)
    commit.execute("update tallymark.positions set next_offset = next_offset")
    commit.execute(f"delete from tallymark.{left}".encode())
    task = connect(ground.url, application="tallymark pipeline task")
    task.pgconn.exec_(f"copy tallymark.{left} (id) from stdin".encode())
    with taken(ground):
        assert ground.value(TABLES, left) == 0
        pids = [commit.info.backend_pid, task.info.backend_pid]
        alive = "select count(*) from pg_stat_activity where pid = any(%s)"
        wait_for(lambda: ground.value(alive, pids) == 0, what="their sessions were ended")
    for each in (commit, task):
        each.close()


def test_a_service_takes_what_a_stopped_run_holds_too(inbox_ground: Ground, left: str) -> None:
    """One that is no instance any more, so that nobody looks whether it has lapsed."""
    ground, driver = inbox_ground, f"{application_of(OWNER)}, {inbox_ground.name} commit"[:63]
    ground.send(20)
    with closing(psycopg.connect(ground.url, application_name=driver)) as commit:
        commit.execute("update tallymark.positions set next_offset = next_offset")
        with ground.inbox() as service:
            ground.wait_applied(20, service)


@pytest.mark.timeout(60)
def test_what_somebody_else_holds_is_left_to_the_next_run(inbox_ground: Ground, left: str) -> None:
    """A dump, a curious operator: their sessions are not ended, and not waited for."""
    ground = inbox_ground
    with psycopg.connect(ground.url) as curious:
        curious.execute(f"select from tallymark.{left}".encode())
        with taken(ground):
            assert ground.value(TABLES, left) == 1
        curious.execute("select")
    with taken(ground):
        assert ground.value(TABLES, left) == 0


@pytest.mark.full
@pytest.mark.timeout(300)
@pytest.mark.parametrize("taker", ["pipeline", "service"])
def test_a_driver_that_was_stopped_in_its_commit(
    inbox_ground: Ground, spark: SparkSession, tmp_path: Path, taker: str
) -> None:
    """With messages kept, and no position moved yet: from then on the database itself ends it in half a minute."""
    ground = inbox_ground
    ground.send(120)
    with pipeline(
        ground, tmp_path, "--max-offsets", "60", inbox={}, crash_point="apply.mid_handler:90:stop"
    ) as child:
        child.wait_stopped(120)
        wait_for(lambda: ground.value(LEASES) == 0, what="its lease has run out")
        if taker == "pipeline":
            Run(ground, spark).start().result(60)
        else:
            with ground.inbox() as service:
                ground.wait_applied(120, service)
        assert ground.compare().is_clean
        child.cont()
        child.wait(120)
        assert "Traceback" not in child.output
    assert ground.compare().is_clean
