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
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from types import TracebackType
from typing import IO

import psutil

from tallymark.crashpoint import VARIABLE
from tests import forked
from tests.waiting import wait_for


class Child:
    """A process, by its pid and a way to ask for its exit code."""

    def __init__(self, pid: int, exit_code: Callable[[], int | None], output: IO[str]) -> None:
        self.pid = pid
        self._exit_code = exit_code
        self._output = output
        self._was_asked = False

    @property
    def output(self) -> str:
        """What it has written to stdout and stderr so far."""
        self._output.seek(0)
        return self._output.read()

    def is_alive(self) -> bool:
        return self._exit_code() is None

    def wait(self, within: float = 60.0) -> int:
        """Its exit code; minus the signal's number when a signal ended it."""
        try:
            wait_for(lambda: not self.is_alive(), within=within, what="the child ends")
        except AssertionError as late:
            raise AssertionError(f"{late}; it wrote:\n{self.output}") from None
        code = self._exit_code()
        assert code is not None
        return code

    def wait_output(self, text: str, within: float = 60.0) -> None:
        wait_for(
            lambda: text in self.output or not self.is_alive(), within=within, what=f"the child says {text!r}"
        )
        assert text in self.output, f"the child ended without saying {text!r}; it wrote:\n{self.output}"

    def wait_stopped(self, within: float = 60.0) -> None:
        """Until a crash point with :stop, or `stop`, has stopped it."""
        assert self._stopped(within), f"the child ended before it was stopped; it wrote:\n{self.output}"

    def stop(self) -> bool:
        """SIGSTOP. False where it ended by itself before that."""
        self._send(signal.SIGSTOP)
        return self._stopped(60)

    def _stopped(self, within: float) -> bool:
        wait_for(
            lambda: not self.is_alive() or psutil.Process(self.pid).status() == psutil.STATUS_STOPPED,
            within=within,
            what="the child is stopped",
        )
        return self.is_alive()

    def cont(self) -> None:
        """SIGCONT."""
        self._send(signal.SIGCONT)

    def kill(self) -> int:
        """kill -9, and its exit code."""
        self._send(signal.SIGKILL)
        return self.wait()

    def _send(self, sign: signal.Signals) -> None:
        if self.is_alive():  # else its pid may be somebody else's by now
            with suppress(ProcessLookupError):
                os.kill(self.pid, sign)

    def terminate(self, sign: signal.Signals = signal.SIGTERM) -> None:
        """Ask it to end, once it listens: one that is still importing would be ended by the signal itself."""
        if not self._was_asked:  # whoever was asked once may leave the second time to the system
            wait_for(lambda: not self.is_alive() or self._hears(sign), what=f"it hears {sign.name}")
        self._was_asked = True
        self._send(sign)

    def _hears(self, sign: signal.Signals) -> bool:
        try:
            status = Path(f"/proc/{self.pid}/status").read_text()
        except FileNotFoundError:  # not on Linux: it had the time that it took to get here
            return True
        caught = next(line for line in status.splitlines() if line.startswith("SigCgt:"))
        return bool(int(caught.split()[1], 16) >> (sign - 1) & 1)

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
    """`python ARGUMENTS…` by this run's Python, in a process group of its own: Ctrl-C does not reach it.

    What is a module of ours is forked, with the packages it needs imported already (forked.py).
    """
    env = {**os.environ, "PYTHONUNBUFFERED": "1", **(environment or {})}
    env.pop(VARIABLE, None)
    if crash_point:
        env[VARIABLE] = crash_point
    output = tempfile.NamedTemporaryFile("a+", prefix="child-", suffix=".txt")  # noqa: SIM115 - the Child closes it
    folder = os.fspath(cwd or os.getcwd())
    if arguments[0] == "-m":
        process = forked.start(arguments[1], arguments[2:], env, folder, output.name)
        return Child(_pid(process), lambda: process.exitcode, output)
    started = subprocess.Popen(
        [sys.executable, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        text=True,
        env=env,
        cwd=folder,
        process_group=0,
    )
    return Child(started.pid, started.poll, output)


def _pid(process: ForkServerProcess) -> int:
    assert process.pid is not None, "it was started"
    return process.pid
