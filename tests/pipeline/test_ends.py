"""How a run ends that nobody asked to go on: by Ctrl-C, and when Spark's own process is killed under it."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from tests.conftest import MakeTopic
from tests.pipeline.archiving import Ground
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
