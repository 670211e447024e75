"""Decisions that need no I/O: how a mode publishes, how long to wait, how many lanes are a fair share. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tallymark.lifecycle import Mode


@dataclass(frozen=True, slots=True)
class ModePolicy:
    """What sets the three modes apart; everything else is one path."""

    mode: Mode
    transactional: bool
    # Batches that may be sent and not yet acknowledged at the same time.
    in_flight: int
    guarantee: str
    cost: str

    @staticmethod
    def of(mode: Mode) -> ModePolicy:
        return _POLICIES[mode]


_POLICIES = {
    Mode.TRANSACTIONAL: ModePolicy(
        Mode.TRANSACTIONAL,
        transactional=True,
        in_flight=1,
        guarantee="once in the log for read_committed readers; a crash is resolved from the receipt",
        cost="one Kafka transaction per batch",
    ),
    Mode.CALLBACK: ModePolicy(
        Mode.CALLBACK,
        transactional=False,
        in_flight=2,
        guarantee="at least once: a crash between acknowledgement and mark sends those batches again",
        cost="none beyond the acknowledgements; consumers must deduplicate by ce_id",
    ),
    Mode.SYNC: ModePolicy(
        Mode.SYNC,
        transactional=False,
        in_flight=1,
        guarantee="at least once: a crash between acknowledgement and mark sends one batch again",
        cost="waits for each batch before the next; consumers must deduplicate by ce_id",
    ),
}


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long to wait before the n-th retry: doubling, capped, with jitter so that many do not come at once."""

    first_s: float = 0.1
    cap_s: float = 10.0
    jitter: float = 0.5

    def delay(self, attempt: int, random: float) -> float:
        """Seconds before retry `attempt` (from 1); `random` is from 0 to 1."""
        full = min(self.cap_s, self.first_s * 2.0 ** min(attempt - 1, 30))
        return full * (1 - self.jitter * random)


def fair_share(lanes: int, relays: int) -> int:
    """How many lanes one of `relays` may hold at most, so that none is left over and no relay has more work than it must.

    Rounded up for everyone: of four lanes and three relays one relay may stand by. Were it rounded down for some, a relay
    that lives but cannot work would keep lanes from those that can.
    """
    return math.ceil(lanes / max(1, relays))
