"""What the inbox needs of a database and of Kafka, and the values that pass between them.

The rule that everything here serves (P4, P5): a position moves only in the transaction that keeps the messages before
it, and names the epoch and the offset it started from; an effect commits only together with its mark.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple, Protocol

from tallymark.errors import Problem, Stale
from tallymark.lifecycle import ApplicationOutcome, OwnerKind

# A topic and one of its partitions.
Place = tuple[str, int]


class Received(NamedTuple):
    """One message as it came from the log. A tuple in the order of the table's columns, for there are millions."""

    id: uuid.UUID
    source: str
    # The producer's own id where that is not a UUIDv7; `id` is then derived from it.
    named: str | None
    topic: str
    partition: int
    # None for what was repaired without Kafka.
    offset: int | None
    # The outbox position that its producer gave it; None from a foreign producer.
    position: int | None
    key: bytes | None
    value: bytes | None
    # The headers as JSON, without ce_id, ce_source and tm_position, which have columns of their own.
    headers: str
    # Kafka's time of the record.
    logged_at: datetime | None


class Kept(NamedTuple):
    """What keeping a batch found, as indexes into it."""

    # Kept now, for the first time.
    new: Sequence[int]
    # Had been kept before, with the same contents: nothing is left to do.
    repeated: Sequence[int]
    # An id that was used before for other contents.
    reused: Sequence[int]


class Queued(NamedTuple):
    """A kept message that is not finished: it waits in the queue, behind those of its key."""

    message: Received
    key_hash: int
    # Drawn when it was queued: the order within its key. None before that.
    seq: int | None = None
    attempts: int = 0


class Application(NamedTuple):
    """One effect, as it is recorded in the transaction that made it."""

    message: Received
    outcome: ApplicationOutcome
    attempt: int


class Failed(NamedTuple):
    """A message whose handler failed and that will be tried again, or never."""

    queued: Queued
    reason: str
    traceback: str
    # Seconds until the next attempt; None means that it is dead.
    again_in_s: float | None
    # Whether the key's later messages wait behind a dead one.
    hold_key: bool = True


class Move(NamedTuple):
    """A position's step in the transaction that keeps what lies between."""

    topic: str
    partition: int
    epoch: int
    start: int
    end: int
    leader_epoch: int | None
    logged_at: datetime | None


@dataclass(frozen=True, slots=True)
class Position:
    """How far a consumer has come in one partition, and who may move it."""

    topic: str
    partition: int
    next_offset: int
    epoch: int
    owner: str | None
    owner_kind: OwnerKind | None
    leader_epoch: int | None
    topic_id: str
    # What was found that must not be papered over; the partition stands still until an operator seeks.
    halted: str | None = None
    # Kafka's time of the last message kept.
    logged_at: datetime | None = None
    # Whether its owner's lease still runs.
    lease_alive: bool = False
    # Whether this taking was refused, because the owner named here holds a lease of the other kind.
    refused: bool = False

    @property
    def place(self) -> Place:
        return self.topic, self.partition


@dataclass(frozen=True, slots=True)
class Wanted:
    """A partition that Kafka assigned to us; `start` counts where there is no position yet."""

    topic: str
    partition: int
    topic_id: str
    start: int


@dataclass(frozen=True, slots=True)
class Instance:
    """One running process of a consumer."""

    owner: str
    consumer: str
    topics: tuple[str, ...]
    mode: str
    version: str
    host: str
    pid: int
    # Topics whose handlers take any order; None where no handlers are known here.
    unordered: tuple[str, ...] | None = None
    # Where its positions are: "database", or "kafka" (the group's own offsets).
    positions: str = "database"
    # Topics whose handlers pass older versions over; None where no handlers are known here.
    versioned: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Standing:
    """What a heartbeat learns: whether an operator paused the consumer, and the epochs of what is still ours."""

    paused: bool
    epochs: Mapping[Place, int]
    # Whether this process still stands among the instances.
    known: bool = True


class StalePositions(Stale):
    """Another owner has come for these places; the transaction changed nothing."""

    def __init__(self, places: Collection[Place]) -> None:
        self.places = frozenset(places)
        named = ", ".join(f"{topic}/{partition}" for topic, partition in sorted(self.places))
        super().__init__(f"another owner has taken {named}: this write changed nothing")


class TransactionSpoilt(Problem):
    """A statement of the inbox's own was refused in a transaction that a handler had used: nobody knows whose doing."""


class InboxTx(Protocol):
    """One transaction of the consumer's database. Everything in it commits together, or not at all."""

    @property
    def handed(self) -> Any:
        """What handlers get: a psycopg connection, a SQLAlchemy session or Django's connection."""

    @property
    def lost(self) -> bool:
        """Whether the connection beneath is gone: what failed is then nobody's fault. Asks nothing of the server."""

    @property
    def over(self) -> bool:
        """Whether a handler ended the transaction beneath us. Asks nothing of the server."""

    @property
    def mark(self) -> str | None:
        """By what `committed` knows this transaction; there once something is claimed, or the queue was asked."""

    def committed(self, mark: str | None) -> bool:
        """Whether an earlier transaction was committed, by whomever."""

    def standing(self, rows: Sequence[Queued]) -> list[Queued]:
        """Lock the keys of these, waiting for them, and give back those still unfinished."""

    def keep(self, messages: Sequence[Received]) -> Kept:
        """Keep messages; must be the transaction's first write. Repeated ids are told apart, not refused."""

    def any_queued(self) -> bool:
        """Whether this consumer has anything unfinished at all: the cheap question before `held`."""

    def held(self, key_hashes: Collection[int]) -> frozenset[int]:
        """Those of these keys that have unfinished messages in the queue."""

    def enqueue(self, rows: Sequence[Queued]) -> list[int]:
        """Put kept messages into the queue, in this order; gives back their seqs."""

    def claim(self, after: int, bounds: ClaimBounds) -> Claim:
        """Lock some keys that have work due, going round from key hash `after`, and read their lowest rows.

        Those of other topics than these are left alone: their handler was taken away, or is in another program.
        """

    def finish(self, rows: Sequence[Queued]) -> None:
        """These are done: take them out of the queue (and mark a dead letter among them as applied)."""

    def fail(self, failures: Sequence[Failed]) -> None:
        """Count the attempt; set the time of the next one, or bury it as a dead letter that keeps its place."""

    def quarantine(self, messages: Sequence[tuple[Received, str]]) -> None:
        """Dead letters for what cannot be kept as usual (an id reused, too old to know, from the future)."""

    def record(self, applications: Sequence[Application]) -> None:
        """Append effects, in order."""

    def advance(self, moves: Sequence[Move], applications: Sequence[Application] = ()) -> None:
        """Move positions, each from the epoch and offset it names; raises StalePositions for the others.

        Records effects with it: for a few of them that is one trip to the database instead of three.
        """

    def raise_version(self, topic: str, key: bytes, version: int) -> bool:
        """Remember the key's version if it is higher than the one remembered; False, and unchanged, if not."""

    def locked_version(self, table: str, key_column: str, version_column: str, key: Any) -> int | None:
        """The version in the team's own table, its row locked; None where there is no row."""

    def savepoint(self) -> AbstractContextManager[None]:
        """What fails inside is undone back to here; the transaction goes on."""

    def settle_handed(self, *, check: bool = False) -> None:
        """After a handler: write what its session still holds back, refuse what it must not do (commit, close).

        `check` raises now what a deferred constraint would refuse at the commit.
        """


class ClaimBounds(NamedTuple):
    """How much one claim may take, and of what."""

    topics: Collection[str]
    keys: int
    rows: int
    max_bytes: int
    # Keys that are claimed with no other: they are slow, and others would wait for them.
    apart: Collection[int] = ()


class Claim(NamedTuple):
    """Queue rows whose keys this transaction holds, in order within each key; where the next round begins."""

    rows: Sequence[Queued]
    after: int
    # When the first of them was kept, for the metrics.
    first_kept_at: datetime | None = None


class InboxStore(Protocol):
    """One consumer's tables. One per thread; each reconnects by itself."""

    def enlist(self, instance: Instance, lease_s: float) -> None:
        """Check the schema, make partitions ahead, say who runs. Refuses other topics under the same name."""

    def heartbeat(self, owner: str, lease_s: float, epochs: Mapping[Place, int]) -> Standing:
        """Say that we live, and renew the leases of what we hold at these epochs; nothing else that bears our name."""

    def leave(self, owner: str) -> None: ...

    def kept_from(self) -> datetime:
        """Ids older than this were dropped together with what was saved of them: nobody can know."""

    def memory(self) -> tuple[datetime, datetime]:
        """The same, and what time it is, by the one clock that all processes share."""

    def positions(self) -> dict[Place, Position]: ...

    def found_topic(self, wanted: Sequence[Wanted]) -> None:
        """A topic that this consumer has no position in yet: all of its partitions get one, at once, without an owner.

        Two processes that start together would otherwise take the second's partitions for ones added later.
        """

    def take(self, owner: str, kind: OwnerKind, lease_s: float, wanted: Sequence[Wanted]) -> list[Position]:
        """Take partitions with a new epoch each; refused (and unchanged) where another kind's lease still runs."""

    def end_sessions(self, owners: Collection[str]) -> None:
        """End what these processes have begun in the database: a stopped one must not make its successor wait."""

    def end_lapsed(self, owner: str) -> int:
        """The same for all others of this consumer whose last sign of life is older than their lease; how many."""

    def release(self, owner: str, epochs: Mapping[Place, int]) -> None:
        """Give up what is still ours at these epochs."""

    def halt(self, place: Place, epoch: int, reason: str) -> None: ...

    def count_fenced(self, places: Collection[Place]) -> None: ...

    def begin(self) -> AbstractContextManager[InboxTx]:
        """A transaction: commits at the end of the block, rolls back where it raises.

        A lost connection raises OutcomeUnknown: it may have committed.
        """

    def abort_other(self) -> None:
        """From another thread: end this store's database session, whatever its owner is doing. It cannot commit."""

    def close(self) -> None: ...
