"""The demo as a user runs it: the whole of it, and interrupted; nothing is left running."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tallymark.lab import leaving
from tests.children import Child, start_child
from tests.waiting import wait_for

INTERRUPTED = 130


@pytest.fixture
def folder() -> Iterator[Path]:
    """Where the demo makes its own folder. Open to PostgreSQL's user, as pytest's own would not be."""
    made = Path(tempfile.mkdtemp(prefix="tallymark-test-demo-"))
    made.chmod(0o755)
    yield made
    for home in made.glob("tallymark-demo-*"):  # a test that failed may have killed it in the middle
        leaving.stop(home)
    shutil.rmtree(made, ignore_errors=True)


def demo(folder: Path, *arguments: str, crash_point: str | None = None) -> Child:
    return start_child(
        ["-m", "tallymark", "demo", *arguments], crash_point=crash_point, environment={"TMPDIR": str(folder)}
    )


def running(folder: Path) -> list[str]:
    """Processes that know of this folder: servers by their arguments, services by their environment."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        try:
            known = f"{process.info['cmdline']} {process.environ().get('TALLYMARK_CONFIG', '')}"
        except psutil.Error:
            continue
        if str(folder) in known:
            found.append(known)
    return found


def result(child: Child) -> dict[str, Any]:
    said: dict[str, Any] = json.loads(child.output.splitlines()[-1])
    return said


@pytest.mark.full
@pytest.mark.timeout(400)
def test_a_calm_run_accounts_for_every_transfer_and_leaves_nothing_running(folder: Path) -> None:
    with demo(folder, "--calm", "--messages", "500", "--seed", "3", "--json") as child:
        assert child.wait(380) == 0, child.output
        said = result(child)
    assert (said["messages"], said["missing"], said["doubled"], said["reordered"]) == (500, 0, 0, 0)
    assert said["faults"] == []
    assert said["balances_equal"] is True
    assert said["naive"] == dict.fromkeys(
        ("missing", "doubled", "reordered", "balances_off", "accounts_off"), 0
    )
    assert said["certificate"]["written"] == said["certificate"]["logged"] == 500
    assert said["certificate"]["applied"] == {"ledger": 500, "report": 500}
    assert running(folder) == []
    # What it suggests runs as it stands, in a shell that knows nothing of us.
    shell = subprocess.run(
        ["bash", "-e", "-c", "\n".join(said["try_next"])],
        env={"PATH": "/usr/bin:/bin", "HOME": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert shell.returncode == 0, shell.stderr
    assert said["survivor"] in shell.stdout
    assert "1 certificate, " in shell.stdout


@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(1, 6))
def test_nothing_is_lost_or_twice_while_everything_breaks_and_the_twin_is_damaged(
    folder: Path, seed: int
) -> None:
    with demo(folder, "--messages", "5000", "--seed", str(seed), "--json") as child:
        assert child.wait(850) == 0, child.output
        said = result(child)
    assert (said["missing"], said["doubled"], said["reordered"], said["balances_equal"]) == (0, 0, 0, True)
    assert len(said["faults"]) == 7
    assert said["naive"]["missing"] > 0
    assert said["naive"]["doubled"] > 0
    assert said["naive"]["balances_off"] > 0
    assert running(folder) == []


@pytest.mark.full
@pytest.mark.timeout(600)
def test_ctrl_c_while_everything_breaks_leaves_nothing_behind(folder: Path) -> None:
    with demo(folder, "--messages", "5000", "--seed", "1") as child:
        child.wait_output("✓ a relay is killed", within=300)
        child.terminate(signal.SIGINT)
        assert child.wait(90) == INTERRUPTED, child.output
        assert "Traceback" not in child.output
    assert running(folder) == []
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("point", ["local.before_probe"])
@pytest.mark.full
def test_a_demo_that_is_told_to_stop_while_it_starts_leaves_nothing_behind(folder: Path, point: str) -> None:
    with demo(folder, crash_point=f"{point}:1:term") as child:
        assert child.wait(240) == INTERRUPTED, child.output
        assert f"crash point {point}" in child.output
        assert "Traceback" not in child.output
    assert running(folder) == []
    assert list(folder.iterdir()) == []


@pytest.mark.full
def test_ctrl_c_is_quiet_and_leaves_nothing_behind(folder: Path) -> None:
    with demo(folder, "--calm") as child:
        wait_for(
            lambda: "lab.bank.naive_bank" in str(running(folder)), within=90, what="both banks are at work"
        )
        assert "postgresql://" not in str(running(folder)), "a password is for everyone to read"
        child.terminate(signal.SIGINT)
        assert child.wait(60) == INTERRUPTED, child.output
        assert "Traceback" not in child.output
    assert running(folder) == []
    assert list(folder.iterdir()) == []


def test_too_few_messages_to_break_everything_are_refused(folder: Path) -> None:
    with demo(folder, "--messages", "500") as child:
        assert child.wait() == 2
        assert "give at least 3000, or --calm" in child.output
    assert list(folder.iterdir()) == []
