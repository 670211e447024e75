"""The relay's port, on PostgreSQL: leases, commit-safe reading, claims and marks under owner, epoch and version.

Each method that writes is one statement and one commit, so that a process stopped in mid-way never holds a row. What
changed no row was stale: `Stale` is raised and nothing happened.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tallymark.errors import Inconsistent
from tallymark.lifecycle import BatchKind, Mode, Role
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
from tallymark.store.postgres.session import Session

# As the outbox's generated column has them.
_SLOTS = 256


class PostgresRelayStore(LaneStore[Session]):
    """One connection to the outbox's database. Not shared between threads."""

    def __init__(self, url: str, *, schema: str = "tallymark", application: str = "tallymark relay") -> None:
        super().__init__(
            Session(url, schema=schema, file="relay.sql", application=application, role=Role.PRODUCER)
        )
        self._lanes = 0

    def identity(self) -> Identity:
        identity = Identity(*self._db.row("identity"))
        self._lanes = identity.lanes
        return identity

    def join(self, owner: str, mode: Mode, accepted: Sequence[str], seconds: float) -> int:
        return int(self._db.row("join", self._joining(owner, mode, accepted, seconds))[0])

    def frontier(self, covered: int) -> int:
        last, floor = self._db.row("frontier", {"covered": covered})
        if last < covered:
            raise Inconsistent(
                f"the outbox's sequence stands at {last}, but positions up to {covered} are already covered: "
                f"rows added as {last + 1} to {covered} would never be sent",
                remedy="was the table truncated, or the database failed over or restored? Set the sequence above "
                f"{covered} with setval and look for rows in that range before `tallymark relay clear`",
            )
        return int(last if floor is None else min(last, floor))

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
        found = self._db.rows("read", {**asked, "limit": limit, "size": size}, binary=True)
        return slice_of(found, after, upto, limit, size)

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
            "lanes": self._lanes,
            "waiting": list(waiting or {}),
            "waiting_reasons": list((waiting or {}).values()),
        }
        row = self._db.row("advance", parameters)
        if row is None:
            raise stale(lane, f"refused to mark {mark and mark.number} and claim {claim and claim.number}")
        return advanced(lane, receipt, claim, row[0])

    def exclude(self, lane: Lane, batch: Batch, exclusion: Exclusion) -> Batch:
        out = leaving(exclusion)
        parameters = {
            **owner_values(lane),
            "covered": batch.covered,
            "number": batch.number,
            "version": batch.version,
            "after": batch.after,
            "positions": [p for p, _, _ in out],
            "states": [state for _, state, _ in out],
            "reasons": [why for _, _, why in out],
            "topics": list(exclusion.topics),
            "topic_reasons": list(exclusion.topics.values()),
        }
        row = self._db.row("exclude_retry" if batch.kind is BatchKind.RETRY else "exclude", parameters)
        if row is None:
            raise stale(lane, f"refused to take messages out of batch {batch.number}")
        return replace(batch, version=row[0], messages=row[1], without_topics=tuple(row[2]))

    def held_keys(self, lane: Lane) -> dict[Key, int]:
        rows = self._db.rows("held_keys", {"slots": self._slots(lane)})
        return {(topic, bytes(key)): first for topic, key, first in rows}

    def claim_retry(
        self, lane: Lane, claim: Batch, limit: int, size: int = 16 * 1024 * 1024
    ) -> tuple[Lane, Batch | None]:
        parameters = {
            **owner_values(lane),
            "slots": self._slots(lane),
            "lanes": self._lanes,
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
            claim, covered=row[0], after=row[0], upto=row[0], messages=row[1], clock_ms=row[2]
        )

    def adopt(self, lane: Lane, batch: Batch, mode: Mode) -> Batch:
        row = self._db.row("adopt", adopting(lane, batch, mode))
        if row is None:
            raise stale(lane, f"refused to send batch {batch.number} in mode {mode}")
        return replace(batch, mode=mode, version=row[0])

    def update_hold(self, lane: Lane, hold: Hold) -> None:
        parameters = {
            **owner_values(lane),
            "topic": hold.topic,
            "state": str(hold.state),
            "start": hold.start,
            "reason": hold.reason,
        }
        if self._db.row("update_hold", parameters) is None:
            raise stale(lane, f"refused to hold topic {hold.topic}")

    def end_hold(self, lane: Lane, topic: str) -> None:
        self._db.rows("end_hold", {**owner_values(lane), "topic": topic})

    def move_due(self, limit: int) -> int:
        return self._db.count("move_due", {"limit": limit})

    def end_floors(self, seconds: float) -> list[str]:
        rows = self._db.rows("end_floors", {"seconds": seconds})
        return [
            f"pid {pid} ({name or 'unnamed'}), {age:.0f} s in its transaction" for pid, name, age, _ in rows
        ]

    def listen(self, seconds: float) -> bool:
        return self._db.listen("listen", seconds)

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
