"""What operators see and do at an outbox on SQLite: the same as on PostgreSQL, with the same words and the same audit.

An action and its audit row are one transaction: neither is there without the other.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tallymark.errors import SchemaMismatch, UsageError
from tallymark.lifecycle import MessageState, ParkedState
from tallymark.relay.ports import TopicReport
from tallymark.store.postgres.operators import (
    LISTED,
    HeldTopic,
    LaneStatus,
    OutboxStatus,
    Parked,
    RelayMember,
)
from tallymark.store.sqlite.session import SqliteSession
from tallymark.store.sqlite.writer import moment

Audit = Callable[[str, dict[str, Any]], None]

_PARKED_ONE = (
    *("position", "id", "topic", "key", "state", "reason", "attempts", "parked_at", "value", "headers"),
    *("partition", "created_at", "batch", "retry_batch", "changed_at"),
)


class SqliteOperators:
    """One connection per call; calls are rare."""

    def __init__(self, path: str, *, schema: str = "tallymark") -> None:
        self._path = path
        self._schema = schema

    def status(self) -> OutboxStatus:
        with self._open() as db:
            outbox_id, last, delayed, next_due, parked, waiting = db.row("outbox")
            lanes = [_lane(row) for row in db.rows("lanes")]
            return OutboxStatus(
                outbox_id=outbox_id,
                lane_count=1,
                last_position=last,
                backlog=sum(lane.backlog for lane in lanes),
                oldest_pending_s=lanes[0].oldest_pending_s if lanes[0].backlog else None,
                rate=lanes[0].rate,
                delayed=delayed,
                next_due=None if next_due is None else moment(next_due),
                parked=parked,
                waiting=waiting,
                in_doubt_resolved=lanes[0].in_doubt_resolved,
                fenced=lanes[0].fenced,
                lanes=lanes,
                relays=[_relay(row) for row in db.rows("relays")],
                held_topics=[
                    HeldTopic(topic, [lane], state, reason, moment(since), messages, at_least=False)
                    for topic, lane, state, reason, since, messages in db.rows("holds")
                ],
                floors=[],
            )

    def pause(self, lanes: Sequence[int] | None, *, who: str, reason: str, paused: bool) -> list[int]:
        """Pause or resume the lane; gives back those that changed."""
        with self._action("relay.pause" if paused else "relay.resume", who, reason) as (db, audit):
            chosen = json.dumps(list(lanes)) if lanes else None
            changed = [row[0] for row in db.rows("pause", {"lanes": chosen, "paused": int(paused)})]
            if changed:
                audit("lanes " + ", ".join(map(str, changed)), {"lanes": changed})
            return changed

    def clear(self, lane: int, *, who: str, reason: str, forget_receipts: bool) -> bool:
        """Let a halted lane go on; with `forget_receipts`, from whatever receipt the log has last."""
        if not reason:
            raise UsageError(
                "a halted lane is cleared with a reason", remedy="say with --reason what you found"
            )
        with self._action("relay.clear", who, reason) as (db, audit):
            if db.row("clear", {"lane": lane, "forget": int(forget_receipts)}) is None:
                raise UsageError(
                    f"a relay has lane {lane}, or there is none"
                    if forget_receipts
                    else f"lane {lane} is not halted",
                    remedy="`tallymark relay status` shows the lanes",
                )
            if forget_receipts:
                db.rows("forget_receipts_topic")
            audit(f"lane {lane}", {"forget_receipts": forget_receipts})
            return True

    def change_lanes(self, lanes: int, *, who: str, reason: str) -> int:  # noqa: ARG002 - nobody can
        raise UsageError(
            "an outbox on SQLite has one lane", remedy="use PostgreSQL where one lane is not enough"
        )

    def parked(
        self, *, states: Sequence[ParkedState], topic: str | None, after: int, limit: int
    ) -> list[Parked]:
        with self._open() as db:
            parameters = {
                "states": json.dumps([str(s) for s in states]),
                "topic": topic,
                "after": after,
                "limit": limit,
            }
            return [
                Parked(position, id_, topic, key, ParkedState(state), reason, attempts, moment(at), behind)
                for position, id_, topic, key, state, reason, attempts, at, behind in db.rows(
                    "parked", parameters
                )
            ]

    def parked_one(self, id: str) -> dict[str, Any] | None:
        with self._open() as db:
            row = db.row("parked_one", {"id": id})
        if row is None:
            return None
        found = dict(zip(_PARKED_ONE, row, strict=True))
        return {
            name: moment(value) if name.endswith("_at") and value is not None else value
            for name, value in found.items()
        }

    def retry(self, ids: Sequence[str], *, who: str, reason: str) -> list[str]:
        """Ask the relay to send failed messages again; gives back the ids that were failed."""
        return self._change("retry", ids, who, reason)

    def discard(self, ids: Sequence[str], *, who: str, reason: str) -> list[str]:
        """Give messages up for good; gives back the ids that were parked."""
        if not reason:
            raise UsageError("a message is discarded with a reason", remedy="say why with --reason")
        return self._change("discard", ids, who, reason)

    def accept_topic(self, report: TopicReport, *, who: str, reason: str) -> bool:
        """From now on publish by what the topic is today: its id and its partition count."""
        with self._action("topics.accept", who, reason) as (db, audit):
            parameters = {"topic": report.topic, "topic_id": report.topic_id, "partitions": report.partitions}
            known = db.row("accept_topic", parameters) is not None
            if known:
                audit(report.topic, parameters)
            return known

    def message_ids(
        self, *, state: MessageState | None, topic: str | None, key: bytes | None, limit: int
    ) -> list[str]:
        """The newest messages, of one state or of any in the outbox."""
        parameters = {"state": state and str(state), "topic": topic, "key": key, "limit": limit}
        with self._open() as db:
            return [row[0] for row in db.rows(LISTED.get(state, "messages"), parameters)]

    def _change(self, verb: str, ids: Sequence[str], who: str, reason: str) -> list[str]:
        with self._action(f"failed.{verb}", who, reason) as (db, audit):
            changed = [row[0] for row in db.rows(verb, {"ids": json.dumps(list(ids))})]
            for id_ in changed:
                audit(id_, {"at": "relay"})
            return changed

    @contextmanager
    def _open(self) -> Iterator[SqliteSession]:
        if not Path(self._path).exists():  # looking must not make one
            raise SchemaMismatch(
                f"there is no file {self._path}",
                remedy="`tallymark init` makes one, and so does the first message",
            )
        session = SqliteSession(self._path, schema=self._schema, file="operators.sql")
        try:
            yield session
        finally:
            session.close()

    @contextmanager
    def _action(self, action: str, who: str, reason: str) -> Iterator[tuple[SqliteSession, Audit]]:
        with self._open() as db, db.transaction():

            def audit(subject: str, details: dict[str, Any]) -> None:
                db.rows(
                    "audit",
                    {
                        "who": who,
                        "action": action,
                        "subject": subject,
                        "reason": reason,
                        "details": json.dumps(details),
                    },
                )

            yield db, audit


def _lane(row: Sequence[Any]) -> LaneStatus:
    values = list(row)
    values[3], values[6] = bool(values[3]), bool(values[6])
    return LaneStatus(*values)


def _relay(row: Sequence[Any]) -> RelayMember:
    owner, host, pid, mode, version, accepted, up_s = row
    return RelayMember(owner, host, pid, mode, version, json.loads(accepted), up_s)
