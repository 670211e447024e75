"""Certificates: for each closed window a statement with its equations and digests. Pure. How they are chained: chain.py.

The equations (a certificate is only given where both hold):

    written = logged + parked + discarded
    logged  = applied + queued + dead + discarded + again     for each consumer, of the topics that it reads

All are counts of the window's rows; *applied* is counted from the effects, each message once, and none of them may have
been made twice. *again* are copies that the consumer had before: a resend is a row of its own and counts in its own
window, and consumers that had the message change nothing.
What is parked, queued or dead will go its way: such a window is not *settled*, is looked at again, and certified again.

A statement says which form it has. Those of the first had no effects, and called the discarded dead; those of the second
did not say when the outbox was looked at.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from tallymark.lifecycle import Verdict
from tallymark.tally.digest import Digest
from tallymark.tally.windows import Window

# The form of statements that are made today.
VERSION = 3
# Findings that a term of an equation accounts for: they do not keep a window from being certified.
ACCOUNTED = frozenset({Verdict.PARKED, Verdict.DEAD})


@dataclass(frozen=True, slots=True)
class ConsumerCount:
    """What one consumer did with a window's messages."""

    # Logged messages of the topics that it reads.
    owed: int
    applied: int
    queued: int
    dead: int
    again: int
    # Of what it keeps of the window's messages, under whatever position: of two copies it keeps the first that comes.
    digest: Digest
    discarded: int = 0
    # Sums over the ids of what it has applied; None where nobody has counted.
    effects: Digest | None = None
    # Effects beyond the first of their message: in no certificate, for none is given where there are any.
    twice: int = 0
    # What the log holds of it, where the inbox must hold the same: nothing is unkept, or was logged before it began.
    # In no certificate.
    logged: Digest | None = field(default=None, compare=False)

    @property
    def total(self) -> int:
        return self.applied + self.queued + self.dead + self.discarded + self.again

    @property
    def settled(self) -> bool:
        return self.queued == 0 and self.dead == 0

    def violations(self, name: str) -> list[str]:
        """The second equation of a consumer of this name, where it does not hold; and what was applied more than once."""
        found = self.repeated(name)
        if self.owed != self.total:
            found.append(
                f"{name}: logged {self.owed} <> applied {self.applied} + queued {self.queued}"
                f" + dead {self.dead} + discarded {self.discarded} + again {self.again}"
            )
        return found

    def unlike(self, name: str) -> list[str]:
        """That its inbox holds as many messages as the log, and not the same."""
        if self.logged is None or self.logged.same_messages(self.digest):
            return []
        return [f"the inbox of {name} holds other messages than the log"]

    def repeated(self, name: str) -> list[str]:
        """That some of its messages were applied more than once."""
        return [f"{name} has made effects more than once: {self.twice} too many"] if self.twice else []


@dataclass(frozen=True, slots=True)
class Statement:
    """What is said of one window."""

    outbox_id: str
    window: Window
    written: int
    logged: int
    parked: int
    discarded: int
    outbox: Digest
    log: Digest
    consumers: Mapping[str, ConsumerCount] = field(default_factory=dict)
    # {"topic/partition": [lowest offset, highest offset]} of the window's messages.
    offsets: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    # Where a reader of later windows has to start: {"topic/partition": offset}.
    resume: Mapping[str, int] = field(default_factory=dict)
    # By which function ids were hashed for the sums of effects: others cannot be compared.
    hashed: str = ""
    # When the outbox was looked at, by its own clock, and before all the others; None in older forms.
    looked_at: datetime | None = None
    version: int = VERSION

    @property
    def settled(self) -> bool:
        """Whether nothing of it is on its way any more, or waits for somebody."""
        return self.parked == 0 and all(count.settled for count in self.consumers.values())

    def violations(self) -> list[str]:
        """The equations that do not hold."""
        each = (count.violations(name) for name, count in sorted(self.consumers.items()))
        return sum(each, self.unaccounted())

    def unaccounted(self) -> list[str]:
        """The first equation, where it does not hold."""
        if self.written == self.logged + self.parked + self.discarded:
            return []
        return [
            f"written {self.written} <> logged {self.logged} + parked {self.parked}"
            f" + discarded {self.discarded}"
        ]

    def unlike(self) -> list[str]:
        """Stations that hold as many messages, and not the same."""
        each = (count.unlike(name) for name, count in self.consumers.items())
        return sum(each, self.unlike_log())

    def unlike_log(self) -> list[str]:
        """That the log holds as many messages as the outbox, and not the same; of what is parked nobody can say."""
        if self.parked or self.discarded or self.outbox.same_messages(self.log):
            return []
        return ["the log holds other messages than the outbox"]

    def supersedes(
        self, said: Statement, *, issued_at: datetime | None = None, retired: Collection[str] = ()
    ) -> bool:
        """Whether it is worth a certificate although the other one has one: it says more, or the other is not settled.

        Of those that were `retired` since nothing has to be said any more. Who looked earlier has nothing to say to who
        looked later, whichever ends last; where a statement does not say when it looked, it was `issued_at` some moment.
        """
        theirs = said.looked_at or issued_at
        if self.looked_at is not None and theirs is not None and self.looked_at < theirs:
            return False
        if self.goes_beyond(said):
            return True
        if said.consumers.keys() - self.consumers.keys() - set(retired):
            return False
        more = bool(self.consumers.keys() - said.consumers.keys()) or self.version > said.version
        return more or (not said.settled and self._terms() != said._terms())

    def _terms(self) -> list[object]:
        counts = [(name, replace(each, digest=Digest())) for name, each in sorted(self.consumers.items())]
        return [self.parked, self.discarded, self.logged, *counts]

    def goes_beyond(self, said: Statement) -> bool:
        """Whether the log has something of the window that it had not when the other one was said."""
        return any(high > said.offsets.get(place, (0, -1))[1] for place, (_, high) in self.offsets.items())

    def as_json(self) -> dict[str, Any]:
        return {
            "version": self.version,
            "hashed": self.hashed,
            "outbox_id": self.outbox_id,
            "window": [self.window.start, self.window.end],
            "written": self.written,
            "logged": self.logged,
            "parked": self.parked,
            "discarded": self.discarded,
            "outbox": self.outbox.text,
            "log": self.log.text,
            "consumers": {
                name: {
                    "logged": count.owed,
                    "applied": count.applied,
                    "queued": count.queued,
                    "dead": count.dead,
                    "discarded": count.discarded,
                    "again": count.again,
                    "inbox": count.digest.text,
                    "effects": None if count.effects is None else count.effects.text,
                }
                for name, count in self.consumers.items()
            },
            "offsets": {place: list(ends) for place, ends in self.offsets.items()},
            "resume": dict(self.resume),
            "looked_at": None if self.looked_at is None else self.looked_at.isoformat(),
        }

    @staticmethod
    def parse(text: str) -> Statement:
        data = json.loads(text)
        version = data.get("version", 1)
        looked_at = data.get("looked_at")
        return Statement(
            outbox_id=data["outbox_id"],
            window=Window(*data["window"]),
            written=data["written"],
            logged=data["logged"],
            parked=data["parked"],
            discarded=data["discarded"],
            outbox=Digest.parse(data["outbox"]),
            log=Digest.parse(data["log"]),
            consumers={name: _count(each, version) for name, each in data["consumers"].items()},
            offsets={place: (ends[0], ends[1]) for place, ends in data["offsets"].items()},
            resume=data["resume"],
            hashed=data.get("hashed", ""),
            looked_at=None if looked_at is None else datetime.fromisoformat(looked_at),
            version=version,
        )


def _count(said: Mapping[str, Any], version: int) -> ConsumerCount:
    # In the first form a window with a dead letter got no certificate: what it called dead was given up.
    dead, discarded = (0, said["dead"]) if version == 1 else (said["dead"], said["discarded"])
    effects = said.get("effects")
    return ConsumerCount(
        said["logged"],
        said["applied"],
        said["queued"],
        dead,
        said["again"],
        Digest.parse(said["inbox"]),
        discarded,
        None if effects is None else Digest.parse(effects),
    )


def canonical(statement: Statement) -> str:
    """The one way to write a statement down."""
    return json.dumps(statement.as_json(), sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def differences(
    said: Statement, now: Statement, *, log: bool = True, without: Collection[str] = ()
) -> list[str]:
    """What the data say today that the certificate does not, apart from what had to change since.

    Without `log` that is not compared, nor is what consumers `without` have: retention has been there, or they were
    retired. Where something was parked, queued or dead, it may have gone its way: that part is held to its equation, and
    the stations to each other, as they stand today. Meanwhile they can only have gained: one that holds no more than
    then holds the same.
    """
    found = []
    if not said.outbox.same_messages(now.outbox) or said.written != now.written:
        found.append(f"the outbox holds {_shown(now.outbox)}, not {_shown(said.outbox)}")
    still = said.parked == 0
    if log:
        found += _logged_otherwise(said, now)
    for name, count in said.consumers.items():
        if name in without:
            continue
        today = now.consumers.get(name)
        if today is None:
            found.append(f"no database or snapshot that was given has a consumer {name}")
            continue
        if (still and count.dead == 0) or today.digest.count <= count.digest.count:
            found += _kept_otherwise(name, count, today, said.version)
        elif log:
            found += today.unlike(name)
        settled = still and count.settled
        wrong = today.violations(name) if log and not settled else today.repeated(name)
        if settled or (not wrong and _applied_no_more(count, today)):
            wrong = _applied_otherwise(name, count, today, alike=said.hashed == now.hashed) + wrong
        found += wrong
    return found


def _applied_no_more(said: ConsumerCount, today: ConsumerCount) -> bool:
    if said.effects is None or today.effects is None:
        return False
    return today.effects.count <= said.effects.count


def _logged_otherwise(said: Statement, now: Statement) -> list[str]:
    if said.parked == 0 or now.log.count <= said.log.count:
        same = said.log.same_messages(now.log)
        return [] if same else [f"the log holds {_shown(now.log)}, not {_shown(said.log)}"]
    return now.unaccounted() or now.unlike_log()


def _kept_otherwise(name: str, said: ConsumerCount, today: ConsumerCount, version: int) -> list[str]:
    if version == 1 and said.again:
        # Copies that it kept under other positions were counted, and no more than that.
        same = said.digest.count + said.again == today.digest.count
    else:
        same = said.digest.same_messages(today.digest)
    return [] if same else [f"the inbox of {name} holds {_shown(today.digest)}, not {_shown(said.digest)}"]


def _applied_otherwise(name: str, said: ConsumerCount, today: ConsumerCount, *, alike: bool) -> list[str]:
    if said.effects is not None and today.effects is not None and alike:
        same = said.effects.same_messages(today.effects)
    else:
        same = said.applied + said.again == today.applied + today.again
    return [] if same else [f"{name} has applied {today.applied} messages, not {said.applied}, or others"]


def _shown(digest: Digest) -> str:
    return f"{digest.count} messages ({digest.limbs[0]:x}…)"
