"""What stations recorded of messages, as `tally run` reads it, and how far each station reaches, back and forth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

Place = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the outbox. `covered`: a batch that was sent covers it. `age_s`: since it was added."""

    id: str
    position: int
    digest: str
    topic: str = "t"
    key: bytes | None = b"k"
    covered: bool = True
    age_s: float = 0.0
    # Where it must stand in the log, where that is known.
    partition: int | None = 0
    lane: int = 0


@dataclass(frozen=True, slots=True)
class ParkedRow:
    """A row of `parked`."""

    id: str
    position: int
    state: str


@dataclass(frozen=True, slots=True)
class Copy:
    """A committed record of the log. `position` is None where it claims none."""

    id: str
    position: int | None
    digest: str
    offset: int
    topic: str = "t"
    partition: int = 0
    key: bytes | None = b"k"
    age_s: float = 0.0
    # Two outboxes may write into one topic: each counts its own positions.
    source: str = ""


@dataclass(frozen=True, slots=True)
class Kept:
    """A row of an inbox; `offset` is None for what was repaired without Kafka."""

    consumer: str
    id: str
    digest: str
    offset: int | None
    topic: str = "t"
    partition: int = 0
    key: bytes | None = b"k"


@dataclass(frozen=True, slots=True)
class Done:
    """An application: the `seq`th, made in transaction `turn`; `offset` is None for what was repaired without Kafka."""

    consumer: str
    id: str
    outcome: str = "applied"
    seq: int = 0
    turn: int = 0
    offset: int | None = None
    topic: str = "t"
    partition: int = 0


@dataclass(frozen=True, slots=True)
class Queued:
    """A row of a queue."""

    consumer: str
    id: str
    state: str = "ready"


@dataclass(frozen=True, slots=True)
class Letter:
    """A dead letter."""

    consumer: str
    id: str
    state: str = "dead"


@dataclass(frozen=True, slots=True)
class Reader:
    """A consumer: its topics, how far it has come, where it began, and from when on its inbox knows what it kept.

    What lies before its beginning in a partition is not owed to it. Where that was not written down, it is told by what
    was kept, and what was logged since the consumer is known is owed all the same.
    """

    topics: frozenset[str]
    next_offsets: Mapping[Place, int] = field(default_factory=dict)
    beginnings: Mapping[Place, int] = field(default_factory=dict)
    known_for_s: float = 0.0
    kept_from_ms: int = 0
    # Topics whose handlers want the order of each key.
    ordered: frozenset[str] = frozenset()
    # Topics of which the inbox has dropped messages whose ids carry no time.
    pruned: frozenset[str] = frozenset()
    # Places of which its beginning was written down.
    begun: frozenset[Place] = frozenset()
    # Topics that it began to read later than it was made: for how long it has.
    read_for_s: Mapping[str, float] = field(default_factory=dict)

    def known_for(self, topic: str) -> float:
        return self.read_for_s.get(topic, self.known_for_s)


@dataclass(frozen=True, slots=True)
class Horizon:
    """How far each station reaches."""

    readers: Mapping[str, Reader] = field(default_factory=dict)
    # The lowest position that the outbox still keeps.
    outbox_from: int = 1
    log_starts: Mapping[Place, int] = field(default_factory=dict)
    # After so many seconds a topic's retention may drop a message; 0 where it goes by size too.
    expires_after_s: Mapping[str, float] = field(default_factory=dict)
    late_after_s: float = 300.0
    # Topics whose log keeps the last message of each key only; how long ago topics were deleted and made anew.
    compacted: frozenset[str] = frozenset()
    remade_s: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class History:
    """All that was recorded."""

    rows: Sequence[Row] = ()
    parked: Sequence[ParkedRow] = ()
    copies: Sequence[Copy] = ()
    kept: Sequence[Kept] = ()
    done: Sequence[Done] = ()
    queued: Sequence[Queued] = ()
    letters: Sequence[Letter] = ()
