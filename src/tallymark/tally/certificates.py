"""Certificates: for each closed window a statement with its equations and digests, chained by hash. Pure.

The equations (a certificate is only given where both hold):

    written = logged + parked + discarded
    logged  = applied + queued + dead + again         for each consumer, of the topics that it reads

All are counts of the window's rows. *again* are copies that the consumer had before: a resend is a row of its own and
counts in its own window, and consumers that had the message change nothing.

The hash of a certificate is SHA-256 over the hash before it, a line feed, and the statement as JSON with sorted names
and no spaces: whoever has the data can write the statement again and compare.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tallymark.errors import Inconsistent
from tallymark.tally.digest import Digest
from tallymark.tally.windows import Window

# What the first certificate of an outbox is chained to.
GENESIS = "0" * 64


@dataclass(frozen=True, slots=True)
class ConsumerCount:
    """What one consumer did with a window's messages."""

    # Logged messages of the topics that it reads.
    owed: int
    applied: int
    queued: int
    dead: int
    again: int
    digest: Digest

    @property
    def total(self) -> int:
        return self.applied + self.queued + self.dead + self.again


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

    def violations(self) -> list[str]:
        """The equations that do not hold."""
        found = []
        if self.written != self.logged + self.parked + self.discarded:
            found.append(
                f"written {self.written} <> logged {self.logged} + parked {self.parked}"
                f" + discarded {self.discarded}"
            )
        for name, count in sorted(self.consumers.items()):
            if count.owed != count.total:
                found.append(
                    f"{name}: logged {count.owed} <> applied {count.applied} + queued {count.queued}"
                    f" + dead {count.dead} + again {count.again}"
                )
        return found

    def goes_beyond(self, said: Statement) -> bool:
        """Whether the log has something of the window that it had not when the other one was said."""
        return any(high > said.offsets.get(place, (0, -1))[1] for place, (_, high) in self.offsets.items())

    def as_json(self) -> dict[str, Any]:
        return {
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
                    "again": count.again,
                    "inbox": count.digest.text,
                }
                for name, count in self.consumers.items()
            },
            "offsets": {place: list(ends) for place, ends in self.offsets.items()},
            "resume": dict(self.resume),
        }

    @staticmethod
    def parse(text: str) -> Statement:
        data = json.loads(text)
        return Statement(
            outbox_id=data["outbox_id"],
            window=Window(*data["window"]),
            written=data["written"],
            logged=data["logged"],
            parked=data["parked"],
            discarded=data["discarded"],
            outbox=Digest.parse(data["outbox"]),
            log=Digest.parse(data["log"]),
            consumers={
                name: ConsumerCount(
                    each["logged"],
                    each["applied"],
                    each["queued"],
                    each["dead"],
                    each["again"],
                    Digest.parse(each["inbox"]),
                )
                for name, each in data["consumers"].items()
            },
            offsets={place: (ends[0], ends[1]) for place, ends in data["offsets"].items()},
            resume=data["resume"],
        )


@dataclass(frozen=True, slots=True)
class Certificate:
    """A statement in its chain."""

    number: int
    statement: str
    previous: str
    hash: str

    @property
    def said(self) -> Statement:
        return Statement.parse(self.statement)


def canonical(statement: Statement) -> str:
    """The one way to write a statement down."""
    return json.dumps(statement.as_json(), sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def chained_hash(previous: str, statement: str) -> str:
    return hashlib.sha256(f"{previous}\n{statement}".encode()).hexdigest()


def issued(statement: Statement, last: Certificate | None) -> Certificate:
    """The next certificate of a chain."""
    if broken := statement.violations():
        raise Inconsistent(f"window {statement.window.start}–{statement.window.end - 1}: {'; '.join(broken)}")
    text = canonical(statement)
    previous = last.hash if last else GENESIS
    return Certificate(last.number + 1 if last else 1, text, previous, chained_hash(previous, text))


def newest(chain: Iterable[Certificate]) -> list[Certificate]:
    """The last certificate of each window: one is certified again where the log says something new of it."""
    return list({each.said.window: each for each in chain}.values())


def broken_links(chain: Iterable[Certificate]) -> list[tuple[int, str]]:
    """Certificates that were tampered with: number, and what does not fit. A chain is whole when there are none."""
    found = []
    before = GENESIS
    number = 0
    for certificate in chain:
        number += 1
        if certificate.number != number:
            found.append((certificate.number, f"certificate {number} is missing"))
            number = certificate.number
        elif certificate.previous != before:
            found.append((certificate.number, "it is not chained to the one before it"))
        if chained_hash(certificate.previous, certificate.statement) != certificate.hash:
            found.append((certificate.number, "its statement is not the one that was signed"))
        before = certificate.hash
    return found


def differences(
    said: Statement, now: Statement, *, log: bool = True, without: Collection[str] = ()
) -> list[str]:
    """What the data say today that the certificate does not, apart from what had to change since.

    Without `log` that is not compared, nor are the inboxes of consumers `without`: retention has been there. Where
    messages of the window were sent again since, a consumer may have kept them under their new positions: it is held to
    their number.

    What was parked, queued or dead may have gone its way, so that parts which had such messages are not compared by
    digest; their sums still are.
    """
    found = []
    if not said.outbox.same_messages(now.outbox) or said.written != now.written:
        found.append(f"the outbox holds {_shown(now.outbox)}, not {_shown(said.outbox)}")
    settled = said.parked == 0
    if log and settled and not said.log.same_messages(now.log):
        found.append(f"the log holds {_shown(now.log)}, not {_shown(said.log)}")
    for name, count in said.consumers.items():
        today = now.consumers.get(name)
        if today is None:
            found.append(f"consumer {name} is not there any more")
        elif (
            name not in without
            and settled
            and count.dead == 0
            and not count.digest.same_messages(today.digest)
            and not (today.again > count.again and today.total == count.total)
        ):
            found.append(f"the inbox of {name} holds {_shown(today.digest)}, not {_shown(count.digest)}")
    return found


def _shown(digest: Digest) -> str:
    return f"{digest.count} messages ({digest.limbs[0]:x}…)"
