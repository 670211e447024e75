"""What the databases hold of one message, station by station: what a trace is told from. Values only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

# A consumer: its database and its name there. Two databases may each have one of the same name.
Who = tuple[str, str]


@dataclass(frozen=True, slots=True)
class WrittenRow:
    """One row of an outbox, with the batch that covers it."""

    database: str
    position: int | None
    topic: str
    key: bytes | None
    lane: int | None
    added_at: datetime
    # When its transaction committed; None where the server does not keep that (track_commit_timestamp).
    committed_at: datetime | None = None
    due_at: datetime | None = None
    resend: int = 0
    batch: int | None = None
    batch_kind: str | None = None
    mode: str | None = None
    batch_state: str | None = None
    owner: str | None = None
    claimed_at: datetime | None = None
    sent_at: datetime | None = None
    receipt_offset: int | None = None
    in_doubt: bool = False
    parked: str | None = None
    parked_reason: str | None = None
    parked_at: datetime | None = None
    parked_changed_at: datetime | None = None
    # While nobody has claimed it: why.
    waits_for: str | None = None
    window: str | None = None
    certificate: int | None = None
    certified_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class KeptRow:
    """One consumer's row of its inbox."""

    database: str
    consumer: str
    source: str
    topic: str
    partition: int
    offset: int | None
    position: int | None
    key: bytes | None
    logged_at: datetime | None
    kept_at: datetime
    committed_at: datetime | None
    next_offset: int | None


@dataclass(frozen=True, slots=True)
class Effect:
    """One application."""

    database: str
    consumer: str
    seq: int
    attempt: int
    outcome: str
    at: datetime


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A row of a consumer's queue."""

    database: str
    consumer: str
    state: str
    attempts: int
    reason: str | None
    due_at: datetime | None
    # How many of its key stand before it; whether a process of the consumer runs.
    ahead: int = 0
    served: bool = True


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A dead letter, or what became of it."""

    database: str
    consumer: str
    state: str
    attempts: int
    reason: str
    topic: str
    partition: int
    offset: int | None
    died_at: datetime
    changed_at: datetime
    position: int | None = None


@dataclass(frozen=True, slots=True)
class Deed:
    """What a person did to it: a row of an audit."""

    database: str
    at: datetime
    who: str
    action: str
    reason: str


@dataclass(frozen=True, slots=True)
class Records:
    """Everything that was found under one id."""

    written: Sequence[WrittenRow] = ()
    kept: Sequence[KeptRow] = ()
    effects: Sequence[Effect] = ()
    unfinished: Sequence[Unfinished] = ()
    dead: Sequence[DeadLetter] = ()
    deeds: Sequence[Deed] = ()
    # Consumers that read its topic, whether they have it or not; and whether any outbox was asked at all.
    consumers: Sequence[Who] = ()
    outboxes_asked: int = 0
    # The lowest position that all of these outboxes still keep; and consumers that have passed its place in the log.
    outbox_from: int = 1
    passed: Sequence[Who] = ()
    # Consumers whose database has dropped what was kept at its time.
    forgotten: Sequence[Who] = ()
    # Consumers that began behind its place in the log.
    unowed: Sequence[Who] = ()

    @property
    def topic(self) -> str | None:
        found = [row.topic for row in self.written] + [row.topic for row in self.kept]
        return next(iter(found + [letter.topic for letter in self.dead]), None)

    @property
    def place(self) -> tuple[int, int] | None:
        """Partition and offset, where a consumer has it from the log."""
        return next(((row.partition, row.offset) for row in self.received if row.offset is not None), None)

    @property
    def received(self) -> list[KeptRow | DeadLetter]:
        return [*self.kept, *self.dead]


def who(row: KeptRow | Effect | Unfinished | DeadLetter) -> Who:
    """Whose it is."""
    return row.database, row.consumer
