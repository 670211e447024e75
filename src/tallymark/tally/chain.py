"""The chain of an outbox's certificates: each is hashed together with the hash before it. Pure.

The hash of a certificate is SHA-256 over the hash before it, a line feed, and the statement as JSON with sorted names
and no spaces: whoever has the data can write the statement again and compare.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile

from tallymark.errors import Inconsistent
from tallymark.tally.certificates import Statement, canonical
from tallymark.tally.windows import Window

# What the first certificate of an outbox is chained to.
GENESIS = "0" * 64


@dataclass(frozen=True, slots=True)
class Certificate:
    """A statement in its chain."""

    number: int
    statement: str
    previous: str
    hash: str
    # As it is written beside the statement, which may be unreadable.
    window: Window | None = None

    @property
    def said(self) -> Statement:
        return Statement.parse(self.statement)


def chained_hash(previous: str, statement: str) -> str:
    return hashlib.sha256(f"{previous}\n{statement}".encode()).hexdigest()


def issued(statement: Statement, last: Certificate | None) -> Certificate:
    """The next certificate of a chain."""
    if broken := statement.violations():
        raise Inconsistent(f"window {statement.window.start}–{statement.window.end - 1}: {'; '.join(broken)}")
    text = canonical(statement)
    previous = last.hash if last else GENESIS
    number = last.number + 1 if last else 1
    return Certificate(number, text, previous, chained_hash(previous, text), statement.window)


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
        elif certificate.window not in (None, certificate.said.window):
            found.append((certificate.number, "it stands beside another window than it speaks of"))
        before = certificate.hash
    return found


def trusted(chain: Sequence[Certificate]) -> list[Certificate]:
    """Those before the first that was tampered with: what follows is chained to nobody knows what."""
    broken = {number for number, _ in broken_links(chain)}
    return list(takewhile(lambda each: each.number not in broken, chain))
