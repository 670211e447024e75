"""What a relay's store does by statements of the same name and shape on either database: leases, topics, holds.

The statements themselves differ and stand in each store's relay.sql. Rows become the relay's values here, and those
become parameters; a list is kept as the database has lists.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Generic, Protocol, TypeVar

from tallymark.errors import Stale
from tallymark.lifecycle import BatchKind, HoldState, Mode
from tallymark.relay.ports import Batch, Exclusion, Hold, Lane, Receipt, Row, Slice, TopicRecord, TopicReport


class Statements(Protocol):
    """A session that runs statements by name."""

    def rows(self, name: str, parameters: Mapping[str, Any] | None = None) -> list[Any]: ...

    def row(self, name: str, parameters: Mapping[str, Any] | None = None) -> Any: ...

    def close(self) -> None: ...


S = TypeVar("S", bound=Statements)


def slice_of(rows: list[Row], after: int, upto: int, limit: int, size: int) -> Slice:
    """What was read: up to the end that was asked for, or, where a bound was reached, up to the last row."""
    cut = bool(rows) and (len(rows) >= limit or rows[-1][-1] >= size)
    return Slice(after, rows[-1][0] if cut else upto, rows, more=cut)


class LaneStore(Generic[S]):
    """One connection to the outbox's database. Not shared between threads."""

    def __init__(self, session: S) -> None:
        self._db = session

    def record_receipts_topic(self, topic_id: str) -> None:
        self._db.rows("record_receipts_topic", {"topic_id": topic_id})

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
            raise stale(lane, "is no longer ours")
        return lane_of(row)

    def halt(self, lane: Lane, finding: str) -> None:
        self._db.rows("halt", {**owner_values(lane), "finding": finding})

    def count_fenced(self, lane: int) -> None:
        self._db.rows("count_fenced", {"lane": lane})

    def unsent(self, lane: Lane) -> list[Batch]:
        return [self._batch_of(row) for row in self._db.rows("unsent", {"lane": lane.lane})]

    def progress(self, lane: Lane, covered: int) -> Lane:
        if self._db.row("progress", {**owner_values(lane), "covered": covered}) is None:
            raise stale(lane, f"refused to move on to {covered}")
        return replace(lane, covered=covered)

    def holds(self, lane: Lane) -> tuple[Hold, ...]:
        rows = self._db.rows("holds", {"lane": lane.lane})
        return tuple(Hold(topic, HoldState(state), start, reason) for topic, state, start, reason in rows)

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
                "accepted": self._list(report.accepted),
            },
        )

    def close(self) -> None:
        self._db.close()

    # How this database has lists

    def _list(self, values: Sequence[Any]) -> Any:
        return list(values)

    def _listed(self, stored: Any) -> tuple[Any, ...]:
        return tuple(stored)

    # Values as parameters, rows as values

    def _joining(self, owner: str, mode: Mode, accepted: Sequence[str], seconds: float) -> dict[str, Any]:
        from tallymark import __version__

        return {
            "owner": owner,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "mode": str(mode),
            "version": __version__,
            "accepted": self._list(accepted),
            "seconds": seconds,
        }

    def _advancing(
        self, lane: Lane, mark: Batch | None, receipt: Receipt | None, claim: Batch | None, *, in_doubt: bool
    ) -> dict[str, Any]:
        return {
            **owner_values(lane),
            "mark_number": mark and mark.number,
            "mark_covered": mark and mark.covered,
            "mark_version": mark and mark.version,
            "mark_messages": mark.messages if mark else 0,
            "in_doubt": in_doubt,
            "receipt_number": receipt and receipt.number,
            "receipt_token": receipt and receipt.token,
            "receipt_offset": receipt and receipt.offset,
            **self._claiming(claim),
        }

    def _claiming(self, batch: Batch | None) -> dict[str, Any]:
        return {
            "claim_covered": batch and batch.covered,
            "claim_number": batch and batch.number,
            "claim_token": batch and batch.token,
            "claim_kind": batch and str(batch.kind),
            "claim_after": batch and batch.after,
            "claim_upto": batch and batch.upto,
            "claim_topic": batch and batch.topic,
            "claim_without": self._list(batch.without_topics) if batch else None,
            "claim_messages": batch and batch.messages,
            "claim_mode": batch and str(batch.mode),
        }

    def _batch_of(self, row: Sequence[Any]) -> Batch:
        (
            lane,
            number,
            token,
            kind,
            after,
            upto,
            covered,
            mode,
            messages,
            version,
            topic,
            without,
            age_s,
            clock_ms,
        ) = row
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
            without_topics=self._listed(without),
            age_s=age_s,
            clock_ms=clock_ms,
        )


def owner_values(lane: Lane) -> dict[str, Any]:
    return {"lane": lane.lane, "owner": lane.owner, "epoch": lane.epoch}


def adopting(lane: Lane, batch: Batch, mode: Mode) -> dict[str, Any]:
    return {
        **owner_values(lane),
        "covered": batch.covered,
        "number": batch.number,
        "version": batch.version,
        "mode": str(mode),
    }


def lane_of(row: Sequence[Any]) -> Lane:
    lane, owner, epoch, covered, last_number, number, token, offset, paused, halted, asked = row
    receipt = None if number is None else Receipt(number, token, offset or 0, lane=lane)
    return Lane(lane, owner, epoch, covered, last_number, receipt, bool(paused), halted, asked)


def advanced(lane: Lane, receipt: Receipt | None, claim: Batch | None, clock_ms: int) -> Lane:
    """The lane as it stands once a receipt is noted and a batch claimed."""
    return replace(
        lane,
        covered=claim.covered if claim else lane.covered,
        last_number=claim.number if claim else lane.last_number,
        receipt=receipt or lane.receipt,
        clock_ms=clock_ms,
    )


def leaving(exclusion: Exclusion) -> list[tuple[int, str, str]]:
    """Position, new state and reason of each message that leaves its batch."""
    failed = [(position, "failed", why) for position, why in exclusion.failed.items()]
    return failed + [(position, "waiting", why) for position, why in exclusion.waiting.items()]


def stale(lane: Lane, what: str) -> Stale:
    return Stale(f"lane {lane.lane} of epoch {lane.epoch} {what}: another relay has taken it over")
