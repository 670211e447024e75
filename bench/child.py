"""A workload in a process of its own, so that CPU time and peak memory are its alone.

`measure_child` runs one to its end; `start_child` gives a handle for one that runs until it is told to
stop.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from tallymark.errors import Problem

_LAUNCHER = Path(__file__).with_name("launcher.py")
_ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Usage:
    """What a process used from its start to its end; `output` is what it printed."""

    seconds: float
    cpu_seconds: float
    peak_rss: int
    output: str = ""


class Child:
    """A running workload. Leaving the `with` block kills it if it is still there."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str] | None = None) -> None:
        self._name = Path(argv[0]).name + " " + " ".join(argv[1:4])
        self._folder = tempfile.TemporaryDirectory(prefix="tallymark-bench-")
        self._report = Path(self._folder.name) / "usage.json"
        self._errors = (Path(self._folder.name) / "stderr").open("w+")
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_LAUNCHER), str(self._report), *argv],
            cwd=_ROOT,
            env={**os.environ, **(env or {})},
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            start_new_session=True,  # one process group, so that the last resort reaches the workload too
        )

    def read_line(self) -> str:
        """The next line it prints: how a workload says that it is ready."""
        assert self._process.stdout is not None
        return self._process.stdout.readline().rstrip("\n")

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def stop(self) -> None:
        """Ask it to end (SIGTERM); `finish` then waits for it."""
        self._process.terminate()

    def finish(self, *, timeout: float = 600) -> Usage:
        """Wait for its end. A workload that failed is an error, with the last lines it wrote."""
        try:
            output, _ = self._process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            raise Problem(f"the workload {self._name} did not end within {timeout:g} s") from None
        figures: dict[str, Any] = {"status": f"launcher: {self._process.returncode}"}
        if self._report.exists():
            figures = json.loads(self._report.read_text())
        if figures["status"] != 0:
            self._errors.seek(0)
            last = "\n".join(self._errors.read().splitlines()[-15:])
            raise Problem(f"the workload {self._name} failed ({figures['status']})", remedy=last)
        return Usage(figures["seconds"], figures["cpu_seconds"], figures["peak_rss"], output)

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()
        if self._process.stdout:
            self._process.stdout.close()
        self._errors.close()
        self._folder.cleanup()


def start_child(argv: Sequence[str], *, env: Mapping[str, str] | None = None) -> Child:
    """Start a workload; secrets go into `env`, for everyone on the machine can read `argv`."""
    return Child(argv, env)


def measure_child(
    argv: Sequence[str], *, env: Mapping[str, str] | None = None, timeout: float = 600
) -> Usage:
    """Run a workload to its end."""
    with start_child(argv, env=env) as child:
        return child.finish(timeout=timeout)
