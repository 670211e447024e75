"""What operators see and do at the outbox: status, pause, parked messages, lanes. Every change leaves an audit row.

An action and its audit row are one transaction: neither is there without the other.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg

from tallymark.errors import Problem, UsageError
from tallymark.lifecycle import MessageState, ParkedState, Role
from tallymark.relay.ports import TopicReport
from tallymark.store.postgres.connection import Connection, transaction
from tallymark.store.postgres.migrations import require_schema
from tallymark.store.queries import load

# The query that finds messages of a state, where it is not the outbox itself that has them.
LISTED: dict[MessageState | None, str] = {
    MessageState.DELAYED: "messages_delayed",
    MessageState.FAILED: "messages_parked",
    MessageState.DISCARDED: "messages_parked",
}


@dataclass(frozen=True, slots=True)
class LaneStatus:
    """One lane, as status shows it."""

    lane: int
    owner: str | None
    epoch: int
    alive: bool
    covered: int
    last_batch: int
    paused: bool
    halted: str | None
    sent: int
    in_doubt_resolved: int
    fenced: int
    backlog: int
    oldest_pending_s: float | None
    sending_for_s: float | None
    rate: float


@dataclass(frozen=True, slots=True)
class RelayMember:
    """A relay that is alive."""

    owner: str
    host: str
    pid: int
    mode: str
    version: str
    accepted_risks: list[str]
    up_s: float


@dataclass(frozen=True, slots=True)
class Floor:
    """A writing transaction that is still open: nothing behind its floor is read."""

    floor: int
    pid: int | None
    application: str | None
    state: str | None
    client: str
    age_s: float | None


@dataclass(frozen=True, slots=True)
class HeldTopic:
    """A topic that nothing is published into for now."""

    topic: str
    lanes: list[int]
    state: str
    reason: str
    since: datetime
    # Messages that were passed over for it; at least so many, where the count was cut short.
    messages: int
    at_least: bool


@dataclass(frozen=True, slots=True)
class OutboxStatus:
    """The producing side at a glance."""

    outbox_id: str
    lane_count: int
    last_position: int
    backlog: int
    oldest_pending_s: float | None
    rate: float
    delayed: int
    next_due: datetime | None
    parked: int
    waiting: int
    in_doubt_resolved: int
    fenced: int
    lanes: list[LaneStatus]
    relays: list[RelayMember]
    held_topics: list[HeldTopic]
    floors: list[Floor]

    @property
    def healthy(self) -> bool:
        return (
            all(lane.alive and not lane.halted for lane in self.lanes)
            and not self.parked
            and not self.held_topics
        )


@dataclass(frozen=True, slots=True)
class Parked:
    """A message that left its batch."""

    position: int
    id: str
    topic: str
    key: bytes | None
    state: ParkedState
    reason: str
    attempts: int
    parked_at: datetime
    behind: int


class Operators:
    """One connection per call; calls are rare."""

    def __init__(self, url: str, *, schema: str = "tallymark") -> None:
        self._url = url
        self._schema = schema
        self._sql = load("tallymark.store.postgres", "operators.sql", schema)

    def status(self) -> OutboxStatus:
        with self._open() as connection:
            outbox = self._row(connection, "outbox")
            lanes = [LaneStatus(*row) for row in connection.execute(self._sql["lanes"])]
            lanes = lanes[: outbox[1]]
            return OutboxStatus(
                outbox_id=outbox[0],
                lane_count=outbox[1],
                last_position=outbox[3],
                backlog=sum(lane.backlog for lane in lanes),
                oldest_pending_s=max(
                    (lane.oldest_pending_s or 0.0 for lane in lanes if lane.backlog), default=None
                ),
                rate=sum(lane.rate for lane in lanes),
                delayed=outbox[4],
                next_due=outbox[5],
                parked=outbox[6],
                waiting=outbox[7],
                in_doubt_resolved=sum(lane.in_doubt_resolved for lane in lanes),
                fenced=sum(lane.fenced for lane in lanes),
                lanes=lanes,
                relays=[RelayMember(*row) for row in connection.execute(self._sql["relays"])],
                held_topics=[HeldTopic(*row) for row in connection.execute(self._sql["holds"])],
                floors=[Floor(*row) for row in connection.execute(self._sql["floors"])],
            )

    def pause(self, lanes: Sequence[int] | None, *, who: str, reason: str, paused: bool) -> list[int]:
        """Pause or resume lanes; gives back those that changed."""
        with self._action("relay.pause" if paused else "relay.resume", who, reason) as (connection, audit):
            parameters = {"lanes": list(lanes) if lanes else None, "paused": paused}
            changed = sorted(row[0] for row in connection.execute(self._sql["pause"], parameters))
            if changed:
                audit("lanes " + ", ".join(map(str, changed)), {"lanes": changed})
            return changed

    def clear(self, lane: int, *, who: str, reason: str, forget_receipts: bool) -> bool:
        """Let a halted lane go on; with `forget_receipts`, from whatever receipt the log has last."""
        if not reason:
            raise UsageError(
                "a halted lane is cleared with a reason", remedy="say with --reason what you found"
            )
        with self._action("relay.clear", who, reason) as (connection, audit):
            cleared = connection.execute(
                self._sql["clear"], {"lane": lane, "forget": forget_receipts}
            ).fetchone()
            if cleared is None:
                raise UsageError(
                    f"a relay has lane {lane}, or there is none"
                    if forget_receipts
                    else f"lane {lane} is not halted",
                    remedy="`tallymark relay status` shows the lanes",
                )
            if forget_receipts:
                connection.execute(self._sql["forget_receipts_topic"])
            audit(f"lane {lane}", {"forget_receipts": forget_receipts})
            return True

    def change_lanes(self, lanes: int, *, who: str, reason: str) -> int:
        """Change the lane count, under a lock and with nothing on its way; gives back the count before."""
        if not 1 <= lanes <= 256:
            raise UsageError(f"{lanes} lanes cannot be had", remedy="choose from 1 to 256 lanes")
        with self._action("relay.lanes", who, reason) as (connection, audit):
            connection.execute(self._sql["lock_lanes"])
            relays, sending, parked, held, backlog, before = self._row(connection, "backlog")
            for count, what, remedy in (
                (relays, "relays are running", "stop them first"),
                (sending, "batches are in doubt", "run a relay until they are resolved, then stop it"),
                (parked, "messages are parked", "`tallymark failed retry` or `discard` them first"),
                (held, "topics are held", "put them right and let a relay catch up"),
                (backlog, "messages wait to be sent", "let a relay send them, then stop it"),
            ):
                if count:
                    raise Problem(f"the lanes cannot be changed: {what}", remedy=remedy)
            connection.execute(self._sql["level_lanes"])
            connection.execute(self._sql["add_lanes"], {"first": before, "lanes": lanes})
            connection.execute(self._sql["set_lanes"], {"lanes": lanes})
            audit("outbox", {"before": before, "after": lanes})
            return int(before)

    def parked(
        self, *, states: Sequence[ParkedState], topic: str | None, after: int, limit: int
    ) -> list[Parked]:
        with self._open() as connection:
            parameters = {"states": [str(s) for s in states], "topic": topic, "after": after, "limit": limit}
            rows = connection.execute(self._sql["parked"], parameters).fetchall()
        return [
            Parked(position, id_, topic, key, ParkedState(state), reason, attempts, at, behind)
            for position, id_, topic, key, state, reason, attempts, at, behind in rows
        ]

    def parked_one(self, id: str) -> dict[str, Any] | None:
        with self._open() as connection, connection.cursor(row_factory=psycopg.rows.dict_row) as cursor:
            return cursor.execute(self._sql["parked_one"], {"id": id}).fetchone()

    def retry(self, ids: Sequence[str], *, who: str, reason: str) -> list[str]:
        """Ask the lanes' owners to send failed messages again; gives back the ids that were failed."""
        return self._change("retry", ids, who, reason)

    def discard(self, ids: Sequence[str], *, who: str, reason: str) -> list[str]:
        """Give messages up for good; gives back the ids that were parked."""
        if not reason:
            raise UsageError("a message is discarded with a reason", remedy="say why with --reason")
        return self._change("discard", ids, who, reason)

    def accept_topic(self, report: TopicReport, *, who: str, reason: str) -> bool:
        """From now on publish by what the topic is today: its id and its partition count."""
        with self._action("topics.accept", who, reason) as (connection, audit):
            parameters = {"topic": report.topic, "topic_id": report.topic_id, "partitions": report.partitions}
            known = connection.execute(self._sql["accept_topic"], parameters).fetchone() is not None
            if known:
                audit(report.topic, parameters)
            return known

    def message_ids(
        self, *, state: MessageState | None, topic: str | None, key: bytes | None, limit: int
    ) -> list[str]:
        """The newest messages, of one state or of any in the outbox."""
        parameters = {"state": state and str(state), "topic": topic, "key": key, "limit": limit}
        with self._open() as connection:
            return [
                row[0] for row in connection.execute(self._sql[LISTED.get(state, "messages")], parameters)
            ]

    def _change(self, verb: str, ids: Sequence[str], who: str, reason: str) -> list[str]:
        with self._action(f"failed.{verb}", who, reason) as (connection, audit):
            changed = [row[0] for row in connection.execute(self._sql[verb], {"ids": list(ids)})]
            for id_ in changed:
                audit(id_, {"at": "relay"})
            return changed

    @contextmanager
    def _open(self) -> Iterator[Connection]:
        with transaction(self._url, application="tallymark") as connection:
            require_schema(connection, self._schema, Role.PRODUCER)
            yield connection

    @contextmanager
    def _action(
        self, action: str, who: str, reason: str
    ) -> Iterator[tuple[Connection, Callable[[str, dict[str, Any]], None]]]:
        with self._open() as connection:

            def audit(subject: str, details: dict[str, Any]) -> None:
                connection.execute(
                    self._sql["audit"],
                    {
                        "who": who,
                        "action": action,
                        "subject": subject,
                        "reason": reason,
                        "details": json.dumps(details),
                    },
                )

            yield connection, audit

    def _row(self, connection: Connection, name: str) -> tuple[Any, ...]:
        row = connection.execute(self._sql[name]).fetchone()
        if row is None:
            raise Problem(
                f"the outbox in schema {self._schema} has no identity", remedy="run `tallymark init`"
            )
        return row
