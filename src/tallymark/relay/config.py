"""What an operator may choose about a relay. Pure."""

from __future__ import annotations

import os
import secrets
import socket
from dataclasses import dataclass, field

from tallymark.lifecycle import Mode
from tallymark.policy import Backoff, ModePolicy


def new_owner(name: str | None = None) -> str:
    """A name that no other relay has: a restarted process is another owner."""
    return f"{name or socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"


@dataclass(frozen=True, slots=True)
class RelayConfig:
    """How one relay works."""

    mode: Mode = Mode.TRANSACTIONAL
    owner: str = field(default_factory=new_owner)
    # After this long without a heartbeat another relay takes the lanes over.
    lease_s: float = 10.0
    # Between two transactions a lane waits for acknowledgements and the commit, however many messages it is for.
    batch_messages: int = 50_000
    batch_bytes: int = 32 * 1024 * 1024
    # How often an idle relay looks at the outbox's sequence.
    poll_s: float = 0.005
    # Whether writers wake relays by NOTIFY; the sequence is then looked at less often.
    notify: bool = False
    # How often a lane looks for what operators asked for: pause, retry, topics put right.
    refresh_s: float = 1.0
    # How often its owner looks at a lane's parked messages though nobody has asked for it.
    look_s: float = 30.0
    hold_check_s: float = 5.0
    # After this long a writer that idles in its transaction is ended; None: it is only named in status.
    end_floors_after_s: float | None = None
    # How often partitions are made ahead and old ones dropped.
    upkeep_s: float = 60.0
    # None: a message is never given up because Kafka was away.
    give_up_after_s: float | None = None
    # Whether later messages of a parked key wait behind it.
    hold_key: bool = True
    backoff: Backoff = field(default_factory=Backoff)
    accepted: tuple[str, ...] = ()
    # Refused where the outbox was made with another number; None takes what is there.
    lanes: int | None = None

    @property
    def idle_s(self) -> float:
        """How long an idle lane waits before it looks again, if nobody calls."""
        return max(self.poll_s, 0.25) if self.notify else self.poll_s

    @property
    def policy(self) -> ModePolicy:
        return ModePolicy.of(self.mode)
