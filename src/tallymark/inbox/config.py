"""How one inbox process runs. Frozen; what a handler says for itself is in apply/."""

from __future__ import annotations

import os
import secrets
import socket
from dataclasses import dataclass, field
from typing import Literal

from tallymark.inbox.ports import Place
from tallymark.lifecycle import ApplyMode
from tallymark.policy import Backoff

PositionsIn = Literal["database", "kafka"]
Start = Literal["beginning", "end"]


def new_owner() -> str:
    """A name that no other process has: host, process, and a token against reused pids and names."""
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(5)}"


@dataclass(frozen=True, slots=True)
class InboxConfig:
    """One process of one consumer."""

    consumer: str
    topics: tuple[str, ...]
    mode: ApplyMode = ApplyMode.INLINE
    positions: PositionsIn = "database"
    # Fixed partitions instead of a group's balance.
    assign: tuple[Place, ...] | None = None
    start: Start = "beginning"
    owner: str = field(default_factory=new_owner)
    workers: int = 8
    lease_s: float = 10.0
    batch_messages: int = 10_000
    batch_bytes: int = 8 * 2**20
    # How long keeping a batch should take: well below what a revoked partition waits, and what ends a process.
    batch_s: float = 2.0
    # How long a revoked partition's batch may take to finish before it is left to the epoch.
    revoke_s: float = 10.0
    backoff: Backoff = field(default_factory=lambda: Backoff(first_s=0.1, cap_s=5.0))
    # Kafka's own offsets follow this often, for lag tools.
    follow_s: float = 1.0
    # Keys and rows that a worker takes in one transaction, and the seconds after which it commits what is done.
    claim_keys: int = 32
    claim_rows: int = 500
    claim_s: float = 0.25
    idle_s: float = 0.1
    upkeep_s: float = 60.0

    @property
    def deferred(self) -> bool:
        return self.mode is ApplyMode.DEFERRED

    @property
    def guarantee(self) -> str:
        """What this way of keeping positions promises."""
        if self.positions == "kafka":
            return (
                "each message kept and applied once by its saved id; a position follows after the commit, so that a "
                "crash reads a batch again, and a process that lost its partition is not stopped from writing; offsets "
                "that Kafka forgot and a topic made anew are not noticed"
            )
        return "each message kept and applied once; the position moves in the transaction that keeps it"
