"""What operators see and do at an inbox: status, pause, resume, seek. Every change leaves an audit row.

An action and its audit row are one transaction: neither is there without the other.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import psycopg

from tallymark.errors import Problem, UsageError
from tallymark.inbox.ports import Place
from tallymark.lifecycle import OwnerKind, Role
from tallymark.store.postgres.connection import Connection, transaction
from tallymark.store.postgres.migrations import require_schema
from tallymark.store.queries import load

Audit = Callable[[str, dict[str, Any]], None]

# For a lock that a worker holds while it applies: a person waits this long, and not for ever.
_PATIENCE = "30s"


@dataclass(frozen=True, slots=True)
class PositionStatus:
    """How far a consumer has come in one partition, as status shows it."""

    consumer: str
    topic: str
    partition: int
    next_offset: int
    epoch: int
    owner: str | None
    owner_kind: OwnerKind | None
    alive: bool
    halted: str | None
    kept: int
    fenced: int
    # Kafka's time of the last message before next_offset.
    logged_at: datetime | None
    changed_at: datetime

    @property
    def place(self) -> Place:
        return self.topic, self.partition

    @classmethod
    def in_group(cls, consumer: str, place: Place, offset: int, *, alive: bool) -> PositionStatus:
        """One that is Kafka's: nothing but the offset is known of it."""
        now = datetime.now(UTC)
        return cls(consumer, *place, offset, 0, None, None, alive, None, 0, 0, None, now)


@dataclass(frozen=True, slots=True)
class InstanceStatus:
    """A process that is alive."""

    consumer: str
    owner: str
    host: str
    pid: int
    mode: str
    version: str
    up_s: float


@dataclass(frozen=True, slots=True)
class ConsumerStatus:
    """One consumer at a glance."""

    consumer: str
    topics: list[str]
    mode: str
    paused: bool
    # Kept and not finished; keys whose first unfinished message failed; dead letters by state.
    queued: int
    parked_keys: int
    dead: int
    retrying: int
    applied_late: int
    discarded: int
    # Effects per second, over the last minute.
    rate: float
    # Whether its positions are the group's own offsets in Kafka; then there are none here.
    in_kafka: bool = False
    positions: list[PositionStatus] = field(default_factory=list)
    instances: list[InstanceStatus] = field(default_factory=list)

    @property
    def healthy(self) -> bool:
        return (
            bool(self.instances)
            and not self.dead
            and not self.parked_keys
            and all(p.alive and not p.halted for p in self.positions)
        )


class InboxActions:
    """Transactions of an operator, with their audit. One connection per call; calls are rare."""

    def __init__(self, url: str, *, schema: str, file: str) -> None:
        self._url = url
        self._schema = schema
        self._sql = load("tallymark.store.postgres", file, schema)
        self._audit = load("tallymark.store.postgres", "inboxoperators.sql", schema)["audit"]

    @contextmanager
    def _open(self) -> Iterator[Connection]:
        with transaction(self._url, application="tallymark") as connection:
            require_schema(connection, self._schema, Role.CONSUMER)
            try:
                yield connection
            except psycopg.errors.LockNotAvailable as error:
                raise Problem(
                    f"an inbox has been busy with this for {_PATIENCE}",
                    remedy="try again later, or look with `tallymark inbox status` for a handler that hangs",
                ) from error

    @contextmanager
    def _action(self, action: str, who: str, reason: str) -> Iterator[tuple[Connection, Audit]]:
        with self._open() as connection:
            connection.execute(f"set local lock_timeout = '{_PATIENCE}'")

            def audit(subject: str, details: dict[str, Any]) -> None:
                parameters = {"who": who, "action": action, "subject": subject, "reason": reason}
                connection.execute(self._audit, {**parameters, "details": json.dumps(details)})

            yield connection, audit


class InboxOperators(InboxActions):
    """Status, pause, resume and seek."""

    def __init__(self, url: str, *, schema: str = "tallymark") -> None:
        super().__init__(url, schema=schema, file="inboxoperators.sql")

    def status(self, consumer: str | None = None) -> list[ConsumerStatus]:
        """All consumers of this database, or one."""
        parameters = {"consumer": consumer}
        with self._open() as connection:
            found = {
                row[0]: ConsumerStatus(*row) for row in connection.execute(self._sql["consumers"], parameters)
            }
            for row in connection.execute(self._sql["positions"], parameters):
                kind = None if row[6] is None else OwnerKind(row[6])
                position = PositionStatus(*(*row[:6], kind, *row[7:]))
                if position.consumer in found:
                    found[position.consumer].positions.append(position)
            for row in connection.execute(self._sql["instances"], parameters):
                if row[0] in found:
                    found[row[0]].instances.append(InstanceStatus(*row))
        if consumer is not None and not found:
            raise _unknown(consumer)
        return list(found.values())

    def pause(self, consumer: str, *, who: str, reason: str, paused: bool = True) -> bool:
        """Pause or resume; whether that changed anything. Its processes learn of it with their next heartbeat."""
        with self._action("inbox.pause" if paused else "inbox.resume", who, reason) as (connection, audit):
            parameters = {"consumer": consumer, "paused": paused}
            changed = connection.execute(self._sql["pause"], parameters).fetchone() is not None
            if changed:
                audit(consumer, {})
            else:
                self._require(connection, consumer)
            return changed

    def retire(self, consumer: str, *, who: str, reason: str) -> bool:
        """Stopped for good: nobody waits for it any more. Whether that changed anything; refused while it lives."""
        if not reason:
            raise UsageError("a consumer is retired with a reason", remedy="say why with --reason")
        with self._action("inbox.retire", who, reason) as (connection, audit):
            parameters = {"consumer": consumer}
            if connection.execute(self._sql["retire"], parameters).fetchone() is not None:
                audit(consumer, {})
                return True
            self._require(connection, consumer)
            holders = connection.execute(self._sql["holders"], parameters).fetchall()
            if holders:
                raise Problem(
                    f"{consumer} still runs: {', '.join(owner for (owner,) in holders)}",
                    remedy="stop it, and wait until its lease has ended",
                )
            return False

    def retire_topic(self, consumer: str, topic: str, *, who: str, reason: str) -> bool:
        """It reads this topic no more, and nobody waits for it there. Whether that changed anything; refused while it
        does."""
        if not reason:
            raise UsageError("a topic is retired with a reason", remedy="say why with --reason")
        with self._action("inbox.retire", who, reason) as (connection, audit):
            parameters = {"consumer": consumer, "topic": topic}
            if connection.execute(self._sql["retire_topic"], parameters).fetchone() is not None:
                audit(consumer, {"topic": topic})
                return True
            self._require(connection, consumer)
            found = connection.execute(self._sql["reads"], parameters).fetchone()
            reads, holder, stood = found or (False, None, False)
            if holder is not None:
                raise Problem(
                    f"{holder} holds positions of {topic} for {consumer}",
                    remedy="stop it, and wait until its lease has ended",
                )
            if reads:
                raise Problem(
                    f"{consumer} reads {topic}, or did when it last ran",
                    remedy="start it without that topic first; one that runs no more is retired without --topic",
                )
            if not stood:
                raise UsageError(f"{consumer} has never read {topic}", remedy="see `tallymark inbox status`")
            return False

    def retired(self) -> list[str]:
        """Those that were stopped for good."""
        with self._open() as connection:
            return [name for (name,) in connection.execute(self._sql["retired"])]

    def resume(self, consumer: str, *, who: str, reason: str) -> bool:
        return self.pause(consumer, who=who, reason=reason, paused=False)

    def seek(
        self, consumer: str, offsets: Mapping[Place, int], *, who: str, reason: str
    ) -> dict[Place, int | None]:
        """Set positions, and let halted ones go on; gives back where they stood (None: there was none)."""
        if not reason:
            raise UsageError("a position is moved by hand with a reason", remedy="say why with --reason")
        for (topic, partition), offset in offsets.items():
            if offset < 0 or partition < 0:
                raise UsageError(
                    f"{topic}/{partition} cannot be set to {offset}", remedy="offsets start at 0"
                )
        with self._action("inbox.seek", who, reason) as (connection, audit):
            self._require(connection, consumer)
            parameters = {
                "consumer": consumer,
                "topics": [topic for topic, _ in offsets],
                "partitions": [partition for _, partition in offsets],
                "offsets": list(offsets.values()),
            }
            rows = connection.execute(self._sql["before_seek"], parameters).fetchall()
            before = {(topic, partition): (stood, halted) for topic, partition, stood, halted in rows}
            connection.execute(self._sql["seek"], parameters)
            audit(consumer, {"moves": [_move(place, offset, before) for place, offset in offsets.items()]})
            return {place: before[place][0] if place in before else None for place in offsets}

    def note_seek(
        self,
        consumer: str,
        offsets: Mapping[Place, int],
        before: Mapping[Place, int],
        *,
        who: str,
        reason: str,
    ) -> None:
        """Positions that are not here, but the group's offsets in Kafka, were set: the audit says so too."""
        stood: dict[Place, tuple[int, str | None]] = {
            place: (offset, None) for place, offset in before.items()
        }
        with self._action("inbox.seek", who, reason) as (_, audit):
            audit(consumer, {"moves": [_move(place, offset, stood) for place, offset in offsets.items()]})

    def place_of(self, consumer: str, id: uuid.UUID) -> tuple[str, int, int] | None:
        """Topic, partition and offset of a message that was kept from the log; None where it was not."""
        with self._open() as connection:
            row = connection.execute(self._sql["place_of"], {"consumer": consumer, "id": id}).fetchone()
        return None if row is None else (row[0], row[1], row[2])

    def _require(self, connection: Connection, consumer: str) -> None:
        row = connection.execute(self._sql["is_known"], {"consumer": consumer}).fetchone()
        if row is None or not row[0]:
            raise _unknown(consumer)


def _move(place: Place, offset: int, before: Mapping[Place, tuple[int, str | None]]) -> dict[str, Any]:
    """One place's step, for the audit: what is passed over, or read again, is written out."""
    stood, halted = before.get(place, (None, None))
    skipped = [stood, offset - 1] if stood is not None and stood < offset else None
    again = [offset, stood - 1] if stood is not None and offset < stood else None
    return {
        "topic": place[0],
        "partition": place[1],
        "before": stood,
        "after": offset,
        "skipped": skipped,
        "again": again,
        "halted": halted,
    }


def _unknown(consumer: str) -> UsageError:
    return UsageError(
        f"there is no consumer {consumer} in this database",
        remedy="`tallymark inbox status` lists them; one is known from its first run on",
    )
