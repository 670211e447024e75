"""The chain of an outbox's certificates: each is hashed together with the hash before it. Pure.

The hash of a certificate is SHA-256 over the hash before it, a line feed, and the statement as JSON with sorted names
and no spaces: whoever has the data can write the statement again and compare.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise

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
    # When it was given, by the outbox's clock. Nobody has signed that.
    issued_at: datetime | None = None

    @property
    def said(self) -> Statement:
        return Statement.parse(self.statement)

    @property
    def is_signed(self) -> bool:
        return chained_hash(self.previous, self.statement) == self.hash


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
        if not certificate.is_signed:
            found.append((certificate.number, "its statement is not the one that was signed"))
        elif certificate.window not in (None, certificate.said.window):
            found.append((certificate.number, "it stands beside another window than it speaks of"))
        before = certificate.hash
    return found


def width(chain: Iterable[Certificate]) -> int | None:
    """How many positions a window has: as the first certificate says whose statement is the one that was signed.

    What stands beside it, or in one that was changed, is nobody's word.
    """
    for certificate in chain:
        if certificate.is_signed:
            window = certificate.said.window
            return window.end - window.start
    return None


def unseen(chain: Sequence[Certificate], ends: Iterable[tuple[int, str]]) -> list[tuple[int, str]]:
    """That a chain does not hold what runs have seen at its end, each by number and hash: number, and what is wrong.

    A chain that was cut off is whole by itself.
    """
    hashes = {each.number: each.hash for each in chain}
    last = chain[-1].number if chain else 0
    seen = sorted(set(ends))
    found = [
        (number, "it is not the one that a run has seen under this number")
        for number, hash_ in seen
        if hashes.get(number, hash_) != hash_
    ][:1]
    if seen and seen[-1][0] > last:
        end = f"the chain ends at certificate {last}" if chain else "there are none"
        found.append((seen[-1][0], f"a run has seen certificates up to {seen[-1][0]}, and {end}"))
    return found


def trusted(chain: Sequence[Certificate]) -> list[Certificate]:
    """Those that nobody has touched: not what was tampered with, and not what stands before a link that does not fit.

    What is chained to the hash of one whose statement was changed is sound: that hash is the old statement's. Where the
    hash was changed with it, the next one's link does not fit, and says so of both.
    """
    broken = {number for number, _ in broken_links(chain)}
    unlinked = {one.number for one, other in pairwise(chain) if other.previous != one.hash}
    return [each for each in chain if each.number not in broken | unlinked]
