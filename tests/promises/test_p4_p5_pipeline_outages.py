"""P4, P5, S1: a task, PostgreSQL and a broker die under the pipeline, and a service takes over from it and back."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from confluent_kafka.admin import AdminClient

from tallymark.local.cluster import LocalCluster
from tests.children import Child
from tests.inbox.conftest import MakeInboxGround
from tests.inbox.ground import Ground, ends
from tests.leaders import leader_of
from tests.pipeline.grounds import pipeline
from tests.promises.test_p4_p5_pipeline_crashes import same
from tests.waiting import wait_for

BATCH = ("--max-offsets", "60")
# Long enough for a crowded machine: a heartbeat that comes late is a lease that ran out.
LEASE_S = 10.0


@pytest.mark.full
@pytest.mark.timeout(900)
def test_a_driver_killed_while_a_task_has_loaded_half(inbox_ground: Ground, tmp_path: Path) -> None:
    """The task is stopped in mid-COPY, the driver killed; when the task wakes, nobody counts what it wrote."""
    ground = inbox_ground
    ground.send(200)
    with pipeline(ground, tmp_path, *BATCH, crash_point="pipeline.mid_load:1:stop") as child:
        (task, *_) = wait_for(lambda: stopped_below(child), within=240, what="a task stands still")
        child.kill()
        assert child.wait() == -signal.SIGKILL
        if task.is_running():
            task.send_signal(signal.SIGCONT)
    with pipeline(ground, tmp_path) as child:
        assert child.wait(240) == 0, child.output
    same(ground, 200)


@pytest.mark.full
@pytest.mark.timeout(900)
def test_a_task_killed_between_its_commit_and_its_report(inbox_ground: Ground, tmp_path: Path) -> None:
    """Pitfall 19: its rows are there, and the next attempt's too. One of the two is counted."""
    ground = inbox_ground
    ground.send(200)
    with pipeline(ground, tmp_path, master="local[2,4]", crash_point="pipeline.part_loaded:1:stop") as child:
        (task, *_) = wait_for(lambda: stopped_below(child), within=240, what="a task stands still")
        task.kill()
        wait_for(lambda: gone_on(child), within=240, what="it goes on with another attempt")
        assert child.wait(1) == 0, child.output
    same(ground, 200)


@pytest.mark.full
@pytest.mark.timeout(900)
def test_a_tasks_session_is_ended_in_mid_load(inbox_ground: Ground, tmp_path: Path) -> None:
    """As by a restart or a failover: the query ends, and the next one begins at the positions."""
    ground = inbox_ground
    ground.send(200)
    with pipeline(ground, tmp_path, *BATCH, crash_point="pipeline.mid_load:1:stop") as child:
        wait_for(lambda: stopped_below(child), within=240, what="a task stands still")
        ended = ground.query(
            "select pg_terminate_backend(pid, 5000) from pg_stat_activity"
            " where application_name = 'tallymark pipeline task' and datname = current_database()"
        )
        assert (True,) in ended
        wait_for(lambda: gone_on(child), within=240, what="it goes on with another query")
        assert child.wait(1) == 0, child.output
        assert "a task lost its connection" in child.output
    same(ground, 200)


@pytest.mark.timeout(900)
@pytest.mark.full
@pytest.mark.parametrize("point", ["pipeline.loaded", "pipeline.before_commit"])
def test_postgresql_crashes_under_a_batch(
    inbox_ground: Ground, tmp_path: Path, cluster: LocalCluster, point: str
) -> None:
    """Pitfall 19: the staging table is unlogged, and empty after a crash. The counts say so, and it is loaded again.

    And in the commit itself: whether it happened is read from the positions.
    """
    ground = inbox_ground
    ground.send(200)
    with pipeline(ground, tmp_path, *BATCH, crash_point=f"{point}:2:stop") as child:
        child.wait_stopped(90)
        cluster.postgres.kill()
        cluster.postgres.start()
        child.cont()
        assert child.wait(240) == 0, child.output
    same(ground, 200)


@pytest.mark.full
@pytest.mark.timeout(900)
def test_a_leader_dies_in_mid_stream(
    inbox_ground: Ground, tmp_path: Path, cluster: LocalCluster, admin: AdminClient
) -> None:
    ground = inbox_ground
    ground.send(200)
    leader = leader_of(admin, ground.topic)
    with pipeline(ground, tmp_path, *BATCH, crash_point="pipeline.after_commit:1:stop") as child:
        child.wait_stopped(90)
        cluster.broker(leader).kill()
        try:
            child.cont()
            assert child.wait(150) == 0, child.output
        finally:
            cluster.broker(leader).start()
    same(ground, 200)


@pytest.mark.timeout(900)
def test_from_the_service_to_spark_and_back_while_messages_come(
    make_inbox_ground: MakeInboxGround, tmp_path: Path
) -> None:
    """Each stops in good order and the other goes on, three times; who starts too early is told, or waits."""
    ground = make_inbox_ground()
    with producing(ground):
        with ground.inbox(lease_seconds=LEASE_S) as service:
            goes_on(ground, service)
            with pipeline(ground, tmp_path, lease_seconds=LEASE_S) as early:
                assert early.wait(240) == 1
                assert "is held by" in early.output
                assert "a service reads for this consumer" in early.output
            goes_on(ground, service)
            service.terminate()
            assert service.wait() == 0, service.output
        with pipeline(ground, tmp_path, available_now=False, inbox={}, lease_seconds=LEASE_S) as spark:
            goes_on(ground, spark)
            # The service is started beside it: it waits until Spark has left.
            with ground.inbox(lease_seconds=LEASE_S) as service:
                service.wait_output("is held by")
                goes_on(ground, spark)
                spark.terminate()
                assert spark.wait(240) == 0, spark.output
                goes_on(ground, service)
                service.terminate()
                assert service.wait() == 0, service.output
        with pipeline(ground, tmp_path, available_now=False, inbox={}, lease_seconds=LEASE_S) as spark:
            goes_on(ground, spark)
            spark.terminate()
            assert spark.wait(240) == 0, spark.output
    with pipeline(ground, tmp_path, inbox={}) as rest:
        assert rest.wait(240) == 0, rest.output
    found = ground.compare()
    assert found.expected == ground.sent
    assert found.is_clean, found
    assert ground.value("select count(*) from tallymark.applications") == ground.sent


@pytest.mark.full
@pytest.mark.timeout(900)
def test_a_log_that_was_cut_under_a_service_and_has_grown_since_is_refused(
    inbox_ground: Ground, tmp_path: Path, cluster: LocalCluster, admin: AdminClient
) -> None:
    """C7: its end lies behind the position, and tells nothing; the leader's epoch that the service has left does."""
    ground = inbox_ground
    ground.send(30)
    ground.apply_all(30)
    before = leader_of(admin, ground.topic)
    cluster.broker(before).kill()
    try:
        wait_for(lambda: leader_of(admin, ground.topic) != before, what="another leads")
    finally:
        cluster.broker(before).start()
    ground.send(60)
    # As if so much had been read under the old leader, and the new one had come without it.
    moved = (
        "update tallymark.positions set next_offset = %s, leader_epoch = 0 where partition = 0 returning 1"
    )
    end = ends(ground.servers, ground.topic, 1)[0]
    ground.query(moved, end - 2)
    with pipeline(ground, tmp_path) as child:
        assert child.wait(240) == 1, child.output
        assert "was cut back, and has grown since" in child.output
    assert "grown since" in ground.value("select halted from tallymark.positions where partition = 0")
    assert ground.applied() == 30


@contextmanager
def producing(ground: Ground) -> Iterator[None]:
    """Messages come, without a pause, for as long as this lasts."""
    enough = threading.Event()

    def send() -> None:
        while not enough.is_set():
            ground.send(20)

    with ThreadPoolExecutor(1) as pool:
        sent = pool.submit(send)
        try:
            yield
        finally:
            enough.set()
        sent.result(60)


def goes_on(ground: Ground, child: Child) -> None:
    """It is alive, and applies what comes."""
    before = ground.applied()
    wait_for(
        lambda: ground.applied() >= before + 60 or not child.is_alive(),
        within=240,
        what="messages are applied",
    )
    assert child.is_alive(), child.output


def stopped_below(child: Child) -> list[psutil.Process]:
    """Processes under a child that a crash point has stopped."""
    try:
        below = psutil.Process(child.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        raise AssertionError(f"the child has ended: {child.output}") from None
    found = []
    for each in below:
        try:
            if each.status() == psutil.STATUS_STOPPED:
                found.append(each)
        except psutil.NoSuchProcess:
            continue
    return found


def gone_on(child: Child) -> bool:
    """Whether it has ended. Each process of a task stops once: whichever does is continued."""
    if not child.is_alive():
        return True
    for each in stopped_below(child):
        each.send_signal(signal.SIGCONT)
    return False
