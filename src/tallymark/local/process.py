"""One server process that outlives whoever started it, and is found again.

A process is ours when its command line holds our marker (which names the home), whatever the pid file says:
a stale pid file, a pid that now belongs to someone else, and a starter killed between spawn and pid file are
all the same case. Signals go only to a process that was just checked to be that very one.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path

import psutil

from tallymark.crashpoint import reached
from tallymark.local.home import write_private

# psutil derives the start time from the boot time, which a clock step can shift a little.
_SAME_START_S = 2.0
_GONE_S = 15.0

# Children started by this very process must be reaped by it, or they stay behind as zombies.
_children: dict[int, subprocess.Popen[bytes]] = {}


class State(StrEnum):
    RUNNING = "running"
    PAUSED = "paused"  # stopped by SIGSTOP: there, and silent
    STOPPED = "stopped"  # nobody started it, or it was stopped on purpose
    CRASHED = "crashed"  # it was started and has gone without being stopped


class ServerProcess:
    def __init__(self, name: str, kind: str, folder: Path, marker: Sequence[str]) -> None:
        self.name = name
        self.kind = kind
        self.folder = folder
        self._marker = frozenset(marker)

    @property
    def _pid_file(self) -> Path:
        return self.folder / "process.json"

    @property
    def output_file(self) -> Path:
        """What it wrote to stdout and stderr: mostly what went wrong before its own log was open."""
        return self.folder / "output.txt"

    # Finding it

    def find(self) -> psutil.Process | None:
        """The living process, or None."""
        self._reap()
        recorded = self._recorded()
        if recorded is not None:
            return recorded
        for candidate in psutil.process_iter():
            if self._is_ours(candidate):
                self._remember(candidate)
                return candidate
        return None

    def _recorded(self) -> psutil.Process | None:
        try:
            record = json.loads(self._pid_file.read_text())
            process = psutil.Process(int(record["pid"]))
            if abs(process.create_time() - float(record["create_time"])) > _SAME_START_S:
                return None
        except (OSError, ValueError, KeyError, TypeError, psutil.Error):
            return None
        return process if self._is_ours(process) else None

    def _is_ours(self, process: psutil.Process) -> bool:
        try:
            return process.status() != psutil.STATUS_ZOMBIE and self._marker <= set(process.cmdline())
        except psutil.Error:
            return False

    def _remember(self, process: psutil.Process) -> None:
        try:
            record = {"name": self.name, "pid": process.pid, "create_time": process.create_time()}
        except psutil.NoSuchProcess:
            return  # it died at once: the caller looks again
        write_private(self._pid_file, json.dumps(record) + "\n")

    def _reap(self) -> None:
        for pid, child in list(_children.items()):
            if child.poll() is not None:
                _children.pop(pid, None)  # stopped side by side, another thread may have been first

    @property
    def pid(self) -> int | None:
        process = self.find()
        return process.pid if process else None

    def is_alive(self) -> bool:
        return self.find() is not None

    def state(self) -> State:
        process = self.find()
        if process is None:
            return State.CRASHED if self._pid_file.exists() else State.STOPPED
        try:
            return State.PAUSED if process.status() == psutil.STATUS_STOPPED else State.RUNNING
        except psutil.NoSuchProcess:
            return State.CRASHED

    # Starting and signalling it

    def spawn(
        self, command: Sequence[str], *, environment: Mapping[str, str] | None = None, user: str | None = None
    ) -> None:
        """Start it in a session of its own, so that it survives our shell, our Ctrl-C and us."""
        as_user: dict[str, str | list[str]] = (
            {"user": user, "group": user, "extra_groups": []} if user else {}
        )
        with self.output_file.open("wb") as output:
            child = subprocess.Popen(  # type: ignore[call-overload]  # optional keywords by dict
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                env={**os.environ, **(environment or {})},
                start_new_session=True,
                **as_user,
            )
        reached(f"local.{self.kind}_spawned")
        _children[child.pid] = child
        try:
            self._remember(psutil.Process(child.pid))
        except psutil.NoSuchProcess:
            self._reap()

    def kill(self) -> None:
        """kill -9, children included: what a power cut leaves."""
        process = self.find()
        if process is None:
            return
        self._signal_family(process, signal.SIGKILL)

    def pause(self) -> None:
        """SIGSTOP, children included: it keeps its connections and says nothing."""
        process = self.find()
        if process is not None:
            self._signal_family(process, signal.SIGSTOP, wait=False)

    def resume(self) -> None:
        process = self.find()
        if process is not None:
            self._signal_family(process, signal.SIGCONT, wait=False)

    def terminate(self, sign: signal.Signals, *, grace_s: float) -> bool:
        """Ask it to stop; kill it when it has not within `grace_s`. True when it went by itself."""
        process = self.find()
        gracefully = True
        if process is not None:
            self.resume()
            family = _family(process)
            _send(process, sign)
            _, alive = psutil.wait_procs([process], timeout=grace_s)
            if alive:
                gracefully = False
                self._signal_family(process, signal.SIGKILL)
            psutil.wait_procs(family, timeout=_GONE_S)
        self._reap()
        self.forget()
        return gracefully

    def forget(self) -> None:
        """It was stopped on purpose: its absence is no crash."""
        self._pid_file.unlink(missing_ok=True)

    def _signal_family(self, process: psutil.Process, sign: signal.Signals, *, wait: bool = True) -> None:
        _send(process, sign)  # first, so that it forks no more children while we look at them
        family = _family(process)
        for member in family[1:]:
            _send(member, sign)
        if wait:
            psutil.wait_procs(family, timeout=_GONE_S)
            self._reap()


def _family(process: psutil.Process) -> list[psutil.Process]:
    try:
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return [process]


def _send(process: psutil.Process, sign: signal.Signals) -> None:
    try:
        process.send_signal(sign)  # psutil refuses when the pid has passed to another process
    except psutil.NoSuchProcess:
        return
