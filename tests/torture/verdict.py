"""What the outbox holds against what a reader of the log sees: missing, doubled, reordered, phantoms. Pure.

The truth of order is the key's own sequence number, which the writer took under the key's row lock and wrote into the
value. Nothing here knows of batches, lanes or receipts.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

NAMED = 20


@dataclass(frozen=True, slots=True)
class Written:
    """A committed row of the outbox, in order of position."""

    id: str
    key: str | None
    seq: int
    value: bytes


@dataclass(frozen=True, slots=True)
class Logged:
    """A message that a read_committed reader was given, in order of offset within its partition."""

    id: str
    key: str | None
    seq: int
    value: bytes
    partition: int
    offset: int


@dataclass(frozen=True)
class Verdict:
    """Each list names messages; all empty is what was promised."""

    messages: int
    missing: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    reordered: list[str] = field(default_factory=list)
    phantoms: list[str] = field(default_factory=list)
    altered: list[str] = field(default_factory=list)
    split_keys: list[str] = field(default_factory=list)
    # The outbox itself: a key's numbers must rise by one with position, or the torture's own premise fails.
    misplaced: list[str] = field(default_factory=list)

    @property
    def faults(self) -> dict[str, list[str]]:
        every = {
            "missing": self.missing,
            "doubled": self.doubled,
            "reordered": self.reordered,
            "phantoms": self.phantoms,
            "altered": self.altered,
            "split_keys": self.split_keys,
            "misplaced": self.misplaced,
        }
        return {name: found for name, found in every.items() if found}


def compare(written: Sequence[Written], logged: Sequence[Logged]) -> Verdict:
    """Judge a finished run."""
    rows = {row.id: row for row in written}
    seen = Counter(message.id for message in logged)
    return Verdict(
        messages=len(rows),
        missing=[_row(row) for row in written if row.id not in seen],
        doubled=[f"{id_} × {times}" for id_, times in seen.items() if times > 1],
        reordered=_reordered(logged),
        phantoms=[_message(m) for m in logged if m.id not in rows],
        altered=[_message(m) for m in logged if m.id in rows and not _same(rows[m.id], m)],
        split_keys=_split(logged),
        misplaced=_misplaced(written),
    )


def _same(row: Written, message: Logged) -> bool:
    return (row.key, row.value) == (message.key, message.value)


def _reordered(logged: Iterable[Logged]) -> list[str]:
    """Messages that stand behind a later one of their key. A second copy is doubled, not reordered."""
    highest: dict[str, int] = defaultdict(int)
    found, met = [], set()
    for message in sorted(logged, key=lambda m: (m.partition, m.offset)):
        if message.key is None or message.id in met:
            continue
        met.add(message.id)
        if message.seq < highest[message.key]:
            found.append(f"{_message(message)} stands behind number {highest[message.key]}")
        highest[message.key] = max(highest[message.key], message.seq)
    return found


def _split(logged: Iterable[Logged]) -> list[str]:
    homes: dict[str, set[int]] = defaultdict(set)
    for message in logged:
        if message.key is not None:
            homes[message.key].add(message.partition)
    return [f"{key} in partitions {sorted(home)}" for key, home in homes.items() if len(home) > 1]


def _misplaced(written: Iterable[Written]) -> list[str]:
    last: dict[str, int] = defaultdict(int)
    found = []
    for row in written:
        if row.key is None:
            continue
        if row.seq != last[row.key] + 1:
            found.append(f"{_row(row)} comes after number {last[row.key]}")
        last[row.key] = row.seq
    return found


def _row(row: Written) -> str:
    return f"{row.id} (key {row.key}, number {row.seq})"


def _message(message: Logged) -> str:
    return (
        f"{message.id} (key {message.key}, number {message.seq}, "
        f"partition {message.partition}, offset {message.offset})"
    )
