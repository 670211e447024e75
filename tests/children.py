"""Start a process of ours as a child, stop or kill it at a named point, and see how it ended.

    child = start_child(["-m", "tallymark", "relay", "run"], crash_point="relay.before_mark")
    assert child.wait() == -signal.SIGKILL

Crash points that stop (`relay.before_mark:1:stop`) leave the child there to be looked at: `wait_stopped`,
then `cont()` or `kill()`. Use as a context manager: whatever a test forgets is killed at the end.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import IO

import psutil

from tallymark.crashpoint import VARIABLE
from tests.waiting import wait_for


class Child:
    def __init__(self, process: subprocess.Popen[str], output: IO[str]) -> None:
        self._process = process
        self._output = output

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def output(self) -> str:
        """What it has written to stdout and stderr so far."""
        self._output.seek(0)
        return self._output.read()

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def wait(self, within: float = 60.0) -> int:
        """Its exit code; minus the signal's number when a signal ended it."""
        try:
            return self._process.wait(within)
        except subprocess.TimeoutExpired:
            raise AssertionError(
                f"the child did not end within {within:g} s; it wrote:\n{self.output}"
            ) from None

    def wait_output(self, text: str, within: float = 60.0) -> None:
        wait_for(
            lambda: text in self.output or not self.is_alive(), within=within, what=f"the child says {text!r}"
        )
        assert text in self.output, f"the child ended without saying {text!r}; it wrote:\n{self.output}"

    def wait_stopped(self, within: float = 60.0) -> None:
        """Until a crash point with :stop, or `stop`, has stopped it."""
        wait_for(
            lambda: psutil.Process(self.pid).status() == psutil.STATUS_STOPPED,
            within=within,
            what="the child is stopped",
        )

    def stop(self) -> None:
        """SIGSTOP."""
        self._process.send_signal(signal.SIGSTOP)
        self.wait_stopped()

    def cont(self) -> None:
        """SIGCONT."""
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> int:
        """kill -9, and its exit code."""
        if self.is_alive():
            self._process.kill()
        return self.wait()

    def terminate(self, sign: signal.Signals = signal.SIGTERM) -> None:
        if self.is_alive():
            self._process.send_signal(sign)

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        self._output.close()


def start_child(
    arguments: Sequence[str],
    *,
    crash_point: str | None = None,
    environment: Mapping[str, str] | None = None,
    cwd: str | os.PathLike[str] | None = None,
) -> Child:
    """`python ARGUMENTS…` by this run's Python, in a process group of its own: Ctrl-C does not reach it."""
    env = {**os.environ, "PYTHONUNBUFFERED": "1", **(environment or {})}
    env.pop(VARIABLE, None)
    if crash_point:
        env[VARIABLE] = crash_point
    output = tempfile.NamedTemporaryFile("w+", prefix="child-", suffix=".txt")  # noqa: SIM115 - the Child closes it
    process = subprocess.Popen(
        [sys.executable, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        text=True,
        env=env,
        cwd=cwd,
        process_group=0,
    )
    return Child(process, output)
