"""How a run ends that nobody asked to go on: by Ctrl-C, and when Spark's own process is killed under it."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import psutil
import pytest

from tallymark.errors import EXIT_PROBLEM
from tests.children import Child
from tests.conftest import MakeTopic
from tests.inbox.ground import Ground as InboxGround
from tests.pipeline.archiving import Ground
from tests.pipeline.grounds import pipeline
from tests.waiting import wait_for


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
    """By the system, for want of memory. In one line; what was committed stays, and nobody waits for a lease."""
    ground = inbox_ground
    ground.send(60)
    with pipeline(ground, tmp_path, available_now=False, lease_seconds=60) as child:
        wait_for(lambda: ground.applied() == 60 or not child.is_alive(), within=120, what="it is at work")
        jvm_of(child).kill()
        assert child.wait(60) == EXIT_PROBLEM, child.output
        assert was_told(child.output), child.output
    assert ground.query("select distinct owner from tallymark.positions") == [(None,)]
    assert "Spark itself has ended" in ground.value("select trouble from tallymark.runs")


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
