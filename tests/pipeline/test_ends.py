"""How a run ends that nobody asked to go on: by Ctrl-C, and when Spark's own process is killed under it."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import psutil
import psycopg
import pytest

from tallymark.errors import EXIT_PROBLEM
from tests.children import Child
from tests.conftest import MakeTopic
from tests.inbox.ground import Ground as InboxGround
from tests.pipeline.archiving import Ground
from tests.pipeline.grounds import pipeline
from tests.waiting import wait_for

WAITING = (
    "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
)
# A run that goes on says so once a second.
SILENT = "select coalesce(ended_at, seen_at) < clock_timestamp() - interval '3 s' from tallymark.runs"


@pytest.fixture
def ground(make_topic: MakeTopic, bootstrap_servers: str, tmp_path: Path) -> Ground:
    return Ground(bootstrap_servers, tmp_path / "archive", [make_topic()])


def test_ctrl_c_ends_an_archive_as_sigterm_does(ground: Ground) -> None:
    """To the whole group, as a terminal sends it, while batches are written: PySpark would answer it by itself."""
    ground.send(300)
    with ground.child("--max-offsets", "10") as child:
        wait_for(lambda: ground.files() or not child.is_alive(), within=120, what="it is at work")
        os.killpg(child.pid, signal.SIGINT)
        assert child.wait(60) == 0, child.output
        assert "Traceback" not in child.output
        done = json.loads(child.output.splitlines()[-1])
    assert 300 > done["rows"] == len(ground.rows()) > 0
    assert set(ground.rows()) <= set(ground.log())


def jvm_of(child: Child) -> psutil.Process:
    (found,) = (each for each in psutil.Process(child.pid).children(recursive=True) if each.name() == "java")
    return found


def test_an_ingest_whose_jvm_was_killed_says_so(inbox_ground: InboxGround, tmp_path: Path) -> None:
    """By the system, for want of memory, in the middle of a commit. In one line; what is under way is seen out, however
    long it takes, and nobody waits for a lease."""
    ground = inbox_ground
    ground.send(60)
    busy = psycopg.connect(ground.url)
    busy.execute("select from account for update")
    with busy, pipeline(ground, tmp_path, available_now=False, lease_seconds=60) as child:
        wait_for(
            lambda: (ground.value(WAITING) and not ground.value(SILENT)) or not child.is_alive(),
            within=120,
            what="its commit waits",
        )
        jvm_of(child).kill()
        wait_for(lambda: ground.value(SILENT) or not child.is_alive(), what="it has heard of that")
        busy.rollback()
        assert child.wait(60) == EXIT_PROBLEM, child.output
        assert was_told(child.output), child.output
    assert ground.applied() == 60
    assert ground.query("select distinct owner from tallymark.positions") == [(None,)]
    assert "Spark itself has ended" in ground.value("select trouble from tallymark.runs")


@pytest.mark.full
def test_an_ingest_whose_jvm_was_killed_while_it_loads_says_so(
    inbox_ground: InboxGround, tmp_path: Path
) -> None:
    """What has just been asked is answered by nobody: of that py4j tells with tracebacks of its own."""
    ground = inbox_ground
    ground.send(10)
    busy = psycopg.connect(ground.url)
    with busy, pipeline(ground, tmp_path, available_now=False, lease_seconds=60) as child:
        wait_for(lambda: ground.applied() == 10 or not child.is_alive(), within=120, what="it is at work")
        (run,) = ground.query("select run from tallymark.runs")[0]
        busy.execute(f"lock table tallymark.staging_{run}, tallymark.staging_{run}_b in share mode".encode())
        ground.send(50)
        loads = f"{WAITING} and starts_with(query, 'copy ')"
        wait_for(lambda: ground.value(loads) or not child.is_alive(), what="a task waits")
        jvm_of(child).kill()
        assert child.wait(60) == EXIT_PROBLEM, child.output
        assert was_told(child.output), child.output
    assert ground.applied() == 10


@pytest.mark.full
def test_an_archive_whose_jvm_was_killed_says_so(ground: Ground) -> None:
    ground.send(300)
    with ground.child("--max-offsets", "10") as child:
        wait_for(lambda: ground.files() or not child.is_alive(), within=120, what="it is at work")
        jvm_of(child).kill()
        assert child.wait(60) == EXIT_PROBLEM, child.output
        assert was_told(child.output), child.output
    assert set(ground.rows()) <= set(ground.log())


def was_told(output: str) -> bool:
    """What happened, once, and without a word of Python's or Java's."""
    sentence, strange = (
        "Spark itself has ended, and nothing more can be run in it",
        ("Traceback", "Py4J", "at org."),
    )
    return output.count(sentence) == 1 and not any(word in output for word in strange)
