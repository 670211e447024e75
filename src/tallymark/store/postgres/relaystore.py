"""The relay's port, on PostgreSQL: leases, commit-safe reading, claims and marks under owner, epoch and version.

Each method that writes is one statement and one commit, so that a process stopped in mid-way never holds a row. What
changed no row was stale: `Stale` is raised and nothing happened.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tallymark.errors import Inconsistent, Stale
from tallymark.lifecycle import BatchKind, HoldState, Mode, Role
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
from tallymark.store.postgres.session import Session

# As the outbox's generated column has them.
_SLOTS = 256
NO_CLAIM = dict.fromkeys(
    ("covered", "number", "token", "kind", "after", "upto", "topic", "without", "messages", "mode")
)


class PostgresRelayStore:
    """One connection to the outbox's database. Not shared between threads."""

    def __init__(self, url: str, *, schema: str = "tallymark", application: str = "tallymark relay") -> None:
        self._db = Session(url, schema=schema, file="relay.sql", application=application, role=Role.PRODUCER)
        self._lanes = 0

    def identity(self) -> Identity:
        identity = Identity(*self._db.row("identity"))
        self._lanes = identity.lanes
        return identity

    def record_receipts_topic(self, topic_id: str) -> None:
        self._db.rows("record_receipts_topic", {"topic_id": topic_id})

    def join(self, owner: str, mode: Mode, accepted: Sequence[str], seconds: float) -> int:
        from tallymark import __version__

        return int(
            self._db.row(
                "join",
                {
                    "owner": owner,
                    "host": socket.gethostname(),
                    "pid": os.getpid(),
                    "mode": str(mode),
                    "version": __version__,
                    "accepted": list(accepted),
                    "seconds": seconds,
                },
            )[0]
        )

    def leave(self, owner: str) -> None:
        self._db.rows("leave", {"owner": owner})

    def take(self, owner: str, seconds: float) -> Lane | None:
        row = self._db.row("take", {"owner": owner, "seconds": seconds})
        return _lane(row) if row else None

    def renew(self, owner: str, seconds: float) -> frozenset[tuple[int, int]]:
        return frozenset(
            (lane, epoch) for lane, epoch in self._db.rows("renew", {"owner": owner, "seconds": seconds})
        )

    def release(self, lane: Lane) -> None:
        self._db.rows("release", _owned(lane))

    def reread(self, lane: Lane) -> Lane:
        row = self._db.row("reread", _owned(lane))
        if row is None:
            raise _stale(lane, "is no longer ours")
        return _lane(row)

    def halt(self, lane: Lane, finding: str) -> None:
        self._db.rows("halt", {**_owned(lane), "finding": finding})

    def count_fenced(self, lane: int) -> None:
        self._db.rows("count_fenced", {"lane": lane})

    def frontier(self, covered: int) -> int:
        last = int(self._db.row("sequence")[0])
        if last < covered:
            raise Inconsistent(
                f"the outbox's sequence stands at {last}, but positions up to {covered} are already covered: "
                f"rows added as {last + 1} to {covered} would never be sent",
                remedy="was the table truncated, or the database failed over or restored? Set the sequence above "
                f"{covered} with setval and look for rows in that range before `tallymark relay clear`",
            )
        if last == covered:
            return last
        floor = self._db.row("floors")[0]
        return last if floor is None else min(last, int(floor))

    def read(
        self,
        lane: Lane,
        after: int,
        upto: int,
        limit: int,
        size: int,
        hold: Hold | None = None,
        without: Sequence[str] = (),
    ) -> Slice:
        asked = self._range(lane.lane, after, upto, hold.topic if hold else None, without)
        asked["limit"] = limit
        count, weight, last = self._db.row("weigh", asked)
        if not count:
            return Slice(after, upto, ())
        if weight >= size:
            last = self._db.row("fitting", {**asked, "size": size})[0]
        cut = count >= limit or weight >= size
        rows: list[Row] = self._db.rows("read", {**asked, "upto": last}, binary=True)
        return Slice(after, last if cut else upto, rows, more=cut)

    def contents(self, batch: Batch) -> list[Row]:
        if batch.kind is BatchKind.ORIGIN:
            return []
        if batch.kind is BatchKind.RETRY:
            return self._db.rows(
                "retry_contents",
                {"lane": batch.lane, "lanes": self._lanes, "number": batch.number},
                binary=True,
            )
        parameters = self._range(batch.lane, batch.after, batch.upto, batch.topic, batch.without_topics)
        return self._db.rows("contents", parameters, binary=True)

    def unsent(self, lane: Lane) -> list[Batch]:
        return [_batch(row) for row in self._db.rows("unsent", {"lane": lane.lane})]

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
            **_owned(lane),
            "lanes": self._lanes,
            "mark_number": mark.number if mark else None,
            "mark_covered": mark.covered if mark else None,
            "mark_version": mark.version if mark else None,
            "mark_messages": mark.messages if mark else 0,
            "in_doubt": in_doubt,
            "receipt_number": receipt.number if receipt else None,
            "receipt_token": receipt.token if receipt else None,
            "receipt_offset": receipt.offset if receipt else None,
            "waiting": list(waiting or {}),
            "waiting_reasons": list((waiting or {}).values()),
            **{f"claim_{name}": value for name, value in (_claim(claim) if claim else NO_CLAIM).items()},
        }
        if self._db.row("advance", parameters) is None:
            raise _stale(lane, f"refused to mark {mark and mark.number} and claim {claim and claim.number}")
        return replace(
            lane,
            covered=claim.covered if claim else lane.covered,
            last_number=claim.number if claim else lane.last_number,
            receipt=receipt or lane.receipt,
        )

    def progress(self, lane: Lane, covered: int) -> Lane:
        if self._db.row("progress", {**_owned(lane), "covered": covered}) is None:
            raise _stale(lane, f"refused to move on to {covered}")
        return replace(lane, covered=covered)

    def exclude(self, lane: Lane, batch: Batch, exclusion: Exclusion) -> Batch:
        leaving = [(p, "failed", why) for p, why in exclusion.failed.items()]
        leaving += [(p, "waiting", why) for p, why in exclusion.waiting.items()]
        parameters = {
            **_owned(lane),
            "covered": batch.covered,
            "number": batch.number,
            "version": batch.version,
            "after": batch.after,
            "positions": [p for p, _, _ in leaving],
            "states": [state for _, state, _ in leaving],
            "reasons": [why for _, _, why in leaving],
            "topics": list(exclusion.topics),
            "topic_reasons": list(exclusion.topics.values()),
        }
        row = self._db.row("exclude_retry" if batch.kind is BatchKind.RETRY else "exclude", parameters)
        if row is None:
            raise _stale(lane, f"refused to take messages out of batch {batch.number}")
        return replace(batch, version=row[0], messages=row[1], without_topics=tuple(row[2]))

    def held_keys(self, lane: Lane) -> dict[Key, int]:
        rows = self._db.rows("held_keys", {"slots": self._slots(lane)})
        return {(topic, bytes(key)): first for topic, key, first in rows}

    def claim_retry(
        self, lane: Lane, claim: Batch, limit: int, size: int = 16 * 1024 * 1024
    ) -> tuple[Lane, Batch | None]:
        parameters = {
            **_owned(lane),
            "slots": self._slots(lane),
            "number": claim.number,
            "token": claim.token,
            "mode": str(claim.mode),
            "limit": limit,
            "size": size,
        }
        row = self._db.row("claim_retry", parameters)
        if row is None:  # nothing to retry, or the lane is not ours: the next write will tell
            return lane, None
        return replace(lane, last_number=claim.number), replace(
            claim, covered=row[0], after=row[0], upto=row[0], messages=row[1]
        )

    def holds(self, lane: Lane) -> tuple[Hold, ...]:
        rows = self._db.rows("holds", {"lane": lane.lane})
        return tuple(Hold(topic, HoldState(state), start, reason) for topic, state, start, reason in rows)

    def update_hold(self, lane: Lane, hold: Hold) -> None:
        parameters = {
            **_owned(lane),
            "topic": hold.topic,
            "state": str(hold.state),
            "start": hold.start,
            "reason": hold.reason,
        }
        if self._db.row("update_hold", parameters) is None:
            raise _stale(lane, f"refused to hold topic {hold.topic}")

    def end_hold(self, lane: Lane, topic: str) -> None:
        self._db.rows("end_hold", {**_owned(lane), "topic": topic})

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
                "accepted": list(report.accepted),
            },
        )

    def move_due(self, limit: int) -> int:
        return self._db.count("move_due", {"limit": limit})

    def end_floors(self, seconds: float) -> list[str]:
        rows = self._db.rows("end_floors", {"seconds": seconds})
        return [
            f"pid {pid} ({name or 'unnamed'}), {age:.0f} s in its transaction" for pid, name, age, _ in rows
        ]

    def listen(self, seconds: float) -> bool:
        return self._db.listen("listen", seconds)

    def close(self) -> None:
        self._db.close()

    def _slots(self, lane: Lane) -> list[int]:
        """Which slots are the lane's: one in as many as there are lanes."""
        return list(range(lane.lane, _SLOTS, self._lanes))

    def _range(
        self, lane: int, after: int, upto: int, topic: str | None, without: Sequence[str]
    ) -> dict[str, Any]:
        return {
            "lane": lane,
            "lanes": self._lanes,
            "after": after,
            "upto": upto,
            "topic": topic,
            "without": list(without),
        }


def _owned(lane: Lane) -> dict[str, Any]:
    return {"lane": lane.lane, "owner": lane.owner, "epoch": lane.epoch}


def _stale(lane: Lane, what: str) -> Stale:
    return Stale(f"lane {lane.lane} of epoch {lane.epoch} {what}: another relay has taken it over")


def _lane(row: Sequence[Any]) -> Lane:
    lane, owner, epoch, covered, last_number, number, token, offset, paused, halted = row
    receipt = None if number is None else Receipt(number, token, offset or 0, lane=lane)
    return Lane(lane, owner, epoch, covered, last_number, receipt, paused, halted)


def _batch(row: Sequence[Any]) -> Batch:
    lane, number, token, kind, after, upto, covered, mode, messages, version, topic, without, age_s = row
    return Batch(
        lane=lane,
        number=number,
        token=token,
        kind=BatchKind(kind),
        after=after,
        upto=upto,
        covered=covered,
        mode=Mode(mode),
        messages=messages,
        version=version,
        topic=topic,
        without_topics=tuple(without),
        age_s=age_s,
    )


def _claim(batch: Batch) -> dict[str, Any]:
    return {
        "covered": batch.covered,
        "number": batch.number,
        "token": batch.token,
        "kind": str(batch.kind),
        "after": batch.after,
        "upto": batch.upto,
        "topic": batch.topic,
        "without": list(batch.without_topics),
        "messages": batch.messages,
        "mode": str(batch.mode),
    }
