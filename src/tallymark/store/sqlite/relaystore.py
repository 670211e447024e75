"""The relay's port, on SQLite: one lane, one file, one process; the same claims and marks under owner, epoch and version.

Each state change is one transaction. What changed no row was stale: `Stale` is raised and nothing happened. Reading is
commit-safe by nature: SQLite has one writer at a time, so no position below the last one drawn can still appear.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tallymark.errors import Inconsistent, Stale
from tallymark.lifecycle import BatchKind, HoldState, Mode
from tallymark.relay.ports import (
    Batch,
    Exclusion,
    Hold,
    Identity,
    Key,
    Lane,
    Receipt,
    Row,
    Slice,
    TopicRecord,
    TopicReport,
)
from tallymark.store.sqlite.rows import (
    batch_of,
    claim_values,
    fitting,
    lane_of,
    owner_values,
    range_values,
)
from tallymark.store.sqlite.session import SqliteSession

# A look at the file's counter of commits takes microseconds.
_LOOK_AGAIN_S = 0.002


class SqliteRelayStore:
    """One connection to the outbox's file. Used by one thread at a time."""

    def __init__(self, path: str, *, schema: str = "tallymark") -> None:
        self._db = SqliteSession(path, schema=schema, file="relay.sql")
        self._heard: int | None = None

    def identity(self) -> Identity:
        return Identity(*self._db.row("identity"))

    def record_receipts_topic(self, topic_id: str) -> None:
        self._db.rows("record_receipts_topic", {"topic_id": topic_id})

    def join(self, owner: str, mode: Mode, accepted: Sequence[str], seconds: float) -> int:
        from tallymark import __version__

        parameters = {
            "owner": owner,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "mode": str(mode),
            "version": __version__,
            "accepted": json.dumps(list(accepted)),
            "seconds": seconds,
        }
        with self._db.transaction():
            self._db.rows("join", parameters)
            self._db.rows("forget_gone", {"owner": owner})
            return int(self._db.row("alive")[0])

    def leave(self, owner: str) -> None:
        self._db.rows("leave", {"owner": owner})

    def take(self, owner: str, seconds: float) -> Lane | None:
        row = self._db.row("take", {"owner": owner, "seconds": seconds})
        return lane_of(row) if row else None

    def renew(self, owner: str, seconds: float) -> frozenset[tuple[int, int]]:
        rows = self._db.rows("renew", {"owner": owner, "seconds": seconds})
        return frozenset((lane, epoch) for lane, epoch in rows)

    def release(self, lane: Lane) -> None:
        self._db.rows("release", owner_values(lane))

    def reread(self, lane: Lane) -> Lane:
        row = self._db.row("reread", owner_values(lane))
        if row is None:
            raise _stale(lane, "is no longer ours")
        return lane_of(row)

    def halt(self, lane: Lane, finding: str) -> None:
        self._db.rows("halt", {**owner_values(lane), "finding": finding})

    def count_fenced(self, lane: int) -> None:
        self._db.rows("count_fenced", {"lane": lane})

    def frontier(self, covered: int) -> int:
        last = int(self._db.row("sequence")[0])
        if last < covered:
            raise Inconsistent(
                f"the outbox's sequence stands at {last}, but positions up to {covered} are already covered: "
                f"rows added as {last + 1} to {covered} would never be sent",
                remedy="was the file restored, or the outbox emptied by hand? Look for rows in that range, then set "
                f"sqlite_sequence to {covered} before `tallymark relay clear`",
            )
        return last

    def read(
        self,
        lane: Lane,  # noqa: ARG002 - there is one
        after: int,
        upto: int,
        limit: int,
        size: int,
        hold: Hold | None = None,
        without: Sequence[str] = (),
    ) -> Slice:
        parameters = range_values(after, upto, hold.topic if hold else None, without)
        rows: list[Row] = self._db.rows("read", {**parameters, "limit": limit, "size": size})
        weight = sum(len(row[4] or b"") + len(row[3] or b"") + len(row[5]) + 100 for row in rows)
        cut = len(rows) >= limit or weight >= size
        return Slice(after, rows[-1][0] if cut else upto, rows, more=cut)

    def contents(self, batch: Batch) -> list[Row]:
        if batch.kind is BatchKind.ORIGIN:
            return []
        if batch.kind is BatchKind.RETRY:
            return self._db.rows("retry_contents", {"number": batch.number})
        return self._db.rows(
            "contents", range_values(batch.after, batch.upto, batch.topic, batch.without_topics)
        )

    def unsent(self, lane: Lane) -> list[Batch]:
        return [batch_of(row) for row in self._db.rows("unsent", {"lane": lane.lane})]

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
        parameters = {
            **owner_values(lane),
            "mark_number": mark.number if mark else None,
            "mark_covered": mark.covered if mark else None,
            "mark_version": mark.version if mark else None,
            "mark_messages": mark.messages if mark else 0,
            "mark_upto": mark.upto if mark else None,
            "mark_topic": mark.topic if mark else None,
            "in_doubt": int(in_doubt),
            "receipt_number": receipt.number if receipt else None,
            "receipt_token": receipt.token if receipt else None,
            "receipt_offset": receipt.offset if receipt else None,
            **claim_values(claim),
        }
        with self._db.transaction():
            markable = mark is None or self._db.row("markable", parameters) is not None
            if not markable or self._db.row("advance", parameters) is None:
                raise _stale(
                    lane, f"refused to mark {mark and mark.number} and claim {claim and claim.number}"
                )
            if mark is not None:
                self._mark(mark, parameters)
            if claim is not None:
                self._db.rows("claim", parameters)
                self._park([(p, "waiting", why) for p, why in (waiting or {}).items()], claim.number)
        return replace(
            lane,
            covered=claim.covered if claim else lane.covered,
            last_number=claim.number if claim else lane.last_number,
            receipt=receipt or lane.receipt,
        )

    def progress(self, lane: Lane, covered: int) -> Lane:
        if self._db.row("progress", {**owner_values(lane), "covered": covered}) is None:
            raise _stale(lane, f"refused to move on to {covered}")
        return replace(lane, covered=covered)

    def exclude(self, lane: Lane, batch: Batch, exclusion: Exclusion) -> Batch:
        leaving = [(p, "failed", why) for p, why in exclusion.failed.items()]
        leaving += [(p, "waiting", why) for p, why in exclusion.waiting.items()]
        retry = batch.kind is BatchKind.RETRY
        without = batch.without_topics if retry else (*batch.without_topics, *exclusion.topics)
        parameters = {
            "covered": batch.covered,
            "number": batch.number,
            "version": batch.version,
            "leaving": len(leaving),
            "without": json.dumps(list(without)),
        }
        with self._db.transaction():
            mine = self._db.row("owned", owner_values(lane)) is not None
            row = self._db.row("leave_batch", parameters) if mine else None
            if row is None:
                raise _stale(lane, f"refused to take messages out of batch {batch.number}")
            self._park(leaving, batch.number, again=retry)
            for topic, why in exclusion.topics.items() if not retry else ():
                self._db.rows(
                    "hold_topic", {"lane": lane.lane, "topic": topic, "after": batch.after, "reason": why}
                )
        return replace(batch, version=row[0], messages=row[1], without_topics=tuple(json.loads(row[2])))

    def held_keys(self, lane: Lane) -> dict[Key, int]:  # noqa: ARG002 - there is one
        return {(topic, key): first for topic, key, first in self._db.rows("held_keys")}

    def claim_retry(
        self, lane: Lane, claim: Batch, limit: int, size: int = 16 * 1024 * 1024
    ) -> tuple[Lane, Batch | None]:
        if not self._db.rows("retryable", {"limit": 1}):  # most often: no write for nothing
            return lane, None
        with self._db.transaction():
            chosen = fitting(self._db.rows("retryable", {"limit": limit}), size)
            taken = (
                self._db.row("next_number", {**owner_values(lane), "number": claim.number})
                if chosen
                else None
            )
            if taken is None:  # nothing to retry, or the lane is not ours: the next write will tell
                return lane, None
            covered = taken[0]
            claimed = replace(claim, covered=covered, after=covered, upto=covered, messages=len(chosen))
            for position in chosen:
                self._db.rows("free_parked", {"number": claim.number, "position": position})
            self._db.rows("claim", {**owner_values(lane), **claim_values(claimed)})
        return replace(lane, last_number=claim.number), claimed

    def holds(self, lane: Lane) -> tuple[Hold, ...]:
        rows = self._db.rows("holds", {"lane": lane.lane})
        return tuple(Hold(topic, HoldState(state), start, reason) for topic, state, start, reason in rows)

    def update_hold(self, lane: Lane, hold: Hold) -> None:
        with self._db.transaction():
            if self._db.row("owned", owner_values(lane)) is None:
                raise _stale(lane, f"refused to hold topic {hold.topic}")
            self._db.rows(
                "update_hold",
                {
                    "lane": lane.lane,
                    "topic": hold.topic,
                    "state": str(hold.state),
                    "start": hold.start,
                    "reason": hold.reason,
                },
            )

    def end_hold(self, lane: Lane, topic: str) -> None:
        with self._db.transaction():
            if self._db.row("owned", owner_values(lane)) is not None:
                self._db.rows("end_hold", {"lane": lane.lane, "topic": topic})

    def topic(self, topic: str) -> TopicRecord | None:
        row = self._db.row("topic", {"topic": topic})
        return TopicRecord(*row) if row else None

    def record_topic(self, report: TopicReport) -> None:
        self._db.rows(
            "record_topic",
            {
                "topic": report.topic,
                "topic_id": report.topic_id,
                "partitions": report.partitions,
                "max_message_bytes": report.max_message_bytes,
                "accepted": json.dumps(list(report.accepted)),
            },
        )

    def move_due(self, limit: int) -> int:
        if not self._db.row("is_due")[0]:  # most often: no write for nothing
            return 0
        with self._db.transaction():
            due = self._db.rows("due", {"limit": limit})
            for (id_,) in due:
                self._db.rows("move", {"id": id_})
                self._db.rows("moved", {"id": id_})
        return len(due)

    def end_floors(self, seconds: float) -> list[str]:  # noqa: ARG002 - SQLite has one writer, and no floors
        return []

    def listen(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while (version := self._db.row("data_version")[0]) == self._heard and time.monotonic() < deadline:
            time.sleep(_LOOK_AGAIN_S)
        called, self._heard = bool(version != self._heard), version
        return called

    def close(self) -> None:
        self._db.close()

    def _mark(self, mark: Batch, parameters: Mapping[str, Any]) -> None:
        self._db.rows("mark", parameters)
        if mark.kind is BatchKind.RETRY:
            self._db.rows("mark_retried", parameters)
        if mark.kind is BatchKind.TOPIC and mark.topic not in mark.without_topics:
            self._db.rows("mark_caught_up", parameters)

    def _park(self, leaving: Sequence[tuple[int, str, str]], batch: int, *, again: bool = False) -> None:
        for position, state, reason in leaving:
            self._db.rows(
                "park_again" if again else "park",
                {"position": position, "state": state, "reason": reason, "batch": batch},
            )


def _stale(lane: Lane, what: str) -> Stale:
    return Stale(f"lane {lane.lane} of epoch {lane.epoch} {what}: another relay has taken it over")
