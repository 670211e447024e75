"""The messages that benchmarks send: JSON of about 200 bytes with random contents, over 1,000 keys, seeded.

Random, because values that compress well flatter whatever moves them; seeded, so that two sides of a
comparison send the very same bytes.
"""

from __future__ import annotations

import base64
import random
from collections.abc import Iterator
from dataclasses import dataclass

KEYS = 1_000
SEED = 7
_NOTE = 112  # random characters per value; the JSON around it brings the total to about 200 bytes


@dataclass(frozen=True, slots=True)
class Payload:
    """One message to send."""

    key: bytes
    value: bytes


def payloads(count: int, *, seed: int = SEED) -> Iterator[Payload]:
    """`count` distinct messages; the same seed gives the same ones."""
    rng = random.Random(seed)
    keys = [b"account-%04d" % number for number in range(KEYS)]
    for number in range(count):
        note = base64.b64encode(rng.randbytes(_NOTE * 3 // 4))
        key = keys[rng.randrange(KEYS)]
        cents = rng.randrange(1, 10_000_000)
        yield Payload(
            key,
            b'{"number": %d, "account": "%s", "cents": %d, "currency": "EUR", "note": "%s"}'
            % (number, key, cents, note),
        )
