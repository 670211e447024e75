"""An ingest that goes on until it is told to stop: what it meets on its way, and that it stops."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from confluent_kafka import TopicPartition

from tallymark.broker.kafka import AdminClient
from tallymark.errors import OutcomeUnknown, Problem
from tallymark.inbox.ports import Wanted
from tallymark.lifecycle import OwnerKind
from tallymark.pipeline import batches
from tallymark.pipeline.committing import Committed
from tallymark.pipeline.effects import FunctionEffect, Messages
from tallymark.pipeline.runs import new_run
from tallymark.policy import Backoff
from tallymark.store.postgres.inboxstore import PostgresInboxStore
from tallymark.store.postgres.pipelinestore import PipelineStore
from tests.deleting import deleted
from tests.inbox.ground import Ground, ends
from tests.pipeline.grounds import APPLY, Run
from tests.waiting import wait_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SOON = Backoff(first_s=0.01, cap_s=0.05)


@pytest.fixture
def points(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The crash points that micro-batches have passed."""
    passed: list[str] = []
    monkeypatch.setattr(batches, "reached", passed.append)
    return passed


def paused(ground: Ground, run: Run, told: Future[list[Committed]], *, wanted: bool) -> None:
    ground.query("update tallymark.consumers set paused = %s returning 1", wanted)
    wait_for(lambda: told.done() or run.station.is_paused == wanted, what="the run has heard of it")


def test_told_to_stop_while_it_is_paused_it_applies_nothing_more(
    inbox_ground: Ground, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batch that waited is left for the next run; and the one after it, which finds nobody pausing, with it."""
    ground, points = inbox_ground, list[str]()
    ground.send(30)
    run = Run(ground, spark, available_now=False, interval_s=0.1, max_offsets=15)

    def at(point: str) -> None:
        points.append(point)
        if run.stop.is_set():
            paused(ground, run, told, wanted=False)

    monkeypatch.setattr(batches, "reached", at)
    told = run.start()
    wait_for(lambda: told.done() or ground.applied() == 30, what="what was there is applied")
    at_end = ends(ground.servers, ground.topic, 3)
    wait_for(lambda: told.done() or ground.positions() == at_end, what="markers are passed, too")
    paused(ground, run, told, wanted=True)
    before, seen = ground.positions(), len(points)
    ground.send(40)
    wait_for(lambda: told.done() or len(points) > seen, what="a batch waits")
    run.stop.set()
    told.result(60)
    assert ground.applied() == ground.value("select count(*) from tallymark.inbox") == 30
    assert ground.positions() == before
    ground.query("update tallymark.consumers set paused = false returning 1")
    assert sum(each.applied for each in Run(ground, spark)()) == 40
    assert ground.compare().is_clean


def test_a_run_that_was_fenced_makes_its_tables_again(inbox_ground: Ground, spark: SparkSession) -> None:
    """Another run had the positions for a moment, and cleared away what it took for left behind."""
    ground = inbox_ground
    ground.send(150)
    run = Run(ground, spark, max_offsets=60, backoff=SOON)
    store = PostgresInboxStore(ground.url, ground.name)
    wanted = [Wanted(ground.topic, partition, "", 0) for partition in range(3)]
    other = "elsewhere:1:x"
    fenced: list[int] = []

    def taken() -> bool:
        ground.query("update tallymark.positions set lease_until = now() - interval '1 s' returning 1")
        return not any(each.refused for each in store.take(other, OwnerKind.SPARK, 60, wanted))

    def fence(_done: Committed) -> None:
        if not fenced:
            wait_for(taken, what="the other one has all of them")
            late = PipelineStore(
                ground.url, lambda: store, schema="tallymark", consumer=ground.name, run=new_run()
            )
            late.begin(other, [ground.topic], "local")
            tables = "select count(*) from pg_tables where tablename like 'staging!_%' escape '!'"
            fenced.append(ground.value(tables))
            late.end(None)
            store.leave(other)

    run.note = fence
    run()
    store.close()
    assert fenced == [2], "its own were dropped"
    assert ground.compare().is_clean
    assert ground.value("select sum(kept) from tallymark.positions") == 150


def ending_sessions(ground: Ground, *, above: int) -> FunctionEffect:
    """Applies, unless there are more than so many: then its session is ended, as by a transaction_timeout."""

    def apply(tx: Any, batch: Messages) -> None:
        if batch.count > above:
            with psycopg.connect(ground.url) as other:
                other.execute("select pg_terminate_backend(%s, 5000)", [tx.info.backend_pid])
        tx.execute(APPLY.replace("{batch}", batch.relation))

    return FunctionEffect(apply, [ground.topic])


@pytest.mark.full
def test_batches_whose_commits_lose_their_session_get_smaller(
    inbox_ground: Ground, spark: SparkSession
) -> None:
    ground = inbox_ground
    ground.send(150)
    effect = ending_sessions(ground, above=50)
    done = Run(ground, spark, effect, max_offsets=200, min_offsets=10, backoff=SOON)()
    assert sum(each.applied for each in done) == 150
    assert all(each.read <= 50 for each in done)
    assert ground.compare().is_clean


def test_commits_that_always_lose_their_session_end_the_run(
    inbox_ground: Ground, spark: SparkSession
) -> None:
    """However often Spark tells that it has read something."""
    ground = inbox_ground
    ground.send(90)
    effect = ending_sessions(ground, above=0)
    options: dict[str, Any] = {
        "available_now": False,
        "interval_s": 0.1,
        "max_offsets": 30,
        "min_offsets": 30,
    }
    run = Run(ground, spark, effect, patience_s=3, backoff=Backoff(first_s=1.5, cap_s=1.5), **options)
    told = run.start()
    try:
        with pytest.raises(OutcomeUnknown):
            told.result(60)
    finally:
        run.stop.set()
    assert ground.applied() == ground.value("select count(*) from tallymark.inbox") == 0


@pytest.fixture
def no_executors(spark: SparkSession, tmp_path: Path) -> Iterator[None]:
    """Both of the session's slots are taken, by tasks that wait for something to read."""
    names = [str(tmp_path / f"fifo-{number}") for number in range(2)]
    for name in names:
        os.mkfifo(name)

    def wait(name: str) -> None:
        with open(name) as file:
            file.read()

    def hold() -> None:
        try:
            spark.sparkContext.parallelize(names, 2).foreach(wait)
        except Exception:  # noqa: BLE001 - it is cancelled
            return

    thread = threading.Thread(target=hold, daemon=True)
    thread.start()
    held: list[int] = []

    def taken() -> bool:
        try:
            held.append(os.open(names[len(held)], os.O_WRONLY | os.O_NONBLOCK))
        except OSError as error:
            if error.errno != errno.ENXIO:  # nobody reads it yet
                raise
        return len(held) == len(names)

    wait_for(taken, what="both slots are taken")
    yield
    for each in held:
        os.close(each)
    thread.join(60)


@pytest.mark.full
@pytest.mark.usefixtures("no_executors")
def test_told_to_stop_while_no_executor_comes(
    inbox_ground: Ground, spark: SparkSession, points: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is not loaded yet is given up after a while; nothing of it counts."""
    monkeypatch.setattr(batches, "GRACE_S", 2.0)
    ground = inbox_ground
    ground.send(30)
    run = Run(ground, spark)
    told = run.start()
    wait_for(lambda: told.done() or points, what="a batch is to be loaded")
    run.stop.set()
    assert told.result(90) == []
    assert ground.applied() == 0
    assert ground.value("select trouble from tallymark.runs") is None


@pytest.mark.full
def test_retention_passes_the_position_while_it_runs(
    inbox_ground: Ground, spark: SparkSession, admin: AdminClient, points: list[str]
) -> None:
    """Faults S2 and B4: it stops, and names what is gone to the offset."""
    ground = inbox_ground
    ground.send(30)
    run = Run(ground, spark, available_now=False, interval_s=0.1, backoff=SOON)
    told = run.start()
    wait_for(lambda: told.done() or ground.applied() == 30, what="what was there is applied")
    at = ends(ground.servers, ground.topic, 3)
    wait_for(lambda: told.done() or ground.positions() == at, what="markers are passed, too")
    paused(ground, run, told, wanted=True)
    seen = len(points)
    ground.send(90)
    wait_for(lambda: told.done() or len(points) > seen, what="a batch waits")
    deleted(admin, TopicPartition(ground.topic, 1, at[1] + 7))
    ground.query("update tallymark.consumers set paused = false returning 1")
    try:
        with pytest.raises(Problem, match=rf"/1: offsets {at[1]} to {at[1] + 6} were deleted") as caught:
            told.result(120)
    finally:
        run.stop.set()
    assert caught.value.remedy
    assert ground.positions()[1] == at[1]
    halted = ground.query("select partition from tallymark.positions where halted is not null")
    assert halted == [(1,)]
    kept = ground.value("select count(*) from tallymark.inbox")
    assert ground.applied() == kept, "nothing is half-done"
