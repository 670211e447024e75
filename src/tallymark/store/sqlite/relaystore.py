"""The relay's port, on SQLite: one lane, one file, one process; the same claims and marks under owner, epoch and version.

Each state change is one transaction. What changed no row was stale: `Stale` is raised and nothing happened. Reading is
commit-safe by nature: SQLite has one writer at a time, so no position below the last one drawn can still appear.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tallymark.errors import Inconsistent
from tallymark.lifecycle import BatchKind, Mode
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
)
from tallymark.store.lanestore import LaneStore, adopting, advanced, leaving, owner_values, slice_of, stale
from tallymark.store.sqlite.session import SqliteSession

# A look at the file's counter of commits takes microseconds.
_LOOK_AGAIN_S = 0.002


class SqliteRelayStore(LaneStore[SqliteSession]):
    """One connection to the outbox's file. Used by one thread at a time."""

    def __init__(self, path: str, *, schema: str = "tallymark") -> None:
        super().__init__(SqliteSession(path, schema=schema, file="relay.sql"))
        self._heard: int | None = None

    def identity(self) -> Identity:
        return Identity(*self._db.row("identity"))

    def join(self, owner: str, mode: Mode, accepted: Sequence[str], seconds: float) -> int:
        with self._db.transaction():
            self._db.rows("join", self._joining(owner, mode, accepted, seconds))
            self._db.rows("forget_gone", {"owner": owner})
            return int(self._db.row("alive")[0])

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
        parameters = self._range(after, upto, hold.topic if hold else None, without)
        rows: list[Row] = self._db.rows("read", {**parameters, "limit": limit, "size": size})
        return slice_of(rows, after, upto, limit, size)

    def contents(self, batch: Batch) -> list[Row]:
        if batch.kind is BatchKind.ORIGIN:
            return []
        if batch.kind is BatchKind.RETRY:
            return self._db.rows("retry_contents", {"number": batch.number})
        return self._db.rows(
            "contents", self._range(batch.after, batch.upto, batch.topic, batch.without_topics)
        )

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
            **self._advancing(lane, mark, receipt, claim, in_doubt=in_doubt),
            "mark_upto": mark and mark.upto,
            "mark_topic": mark and mark.topic,
        }
        with self._db.transaction():
            markable = mark is None or self._db.row("markable", parameters) is not None
            row = self._db.row("advance", parameters) if markable else None
            if row is None:
                raise stale(
                    lane, f"refused to mark {mark and mark.number} and claim {claim and claim.number}"
                )
            if mark is not None:
                self._mark(mark, parameters)
            if claim is not None:
                self._db.rows("claim", parameters)
                self._park([(p, "waiting", why) for p, why in (waiting or {}).items()], claim.number)
        return advanced(lane, receipt, claim, row[0])

    def exclude(self, lane: Lane, batch: Batch, exclusion: Exclusion) -> Batch:
        out = leaving(exclusion)
        retry = batch.kind is BatchKind.RETRY
        without = batch.without_topics if retry else (*batch.without_topics, *exclusion.topics)
        parameters = {
            "covered": batch.covered,
            "number": batch.number,
            "version": batch.version,
            "leaving": len(out),
            "without": self._list(without),
        }
        with self._db.transaction():
            mine = self._db.row("owned", owner_values(lane)) is not None
            row = self._db.row("leave_batch", parameters) if mine else None
            if row is None:
                raise stale(lane, f"refused to take messages out of batch {batch.number}")
            self._park(out, batch.number, again=retry)
            for topic, why in exclusion.topics.items() if not retry else ():
                self._db.rows(
                    "hold_topic", {"lane": lane.lane, "topic": topic, "after": batch.after, "reason": why}
                )
        return replace(batch, version=row[0], messages=row[1], without_topics=self._listed(row[2]))

    def held_keys(self, lane: Lane) -> dict[Key, int]:  # noqa: ARG002 - there is one
        return {(topic, key): first for topic, key, first in self._db.rows("held_keys")}

    def claim_retry(
        self, lane: Lane, claim: Batch, limit: int, size: int = 16 * 1024 * 1024
    ) -> tuple[Lane, Batch | None]:
        if not self._db.rows("retryable", {"limit": 1}):  # most often: no write for nothing
            return lane, None
        with self._db.transaction():
            chosen = _fitting(self._db.rows("retryable", {"limit": limit}), size)
            taken = (
                self._db.row("next_number", {**owner_values(lane), "number": claim.number})
                if chosen
                else None
            )
            if taken is None:  # nothing to retry, or the lane is not ours: the next write will tell
                return lane, None
            covered, clock_ms = taken
            claimed = replace(
                claim, covered=covered, after=covered, upto=covered, messages=len(chosen), clock_ms=clock_ms
            )
            for position in chosen:
                self._db.rows("free_parked", {"number": claim.number, "position": position})
            self._db.rows("claim", {**owner_values(lane), **self._claiming(claimed)})
        return replace(lane, last_number=claim.number), claimed

    def adopt(self, lane: Lane, batch: Batch, mode: Mode) -> Batch:
        with self._db.transaction():
            mine = self._db.row("owned", owner_values(lane)) is not None
            row = self._db.row("adopt", adopting(lane, batch, mode)) if mine else None
            if row is None:
                raise stale(lane, f"refused to send batch {batch.number} in mode {mode}")
        return replace(batch, mode=mode, version=row[0])

    def update_hold(self, lane: Lane, hold: Hold) -> None:
        with self._db.transaction():
            if self._db.row("owned", owner_values(lane)) is None:
                raise stale(lane, f"refused to hold topic {hold.topic}")
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

    def _list(self, values: Sequence[Any]) -> Any:
        return json.dumps(list(values))

    def _listed(self, stored: Any) -> tuple[Any, ...]:
        return tuple(json.loads(stored))

    def _range(self, after: int, upto: int, topic: str | None, without: Sequence[str]) -> dict[str, Any]:
        return {"after": after, "upto": upto, "topic": topic, "without": self._list(without)}

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


def _fitting(weighed: Sequence[tuple[int, int]], size: int) -> list[int]:
    """Of (position, bytes), the first positions that fit; one giant alone still does."""
    chosen: list[int] = []
    total = 0
    for position, weight in weighed:
        if total >= size:
            break
        chosen.append(position)
        total += weight
    return chosen
