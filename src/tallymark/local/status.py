"""What a local cluster looks like at one moment, as data first."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Any

import psutil

from tallymark.local.process import ServerProcess, State


@dataclass(frozen=True)
class ProcessStatus:
    name: str
    kind: str
    state: State
    pid: int | None
    port: int
    rss_bytes: int
    uptime_s: float

    @classmethod
    def of(cls, server: ServerProcess, port: int) -> ProcessStatus:
        process = server.find()
        rss, uptime = 0, 0.0
        if process is not None:
            try:
                rss = sum(member.memory_info().rss for member in [process, *process.children(recursive=True)])
                uptime = max(0.0, time.time() - process.create_time())
            except psutil.NoSuchProcess:
                process = None  # it, or a child of it, went while we looked
        pid = process.pid if process else None
        return cls(server.name, server.kind, server.state(), pid, port, rss, round(uptime, 1))


@dataclass(frozen=True)
class ClusterStatus:
    home: str
    processes: tuple[ProcessStatus, ...]
    brokers_seen: int
    """Brokers that the cluster itself counts as serving: a killed one stays in for a few seconds."""
    under_replicated: int | None
    """Partitions with fewer copies in sync than they should have; None when no broker answers."""

    @property
    def healthy(self) -> bool:
        running = all(process.state is State.RUNNING for process in self.processes)
        return bool(self.processes) and running and (self.under_replicated == 0 or not self.has_brokers)

    @property
    def has_brokers(self) -> bool:
        return any(process.kind == "broker" for process in self.processes)

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "healthy": self.healthy}
