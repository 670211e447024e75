"""What breaks in a demo, and in which order."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from tallymark.lab import faults
from tallymark.lab.faults import Scene


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that breaks."""

    name: str
    title: str
    strike: Callable[[Scene], str]


FIRST = Fault("relay killed", "a relay is killed -9 in mid-batch", faults.relay_killed)
OTHERS = (
    Fault(
        "consumer killed",
        "a consumer is killed -9 after its effect, before its commit",
        faults.consumer_killed,
    ),
    Fault("rebalance", "a rebalance: a second consumer joins and leaves", faults.rebalance),
    Fault("broker killed", "the leader broker is killed, and then the banks", faults.broker_killed),
    Fault("relay frozen", "a relay is frozen past its lease, and woken", faults.relay_frozen),
    Fault("postgres restarted", "PostgreSQL is restarted", faults.postgres_restarted),
    Fault("spark killed", "the Spark driver is killed -9", faults.spark_killed),
)
# Not before Spark has had time to start, and early enough to start again while other things break.
_SPARK_AT = 3


def programme(chance: random.Random) -> list[Fault]:
    """All of them, in an order of the seed's; the relay first, Spark in the middle."""
    others = [each for each in OTHERS if each.strike is not faults.spark_killed]
    chance.shuffle(others)
    others.insert(_SPARK_AT, OTHERS[-1])
    return [FIRST, *others]
