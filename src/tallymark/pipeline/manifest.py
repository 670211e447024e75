"""What an archive holds, as values: which files count, and up to which offset each partition is archived. Pure.

An archive's state is the sum of its changes, which are numbered without gaps. A change says where it starts from, so
that one made from an older state is refused: it is never half right.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any

from tallymark.errors import Inconsistent

FORMAT = 1

Place = tuple[str, int]


class Kind(StrEnum):
    """Why the archive changed."""

    OPENED = "opened"  # a run began: whatever an earlier one still wants to write is refused from here on
    BATCH = "batch"  # files came, and partitions are archived further
    COMPACTED = "compacted"  # few large files stand for many small ones, with the same rows
    SKIPPED = "skipped"  # an operator went on past what Kafka had deleted: the gap is recorded
    SWEPT = "swept"  # files that were replaced are gone from the disk


@dataclass(frozen=True, slots=True)
class Stored:
    """One Parquet file of one topic and day."""

    # Relative to the archive's folder.
    path: str
    topic: str
    date: str
    rows: int
    bytes: int
    # The lowest and the highest of each, both among its rows.
    partitions: tuple[int, int]
    offsets: tuple[int, int]
    logged_ms: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Extent:
    """What is archived of a partition: from `first` up to, and without, `next`."""

    first: int
    next: int


@dataclass(frozen=True, slots=True)
class Move:
    """A partition's step. A new partition's has a start, and nothing before it."""

    topic: str
    partition: int
    start: int
    end: int

    @property
    def place(self) -> Place:
        return self.topic, self.partition


@dataclass(frozen=True, slots=True)
class Change:
    """One manifest: what one commit did."""

    number: int
    kind: Kind
    run: str
    at_ms: int
    # Only in the first: whose archive it is.
    archive_id: str = ""
    cluster_id: str = ""
    # Topics that join, with their ids.
    topics: Mapping[str, str] = field(default_factory=dict)
    moves: tuple[Move, ...] = ()
    add: tuple[Stored, ...] = ()
    remove: tuple[str, ...] = ()
    # Paths that were removed earlier and are now gone from the disk.
    gone: tuple[str, ...] = ()
    # When the logs were looked at, of all of whose messages nothing is left to archive with it; 0 where something is.
    caught_up_ms: int = 0


@dataclass(frozen=True, slots=True)
class Archive:
    """All changes up to `number`, summed up."""

    number: int = 0
    run: str = ""
    archive_id: str = ""
    cluster_id: str = ""
    topics: Mapping[str, str] = field(default_factory=dict)
    extents: Mapping[Place, Extent] = field(default_factory=dict)
    files: Mapping[str, Stored] = field(default_factory=dict)
    # Replaced, and still on the disk for those who read them: path to when.
    retired: Mapping[str, int] = field(default_factory=dict)
    # What was deleted in Kafka before it was archived, and passed over by an operator.
    gaps: tuple[Move, ...] = ()
    # All that was logged up to then is archived; 0 where nobody has said so.
    caught_up_ms: int = 0

    @property
    def copied_ms(self) -> int:
        """As of when it is a copy. Where no run was at the ends of the logs yet: of the newest message that it holds."""
        return self.caught_up_ms or max((each.logged_ms[1] for each in self.files.values()), default=0)

    @property
    def rows(self) -> int:
        return sum(each.rows for each in self.files.values())

    @property
    def bytes(self) -> int:
        return sum(each.bytes for each in self.files.values())

    def after(self, change: Change) -> Archive:
        """The state after one more change; Inconsistent where it does not follow from this one."""
        if change.number != self.number + 1:
            raise Inconsistent(f"manifest {change.number} does not follow {self.number}")
        if self.archive_id and change.archive_id not in ("", self.archive_id):
            raise Inconsistent(f"manifest {change.number} belongs to another archive")
        removed = set(change.remove)
        if strange := sorted(removed - self.files.keys()):
            raise Inconsistent(
                f"manifest {change.number} removes {strange[0]}, which the archive does not have"
            )
        if double := sorted({each.path for each in change.add} & self.files.keys()):
            raise Inconsistent(f"manifest {change.number} adds {double[0]} a second time")
        files = {path: each for path, each in self.files.items() if path not in removed}
        retired = dict(self.retired) | dict.fromkeys(change.remove, change.at_ms)
        return Archive(
            number=change.number,
            run=change.run,
            archive_id=self.archive_id or change.archive_id,
            cluster_id=self.cluster_id or change.cluster_id,
            topics={**self.topics, **change.topics},
            extents=self._moved(change),
            files=files | {each.path: each for each in change.add},
            retired={path: at for path, at in retired.items() if path not in set(change.gone)},
            gaps=self.gaps + (change.moves if change.kind is Kind.SKIPPED else ()),
            caught_up_ms=max(self.caught_up_ms, change.caught_up_ms),
        )

    def _moved(self, change: Change) -> dict[Place, Extent]:
        extents = dict(self.extents)
        for move in change.moves:
            found = extents.get(move.place)
            if move.end < move.start or (found is not None and found.next != move.start):
                stands = f"stands at {found.next}" if found else "is new"
                raise Inconsistent(
                    f"manifest {change.number} moves {move.topic}/{move.partition} from {move.start} to {move.end}, "
                    f"but it {stands}"
                )
            extents[move.place] = replace(found, next=move.end) if found else Extent(move.start, move.end)
        return extents


def summed(changes: Iterable[Change], start: Archive | None = None) -> Archive:
    """The state that these changes lead to."""
    state = start or Archive()
    for change in changes:
        state = state.after(change)
    return state


def change_text(change: Change) -> str:
    """A manifest as it stands on the disk."""
    return json.dumps({"format": FORMAT, **asdict(change)}, separators=(",", ":")) + "\n"


def change_of(text: str) -> Change:
    """A manifest, read. ValueError, KeyError or TypeError where it is none."""
    raw = _checked(text)
    return Change(
        **{
            **raw,
            "kind": Kind(raw["kind"]),
            "moves": _moves(raw["moves"]),
            "add": tuple(_stored(each) for each in raw["add"]),
            "remove": tuple(raw["remove"]),
            "gone": tuple(raw["gone"]),
        }
    )


def state_text(state: Archive) -> str:
    """A sum as it stands on the disk, so that nobody adds up all changes since the first."""
    raw = {
        **asdict(replace(state, extents={})),
        "extents": [[*place, each.first, each.next] for place, each in sorted(state.extents.items())],
        "files": [asdict(each) for each in state.files.values()],
    }
    return json.dumps({"format": FORMAT, **raw}, separators=(",", ":")) + "\n"


def state_of(text: str) -> Archive:
    """A sum, read."""
    raw = _checked(text)
    files = [_stored(each) for each in raw["files"]]
    return Archive(
        **{
            **raw,
            "extents": {
                (topic, partition): Extent(first, after) for topic, partition, first, after in raw["extents"]
            },
            "files": {each.path: each for each in files},
            "gaps": _moves(raw["gaps"]),
        }
    )


def _checked(text: str) -> dict[str, Any]:
    raw: dict[str, Any] = json.loads(text)
    if raw.pop("format") != FORMAT:
        raise ValueError("it is of another format")
    return raw


def _moves(raw: Sequence[Mapping[str, Any]]) -> tuple[Move, ...]:
    return tuple(Move(**each) for each in raw)


def _stored(raw: Mapping[str, Any]) -> Stored:
    pairs = {name: tuple(raw[name]) for name in ("partitions", "offsets", "logged_ms")}
    return Stored(**{**raw, **pairs})
