"""The demo's own check, independent of the tally: outbox, log and books by id, with plain SQL and a plain consumer.

*Missing* was committed and is not there. *Doubled* is there more than once; each copy beyond the first counts.
*Reordered* stands behind a later one of its key. *Phantom* is there and was never committed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import psycopg

# What belongs in order (an account, a key), and the name of the message.
Named = tuple[Hashable, Hashable]


@dataclass(frozen=True, slots=True)
class Compared:
    """What one station has, against what was committed."""

    wanted: int = 0
    found: int = 0
    missing: int = 0
    doubled: int = 0
    reordered: int = 0
    phantoms: int = 0

    @property
    def equal(self) -> bool:
        return not (self.missing or self.doubled or self.reordered or self.phantoms)


@dataclass(frozen=True, slots=True)
class Balances:
    """Accounts that differ from the bank's, and by how many cents altogether."""

    accounts_off: int = 0
    cents_off: int = 0

    @property
    def equal(self) -> bool:
        return not self.accounts_off


def compare(wanted: Sequence[Named], found: Sequence[Named]) -> Compared:
    """Both in their order. Only first copies can be out of order: a second one is doubled already."""
    place = {name: at for at, (_, name) in enumerate(wanted)}
    counts = Counter(name for _, name in found)
    reached: dict[Hashable, int] = {}
    seen: set[Hashable] = set()
    reordered = 0
    for key, name in found:
        if name in seen or name not in place:
            continue
        seen.add(name)
        reordered += place[name] < reached.get(key, -1)
        reached[key] = max(place[name], reached.get(key, -1))
    return Compared(
        wanted=len(wanted),
        found=len(found),
        missing=len(place.keys() - counts.keys()),
        doubled=sum(count - 1 for name, count in counts.items() if name in place),
        reordered=reordered,
        phantoms=sum(count for name, count in counts.items() if name not in place),
    )


def balances(wanted: Mapping[str, int], found: Mapping[str, int]) -> Balances:
    off = [abs(cents - found.get(name, 0)) for name, cents in wanted.items() if cents != found.get(name, 0)]
    return Balances(len(off), sum(off))


@dataclass(frozen=True, slots=True)
class Books:
    """A database's books: bookings in order, and what every account came to."""

    booked: list[Named]
    accounts: dict[str, int]


def bank_books(url: str) -> Books:
    """What was committed."""
    return _read(url, b"select payer, number from transfer order by number")


def follower_books(url: str) -> Books:
    """What somebody made of it, in the order in which it did."""
    return _read(url, b"select payer, transfer from entry order by seq")


def outbox(url: str) -> list[Named]:
    """Key and id of every message, in order."""
    with psycopg.connect(url) as connection:
        rows = connection.execute("select key, id::text from tallymark.outbox order by position").fetchall()
    return [(bytes(key), id_) for key, id_ in rows]


def _read(url: str, bookings: bytes) -> Books:
    with psycopg.connect(url) as connection:
        booked = connection.execute(bookings).fetchall()
        accounts = connection.execute("select name, cents from account").fetchall()
    return Books([(payer, number) for payer, number in booked], dict(accounts))
