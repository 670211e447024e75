"""A window's digest: four sums that tell whether two stations hold the same messages. Pure, and easy to do by hand.

A message's digest is MD5 over its id, key and value, each as a netstring (`5:alice`), a missing one as `-`. Its 128
bits are cut into four numbers of 32 bits; a window's digest adds them up, each on its own. Sums do not care for order
and can be merged, so that any number of readers can share a window. Order is told by what stands beside them: the
*inversions*, messages that stand in the log behind a higher position of their lane and partition.

MD5 finds what was lost, doubled or changed; it is no defence against somebody who makes up messages to fit. Sums of
32-bit numbers fit 64 bits for four thousand million messages a window.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

LIMBS = 4


def message_digest(id: str, key: bytes | None, value: bytes | None) -> str:
    """The digest of one message: 32 hexadecimal digits."""
    text = netstring(id.encode()) + netstring(key) + netstring(value)
    return hashlib.md5(text, usedforsecurity=False).hexdigest()


def netstring(part: bytes | None) -> bytes:
    """A part with its length before it, so that no two messages read alike."""
    return b"-" if part is None else b"%d:%b" % (len(part), part)


@dataclass(frozen=True, slots=True)
class Digest:
    """Of any number of messages."""

    count: int = 0
    limbs: tuple[int, int, int, int] = (0, 0, 0, 0)
    inversions: int = 0

    @staticmethod
    def of(digests: Iterable[str], *, inversions: int = 0) -> Digest:
        total = [0] * LIMBS
        count = 0
        for text in digests:
            count += 1
            for at in range(LIMBS):
                total[at] += int(text[8 * at : 8 * at + 8], 16)
        return Digest(count, (total[0], total[1], total[2], total[3]), inversions)

    def __add__(self, other: Digest) -> Digest:
        return self._with(other, 1)

    def __sub__(self, other: Digest) -> Digest:
        return self._with(other, -1)

    def _with(self, other: Digest, sign: int) -> Digest:
        a, b, c, d = (mine + sign * theirs for mine, theirs in zip(self.limbs, other.limbs, strict=True))
        return Digest(
            self.count + sign * other.count, (a, b, c, d), self.inversions + sign * other.inversions
        )

    def same_messages(self, other: Digest) -> bool:
        """Whether both stand for the same messages, in whatever order."""
        return self.count == other.count and self.limbs == other.limbs

    @property
    def text(self) -> str:
        """For a certificate: the count, the four sums, the inversions."""
        return f"{self.count}:{':'.join(map(str, self.limbs))}:{self.inversions}"

    @staticmethod
    def parse(text: str) -> Digest:
        count, a, b, c, d, inversions = map(int, text.split(":"))
        return Digest(count, (a, b, c, d), inversions)


def inversions(positions: Iterable[int]) -> int:
    """How many of these positions, in the log's order, stand behind a higher one."""
    highest = found = 0
    for position in positions:
        found += position < highest
        highest = max(highest, position)
    return found
