"""A server process is found by what it is, not by what a pid file claims."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path

import psutil
import pytest

from tallymark.local.process import ServerProcess, State, _children
from tests.waiting import wait_for

FOREVER = [sys.executable, "-c", "import signal; signal.pause()"]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    server = ServerProcess("thing", "thing", tmp_path, [f"--marker={tmp_path}"])
    yield server
    server.kill()


def start(server: ServerProcess) -> int:
    server.spawn([*FOREVER, f"--marker={server.folder}"])
    pid = server.pid
    assert pid is not None
    return pid


def write_pid_file(server: ServerProcess, pid: int, create_time: float) -> None:
    (server.folder / "process.json").write_text(json.dumps({"pid": pid, "create_time": create_time}))


def test_never_started_is_stopped(server: ServerProcess) -> None:
    assert server.state() is State.STOPPED
    assert server.pid is None


def test_killed_is_crashed_and_forgotten_is_stopped(server: ServerProcess) -> None:
    start(server)
    assert server.state() is State.RUNNING
    server.kill()
    assert server.state() is State.CRASHED
    server.forget()
    assert server.state() is State.STOPPED


def test_a_child_that_another_thread_reaps_first(server: ServerProcess) -> None:
    """A cluster stops its servers side by side, and each looks after all children."""

    class Raced(subprocess.Popen[bytes]):
        def poll(self) -> int | None:
            ended = super().poll()
            _children.pop(self.pid, None)  # what the other thread does at this very moment
            return ended

    child = Raced([sys.executable, "-c", ""])
    child.wait()
    _children[child.pid] = child
    assert server.find() is None
    assert child.pid not in _children


def test_pause_and_resume(server: ServerProcess) -> None:
    start(server)
    server.pause()
    wait_for(lambda: server.state() is State.PAUSED)
    server.resume()
    wait_for(lambda: server.state() is State.RUNNING)


def test_found_again_by_another_handle(server: ServerProcess) -> None:
    pid = start(server)
    again = ServerProcess("thing", "thing", server.folder, [f"--marker={server.folder}"])
    assert again.pid == pid


def test_found_without_a_pid_file(server: ServerProcess) -> None:
    """Its starter was killed between spawn and pid file."""
    pid = start(server)
    server.forget()
    assert server.pid == pid
    assert json.loads((server.folder / "process.json").read_text())["pid"] == pid


def test_found_by_several_threads_at_once(server: ServerProcess) -> None:
    """Each of Spark's workers waits for the master, and finds it before its pid file is written."""
    pid = start(server)
    together = threading.Barrier(4)

    def look(_: int) -> list[int | None]:
        found = []
        for _ in range(20):
            together.wait(30)
            server.forget()
            found.append(server.pid)
        return found

    with ThreadPoolExecutor(4) as threads:
        assert set(chain(*threads.map(look, range(4)))) == {pid}


def test_a_pid_that_is_now_someone_elses_is_left_alone(server: ServerProcess) -> None:
    me = psutil.Process(os.getpid())
    write_pid_file(server, me.pid, me.create_time())  # the right time, and still not our marker
    assert server.state() is State.CRASHED
    server.kill()
    server.pause()  # would stop this very test


def test_the_right_one_is_found_behind_a_stale_pid_file(server: ServerProcess) -> None:
    pid = start(server)
    write_pid_file(server, pid, 0.0)
    assert server.pid == pid
    write_pid_file(server, os.getpid(), 0.0)
    assert server.pid == pid


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pid": "x"}', '{"pid": 1}'])
def test_a_damaged_pid_file_is_a_crash(server: ServerProcess, text: str) -> None:
    (server.folder / "process.json").write_text(text)
    assert server.state() is State.CRASHED


def test_terminate_is_graceful_or_says_that_it_was_not(server: ServerProcess) -> None:
    import signal

    start(server)
    assert server.terminate(signal.SIGTERM, grace_s=10)
    server.spawn(
        [
            sys.executable,
            "-c",
            "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True)\n"
            "while True: signal.pause()",
            f"--marker={server.folder}",
        ]
    )
    wait_for(lambda: "deaf" in server.output_file.read_text())
    assert not server.terminate(signal.SIGTERM, grace_s=0.2)
    assert server.state() is State.STOPPED
