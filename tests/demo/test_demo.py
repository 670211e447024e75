"""The demo tells its steps and leaves nothing behind, also when it is interrupted."""

from __future__ import annotations

import json
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.children import Child, start_child
from tests.waiting import wait_for

INTERRUPTED = 130


@pytest.fixture
def folder() -> Iterator[Path]:
    """Where the demo makes its own folder. Open to PostgreSQL's user, as pytest's own would not be."""
    made = Path(tempfile.mkdtemp(prefix="tallymark-test-demo-"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made, ignore_errors=True)


def demo(folder: Path, *, crash_point: str | None = None) -> Child:
    arguments = ["-m", "tallymark", "demo", "--brokers", "1", "--json"]
    return start_child(arguments, crash_point=crash_point, environment={"TMPDIR": str(folder)})


def running(folder: Path) -> list[str]:
    """Servers that were started from this folder."""
    told = (" ".join(each.info["cmdline"] or []) for each in psutil.process_iter(["cmdline"]))
    return [line for line in told if str(folder) in line]


def test_each_step_is_told_and_nothing_is_left_behind(folder: Path) -> None:
    with demo(folder) as child:
        assert child.wait(120) == 0, child.output
        steps = {step["name"]: step["result"] for step in json.loads(child.output.splitlines()[-1])["steps"]}
    assert list(steps) == [
        "start a cluster",
        "create the schema",
        "create a topic",
        "transfer money",
        "relay, and kill it",
        "relay again",
        "compare by id",
        "take everything down",
    ]
    assert steps["relay again"] == "1 batch resolved from its receipt"
    assert steps["compare by id"] == "900 transfers = 900 in the outbox = 900 in the log, 0 missing, 0 twice"
    assert running(folder) == []
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("point", ["local.recorded", "local.broker_formatted", "local.before_probe"])
def test_a_demo_that_is_told_to_stop_while_it_starts_leaves_nothing_behind(folder: Path, point: str) -> None:
    with demo(folder, crash_point=f"{point}:1:term") as child:
        assert child.wait(60) == INTERRUPTED, child.output
        assert f"crash point {point}" in child.output
        assert "Traceback" not in child.output
    assert running(folder) == []
    assert list(folder.iterdir()) == []


def test_ctrl_c_is_quiet_and_leaves_nothing_behind(folder: Path) -> None:
    with demo(folder) as child:
        wait_for(
            lambda: any("kafka.Kafka" in line for line in running(folder)), within=60, what="a broker runs"
        )
        child.terminate(signal.SIGINT)
        assert child.wait(60) == INTERRUPTED, child.output
        assert "Traceback" not in child.output
    assert running(folder) == []
    assert list(folder.iterdir()) == []
