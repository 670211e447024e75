"""CPU seconds of everything that takes part (the workloads, brokers, PostgreSQL), and what others left of the machine.

A stretch of work is metered from `begin` to `end`. What others took is known from the machine's own count: on a busy
machine the cores that we could have had are fewer than it has.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from tallymark.local.cluster import LocalCluster


@dataclass(frozen=True)
class Stretch:
    """Seconds, our CPU seconds in them, and the cores that were ours to have, on average."""

    seconds: float
    cpu_seconds: float
    cores: float


class Meter:
    """Counts from its making on."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster
        self._began = time.monotonic()
        self._busy = _busy()
        self._ours = self._count()

    def read(self) -> Stretch:
        """What went by since. Everything that took part must still be there."""
        seconds = time.monotonic() - self._began
        ours = sum(self._count().values()) - sum(self._ours.values())
        others = max(0.0, _busy() - self._busy - ours)
        return Stretch(seconds, ours, (psutil.cpu_count() or 1) - others / seconds)

    def _count(self) -> dict[int, float]:
        """CPU seconds by process: this one and what it started, and the cluster's."""
        roots = [psutil.Process()]
        roots += [found for server in self._cluster.processes if (found := server.find()) is not None]
        counted: dict[int, float] = {}
        for root in roots:
            for process in (root, *root.children(recursive=True)):
                try:
                    times = process.cpu_times()
                except psutil.NoSuchProcess:
                    continue
                counted[process.pid] = times.user + times.system
                if process.pid == root.pid:
                    # Database sessions that have ended are counted with the server that waited for them.
                    counted[process.pid] += times.children_user + times.children_system
        return counted


def _busy() -> float:
    """CPU seconds that all of the machine has spent since it started, on work and on other machines."""
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - getattr(times, "iowait", 0.0) - getattr(times, "guest", 0.0))
