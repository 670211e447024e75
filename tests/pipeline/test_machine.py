"""Who can be known to have ended (pitfall 23). A host's name and a number alone say nothing: containers share both."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tallymark.pipeline.machine import lives_here, of_this_machine, process_here
from tallymark.pipeline.scratch import scratch


@pytest.fixture
def ended() -> int:
    """The number of a process that was, and is no more."""
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    return child.pid


def named(pid: int, host: str | None = None) -> str:
    return f"{host or socket.gethostname()}:{pid}:0123456789"


def test_a_process_of_this_machine_is_known_to_live_or_to_have_ended(ended: int) -> None:
    assert lives_here(of_this_machine(named(os.getpid()))) is True
    assert lives_here(of_this_machine(named(ended))) is False


@pytest.mark.parametrize(
    "elsewhere",
    [
        pytest.param(named, id="named before boots were"),
        pytest.param(lambda pid: f"{named(pid)}-00000000", id="another boot, or another container"),
        pytest.param(lambda pid: of_this_machine(named(pid, "elsewhere")), id="another host"),
    ],
)
def test_nobody_can_tell_of_other_machines(ended: int, elsewhere: Callable[[int], str]) -> None:
    assert lives_here(elsewhere(ended)) is None


def test_what_a_killed_process_left_is_swept_away(ended: int, tmp_path: Path) -> None:
    """Its own machine's: the number of one that lives elsewhere may be nobody's here, and its folder is in use."""
    boot = process_here().partition("-")[0]
    left = tmp_path / f"tallymark-query-{boot}-{ended}-abc"
    others = [
        tmp_path / f"tallymark-query-{name}-abc" for name in (f"00000000-{ended}", f"{boot}-1", f"{ended}")
    ]
    for folder in (left, *others):
        folder.mkdir()
    made = scratch("query", tmp_path)
    assert made.is_dir()
    assert made.name.startswith(f"tallymark-query-{process_here()}-")
    assert sorted(tmp_path.iterdir()) == sorted([made, *others])
    again = scratch("query", tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted([made, again, *others])
