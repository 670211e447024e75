"""What the relay needs of a database and of Kafka, and the values that pass between them.

Every write of `RelayStore` that concerns a lane names the owner and the epoch that it expects, and a batch's write its
version too; one that is no longer so raises `Stale` and changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tallymark.lifecycle import BatchKind, HoldState, Mode

# position, id, topic, key, value, headers as JSON, partition, weight with those read before it: a plain tuple, for there
# are millions of them, and just as a store reads it, for cutting them to size takes a tenth of the time.
Row = tuple[int, str, str, bytes | None, bytes | None, str, int | None, int]
Key = tuple[str, bytes]


@dataclass(frozen=True, slots=True)
class Identity:
    """Who the outbox is, and how it is cut into lanes."""

    outbox_id: str
    lanes: int
    receipts_topic_id: str | None
    # Whether writers wake relays when they commit.
    notify: bool = False


@dataclass(frozen=True, slots=True)
class Receipt:
    """What Kafka's own log says of the last batch that a lane committed."""

    number: int
    token: str
    offset: int
    outbox_id: str = ""
    lane: int = 0

    @property
    def forgotten(self) -> bool:
        """An operator has let go of what was marked: whatever the log has last, the lane goes on from there."""
        return self.number < 0


@dataclass(frozen=True, slots=True)
class Lane:
    """A lane as its owner holds it."""

    lane: int
    owner: str
    epoch: int
    covered: int
    last_number: int
    receipt: Receipt | None
    paused: bool = False
    halted: str | None = None
    # How often operators have asked something of its parked messages; None where nobody counts.
    asked: int | None = None
    # The database's clock when its last batch was claimed.
    clock_ms: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Batch:
    """A claimed batch: the lane's rows in (after, upto], less what is parked or of the topics left out."""

    lane: int
    number: int
    token: str
    kind: BatchKind
    after: int
    upto: int
    covered: int
    mode: Mode
    messages: int
    version: int = 1
    topic: str | None = None
    without_topics: tuple[str, ...] = ()
    age_s: float = 0.0
    # The database's clock, in milliseconds since 1970, when the batch was claimed or found in doubt. Its messages' time
    # in Kafka: brokers refuse one that is far from their own, and relays' clocks are nobody's. 0: not claimed.
    clock_ms: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Slice:
    """Rows read: all of the lane's in (after, upto]. `more` says that there may be others right behind."""

    after: int
    upto: int
    rows: Sequence[Row]
    more: bool = False


@dataclass(frozen=True, slots=True)
class Hold:
    """A topic that the lane goes on without; its rows from `start` on are still to be sent."""

    topic: str
    state: HoldState
    start: int
    reason: str


@dataclass(frozen=True, slots=True)
class Failure:
    """Why one message could not be published."""

    position: int
    topic: str
    reason: str
    whole_topic: bool = False


@dataclass(frozen=True, slots=True)
class Sent:
    """The batch is in the log."""

    receipt: Receipt | None = None


@dataclass(frozen=True, slots=True)
class Refused:
    """Nothing of the batch is in the log, for the sake of some of its messages: `examine` says which."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """Nothing of the batch is in the log (or, without transactions, all of it but these): these cannot be."""

    failures: tuple[Failure, ...]


@dataclass(frozen=True, slots=True)
class Unknown:
    """Neither done nor failed. The publisher is of no more use."""

    reason: str


Outcome = Sent | Refused | Rejected | Unknown


@dataclass(frozen=True, slots=True)
class TopicRecord:
    """A topic as the outbox knows it."""

    topic: str
    topic_id: str
    partitions: int
    max_message_bytes: int
    # Compacted: it takes no message without a key. As it was when Kafka was last asked.
    keyed: bool = False


@dataclass(frozen=True, slots=True)
class TopicReport:
    """A topic as Kafka has it now. `problem` says why nothing may be published into it."""

    topic: str
    topic_id: str = ""
    partitions: int = 0
    max_message_bytes: int = 0
    keyed: bool = False
    problem: str | None = None
    accepted: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Exclusion:
    """What leaves a batch: messages that failed alone, those that wait behind them, topics that are held."""

    failed: Mapping[int, str] = field(default_factory=dict)
    waiting: Mapping[int, str] = field(default_factory=dict)
    topics: Mapping[str, str] = field(default_factory=dict)


class RelayStore(Protocol):
    """One connection to the outbox's database. Not shared between threads."""

    def identity(self) -> Identity: ...

    def record_receipts_topic(self, topic_id: str) -> None: ...

    # Membership and lanes
    def join(self, owner: str, mode: Mode, accepted: Sequence[str], seconds: float) -> int:
        """Say that this relay is alive; gives back how many are."""

    def leave(self, owner: str) -> None: ...

    def take(self, owner: str, seconds: float) -> Lane | None:
        """Take one lane that nobody holds, with a new epoch."""

    def renew(self, owner: str, seconds: float) -> frozenset[tuple[int, int]]:
        """Extend the leases of this owner; gives back the (lane, epoch) that are still its own."""

    def release(self, lane: Lane) -> None: ...

    def reread(self, lane: Lane) -> Lane:
        """The lane as it is now, if it is still this owner's; else `Stale`."""

    def halt(self, lane: Lane, finding: str) -> None: ...

    def count_fenced(self, lane: int) -> None: ...

    # Reading
    def frontier(self, covered: int) -> int:
        """The highest position up to which every row that will ever be is visible."""

    def read(
        self,
        lane: Lane,
        after: int,
        upto: int,
        limit: int,
        size: int,
        hold: Hold | None = None,
        without: Sequence[str] = (),
    ) -> Slice: ...

    def contents(self, batch: Batch) -> list[Row]:
        """Exactly what the batch is made of, less what has left it."""

    def unsent(self, lane: Lane) -> list[Batch]:
        """Batches that were claimed and never marked, oldest first."""

    # State changes
    def advance(
        self,
        lane: Lane,
        *,
        mark: Batch | None = None,
        receipt: Receipt | None = None,
        claim: Batch | None = None,
        waiting: Mapping[int, str] | None = None,
        in_doubt: bool = False,
    ) -> Lane:
        """Mark one batch and claim the next, in one commit."""

    def progress(self, lane: Lane, covered: int) -> Lane:
        """Nothing of this lane stands up to `covered`: move on without a batch."""

    def exclude(self, lane: Lane, batch: Batch, exclusion: Exclusion) -> Batch:
        """Let messages or topics leave a batch that is known not to be in the log."""

    def adopt(self, lane: Lane, batch: Batch, mode: Mode) -> Batch:
        """Note that a claimed batch is sent in another mode than its own, before it is."""

    # Parked messages and held topics
    def held_keys(self, lane: Lane) -> dict[Key, int]:
        """Keys with parked messages that are not done with, and where the first of each stands."""

    def claim_retry(
        self, lane: Lane, claim: Batch, limit: int, size: int = 16 * 1024 * 1024
    ) -> tuple[Lane, Batch | None]: ...

    def holds(self, lane: Lane) -> tuple[Hold, ...]: ...

    def update_hold(self, lane: Lane, hold: Hold) -> None: ...

    def end_hold(self, lane: Lane, topic: str) -> None: ...

    # Topics
    def topic(self, topic: str) -> TopicRecord | None: ...

    def record_topic(self, report: TopicReport) -> None: ...

    # Upkeep
    def move_due(self, limit: int) -> int:
        """Move delayed messages whose time has come into the outbox."""

    def end_floors(self, seconds: float) -> list[str]:
        """End writers that have been idle in their transaction for longer than this; gives back who they were."""

    def listen(self, seconds: float) -> bool:
        """Whether a writer called within `seconds`."""

    def close(self) -> None: ...


class Publisher(Protocol):
    """One producer. `send` starts a batch, `finish` waits for the oldest one started."""

    def fence(self) -> None:
        """Shut out every earlier producer of this lane; raises `Unreachable` where that cannot be known."""

    def last_receipt(self, after: Receipt | None) -> Receipt | None:
        """The lane's last receipt in the log; raises `OutcomeUnknown` where its end cannot be reached."""

    def learn(self, record: TopicRecord) -> bool:
        """Take note of a topic; False where this publisher is not made for it and a new one is needed."""

    def send(self, batch: Batch, rows: Sequence[Row]) -> None: ...

    def finish(self) -> Outcome: ...

    def examine(self, rows: Sequence[Row]) -> Rejected | Unknown:
        """Learn for which messages' sake a batch was refused. It fences anew: only for the lane's owner."""

    def outgrown(self) -> bool:
        """Whether it gives batches longer than they need any more: a new one should take its place."""

    def hurry(self, within_s: float) -> None:
        """Wait for Kafka's answers no longer than this from now on; from any thread."""

    def close(self) -> None: ...


class Kafka(Protocol):
    """The cluster that a relay publishes to."""

    def publisher(
        self, identity: Identity, lane: int, mode: Mode, topics: Sequence[TopicRecord]
    ) -> Publisher: ...

    def inspect(self, topic: str) -> TopicReport: ...

    def inspect_all(self, wanted: Sequence[str]) -> Sequence[TopicReport]:
        """The same of several, in their order, asked at once."""

    def prepare_receipts(self, identity: Identity) -> str:
        """Make or check the receipts topic; gives back its topic id."""
