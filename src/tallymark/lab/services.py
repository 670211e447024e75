"""Services as processes of their own, and the supervisor that starts again what died, as systemd or Kubernetes would.

A service that was killed, or ended with an error, is started again; one that ended with 0, or was stopped, is not.
`Crew.close` ends all of them, whatever they are doing: nothing outlives it, unless it was told to leave them.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import psutil

from tallymark.crashpoint import VARIABLE
from tallymark.errors import Problem

_LOOK_S = 0.2
_GRACE_S = 20.0
_FAILED_STARTS = 25
_PATHS = ("TALLYMARK_CACHE", "PYTHONPATH")


class Service:
    """One process. All methods may be called while the supervisor looks at it."""

    def __init__(
        self, name: str, arguments: Sequence[str], environment: Mapping[str, str], log: Path
    ) -> None:
        self.name = name
        self.log = log
        # How often it died by a signal, and ended by itself with an error.
        self.killed = 0
        self.failed = 0
        self._arguments = list(arguments)
        self._environment = dict(environment)
        self._process: subprocess.Popen[bytes] | None = None
        self._extra: list[str] = []
        self._wanted = False
        self._lock = threading.RLock()

    @property
    def pid(self) -> int:
        return self._process.pid if self._process else 0

    def start(self, *arguments: str, crash_point: str = "") -> None:
        """Start it, with `arguments` behind its own; it is armed until it dies for the first time."""
        with self._lock:
            self._wanted = True
            self._extra = list(arguments)
            self._spawn(crash_point)

    def _spawn(self, crash_point: str = "") -> None:
        environment = {**self._environment, **({VARIABLE: crash_point} if crash_point else {})}
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, *self._arguments, *self._extra],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                cwd=self.log.parent,
                start_new_session=True,
            )

    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def has_ended_well(self) -> bool:
        return self._process is not None and self._process.poll() == 0

    def tend(self) -> None:
        """Start it again if it should be there and is not."""
        with self._lock:
            if not self._wanted or self._process is None or (code := self._process.poll()) is None:
                return
            if code == 0:
                self._wanted = False
                return
            self.killed += code < 0
            self.failed += code > 0
            if self.failed > _FAILED_STARTS:
                self._wanted = False
                return
            self._spawn()

    def kill(self) -> None:
        """kill -9, and all that it has started. The supervisor sees that it is gone."""
        with self._lock:
            if self._process is not None and self._process.poll() is None:
                _kill_family(self._process.pid)
                self._process.wait(_GRACE_S)

    def freeze(self) -> None:
        self._send(signal.SIGSTOP)

    def wake(self) -> None:
        self._send(signal.SIGCONT)

    def stop(self, grace_s: float = _GRACE_S) -> None:
        """SIGTERM; kill -9 when it has not ended in time. It is not started again."""
        with self._lock:
            self._wanted = False
        self._send(signal.SIGTERM)
        if self._process is not None:
            try:
                self._process.wait(grace_s)
            except subprocess.TimeoutExpired:
                self.kill()

    def give_up(self) -> None:
        """From now on it is not started again."""
        with self._lock:
            self._wanted = False

    def last_words(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        return next((line for line in reversed(lines) if line.strip()), "it said nothing")

    def _send(self, number: signal.Signals) -> None:
        with self._lock:
            if self._process is not None and self._process.poll() is None:
                self._process.send_signal(number)


class Crew:
    """All services of a run, watched over from `open` to `close`."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self.services: dict[str, Service] = {}
        self.left_running = False
        self._folder = folder
        self._environment = environment
        self._over = threading.Event()
        self._supervisor = threading.Thread(target=self._supervise, name="supervisor", daemon=True)

    def open(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._supervisor.start()

    def __getitem__(self, name: str) -> Service:
        return self.services[name]

    def add(self, name: str, *arguments: str, environment: Mapping[str, str] | None = None) -> Service:
        """A service to be started with `python ARGUMENTS`."""
        made = Service(
            name, arguments, {**self._environment, **(environment or {})}, self._folder / f"{name}.log"
        )
        self.services[name] = made
        return made

    def _supervise(self) -> None:
        while not self._over.wait(_LOOK_S):
            for service in list(self.services.values()):
                service.tend()

    def hopeless(self) -> Service | None:
        """One that ended with an error again and again."""
        return next((each for each in self.services.values() if each.failed > _FAILED_STARTS), None)

    def pids(self) -> list[int]:
        return [each.pid for each in self.services.values() if each.is_alive()]

    def close(self) -> None:
        self._over.set()
        if self._supervisor.is_alive():
            self._supervisor.join()
        if self.left_running:
            return
        for service in self.services.values():
            service.give_up()
        for service in self.services.values():
            service.kill()


def until(condition: Callable[[], object], *, within: float, crew: Crew | None = None) -> bool:
    """Wait for it; False after `within` seconds. A service that cannot run is a problem at once."""
    deadline = time.monotonic() + within
    while not condition():
        if crew is not None and (lost := crew.hopeless()):
            raise Problem(f"{lost.name} does not run: {lost.last_words()}", remedy=f"its log: {lost.log}")
        if time.monotonic() > deadline:
            return False
        time.sleep(_LOOK_S / 2)
    return True


def must(condition: Callable[[], object], *, within: float, what: str, crew: Crew | None = None) -> None:
    """Wait for it, or say what did not come about."""
    if not until(condition, within=within, crew=crew):
        raise Problem(f"{what}: not within {within:g} s", remedy="see the logs of the services")


def clean_environment(more: Mapping[str, str]) -> dict[str, str]:
    """This process's environment without settings of the user's own: the demo is about its own cluster."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TALLYMARK_")}
    # Services have a working folder of their own: what is relative here would be another place there.
    for name in _PATHS:
        if os.environ.get(name):
            kept[name] = os.pathsep.join(os.path.abspath(each) for each in os.environ[name].split(os.pathsep))
    return {**kept, "PYTHONUNBUFFERED": "1", **more}


def _kill_family(pid: int) -> None:
    """The process first, so that it starts no more of them, then what it had started."""
    try:
        process = psutil.Process(pid)
        children = process.children(recursive=True)
    except psutil.NoSuchProcess:
        return
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    for child in children:
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()
    psutil.wait_procs(children, timeout=_GRACE_S)
