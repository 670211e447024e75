"""What the query interface says of relays, inboxes and the pipeline, as types."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from pydantic import Field

from tallymark.console.shapes import Key, Next, Shape
from tallymark.lifecycle import BatchState, DeadState, ParkedState, Stage, Verdict


class Lane(Shape):
    """One lane of an outbox."""

    lane: int
    owner: str | None
    epoch: int
    alive: bool | None = Field(description="whether its owner's lease runs")
    covered: int
    last_batch: int
    paused: bool
    halted: str | None
    sent: int
    in_doubt_resolved: int
    fenced: int
    backlog: int = Field(description="messages that wait, counted up to 100,000")
    oldest_pending_s: float | None
    sending_for_s: float | None
    rate: float = Field(description="messages per second over the last minute")


class Relay(Shape):
    """A relay that is alive."""

    owner: str
    host: str
    pid: int
    mode: str
    version: str
    accepted_risks: list[str]
    up_s: float


class HeldTopic(Shape):
    """A topic that nothing is published into for now."""

    topic: str
    lanes: list[int]
    state: str
    reason: str
    since: datetime
    messages: int = Field(description="passed over for it so far")
    at_least: bool = Field(
        description="whether there may be more: counting ends after 100,000 rows of a lane"
    )


class Outbox(Shape):
    """The producing side at a glance."""

    name: str = Field(description="the database's name in the settings", examples=["bank"])
    outbox_id: str
    last_position: int
    backlog: int
    oldest_pending_s: float | None
    rate: float
    delayed: int
    parked: int
    waiting: int
    in_doubt_resolved: int
    fenced: int
    healthy: bool
    lanes: list[Lane]
    relays: list[Relay]
    held_topics: list[HeldTopic]


class Batch(Shape):
    """A batch of a lane."""

    covered: int
    lane: int
    number: int
    kind: str
    after_position: int
    upto: int
    topic: str | None
    messages: int
    mode: str
    state: BatchState
    owner: str
    epoch: int
    receipt_offset: int | None
    in_doubt: bool
    claimed_at: datetime
    sent_at: datetime | None


class Batches(Shape):
    """A page of batches, the newest first."""

    items: list[Batch]
    next: Next


class Parked(Shape):
    """A message that failed at the relay, or waits behind one that did."""

    position: int
    id: UUID
    topic: str
    key: Key
    partition: int | None
    state: ParkedState
    reason: str
    attempts: int
    added_at: datetime
    parked_at: datetime
    value_bytes: int | None


class ParkedMessages(Shape):
    """A page of parked messages, the oldest first."""

    items: list[Parked]
    next: Next


class Position(Shape):
    """How far a consumer has come in one partition."""

    topic: str
    partition: int
    next_offset: int
    log_end: int | None = Field(description="null where Kafka could not be asked")
    lag: int | None
    lag_s: float | None = Field(description="age of the oldest message not yet kept")
    epoch: int
    owner: str | None
    owner_kind: str | None
    alive: bool
    halted: str | None
    kept: int
    fenced: int
    logged_at: datetime | None
    changed_at: datetime


class Process(Shape):
    """A living process of a consumer."""

    owner: str
    host: str
    pid: int
    mode: str
    version: str
    up_s: float


class Consumer(Shape):
    """One consumer at a glance."""

    name: str = Field(examples=["ledger"])
    database: str
    topics: list[str]
    mode: str
    paused: bool
    healthy: bool
    lag: int | None
    lag_s: float | None
    queued: int
    parked_keys: int
    dead: int
    retrying: int
    applied_late: int
    discarded: int
    rate: float
    positions: list[Position]
    processes: list[Process]


class DeadLetter(Shape):
    """A message that failed at an inbox for good, or could not be kept as usual."""

    number: int
    id: UUID
    named: str | None
    source: str
    topic: str
    partition: int
    offset: int | None
    key: Key
    state: DeadState
    reason: str
    attempts: int
    died_at: datetime
    changed_at: datetime
    holds_key: bool
    value_bytes: int | None


class DeadLetters(Shape):
    """A page of dead letters, the oldest first."""

    items: list[DeadLetter]
    next: Next


class ParkedKey(Shape):
    """A key that waits, and the message that it waits for."""

    id: UUID
    source: str
    topic: str
    partition: int
    offset: int | None
    state: str
    attempts: int
    due_at: datetime | None
    reason: str | None
    behind: int = Field(description="messages that wait behind it, counted up to 1,000")


class ParkedKeys(Shape):
    """A page of parked keys."""

    items: list[ParkedKey]
    next: Next


class Run(Shape):
    """A run of the pipeline, and how far it has come."""

    run: str
    consumer: str
    database: str
    owner: str
    topics: list[str]
    started_at: datetime
    seen_at: datetime
    ended_at: datetime | None
    trouble: str | None
    batches: int
    read: int
    kept: int
    applied: int
    last_committed_at: datetime | None


class Finding(Shape):
    """A message that the tally found to be out of step."""

    id: str
    verdict: Verdict = Field(examples=["lost-in-inbox"])
    consumer: str = Field(description="empty where it holds for all")
    stage: Stage
    topic: str
    key: Key
    partition: int | None
    offset: int | None
    position: int | None
    evidence: str
    first_seen: datetime
    last_seen: datetime
    over_at: datetime | None


class Findings(Shape):
    """A page of findings, by id."""

    items: list[Finding]
    next: Next


class Certificate(Shape):
    """A window in which everything was accounted for, and its place in the chain."""

    number: int
    window_start: int
    window_end: int
    statement: str
    previous: str
    hash: str
    issued_at: datetime


class Certificates(Shape):
    """A page of certificates, the newest first."""

    items: list[Certificate]
    next: Next


class TallyRun(Shape):
    """A run of the tally."""

    run: UUID
    started_at: datetime
    ended_at: datetime | None
    who: str
    from_position: int
    to_position: int
    summary: dict[str, Any]
