"""Looking for messages in an outbox by topic, key, time and state: a page at a time, each at a bounded cost.

There is no index by key or time, for writers would pay for it. Positions rise with time, so a time is found by halving;
and a page looks at a bounded stretch of positions, from the newest backwards. A page may therefore be short, or even
empty, while there is more to look at: its cursor says where to go on.
"""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from tallymark.lifecycle import MessageState, ParkedState
from tallymark.store.postgres.connection import Connection
from tallymark.store.postgres.searchpool import SearchPool
from tallymark.store.queries import load

# A position is drawn a moment before its row's time is taken, and clocks are set: so far may the two disagree.
_SKEW = timedelta(minutes=1)
# A page looks for so long, in stretches that grow.
_BUDGET_S = 0.12
_FIRST_STRETCH = 2_000
_LONGEST_STRETCH = 50_000
_PARKED = {
    MessageState.FAILED: [ParkedState.FAILED, ParkedState.WAITING, ParkedState.RETRYING],
    MessageState.DISCARDED: [ParkedState.DISCARDED],
}


@dataclass(frozen=True, slots=True)
class Question:
    """What is looked for; None means any."""

    topic: str | None = None
    key: bytes | None = None
    since: datetime | None = None
    until: datetime | None = None
    state: MessageState | None = None


@dataclass(frozen=True, slots=True)
class Found:
    """A message of the outbox, without its contents."""

    id: uuid.UUID
    state: MessageState
    topic: str
    key: bytes | None
    partition: int | None
    position: int | None
    lane: int | None
    batch: int | None
    added_at: datetime
    sent_at: datetime | None
    due_at: datetime | None
    reason: str | None
    value_bytes: int | None


@dataclass(frozen=True, slots=True)
class Page:
    """Some messages, the newest first, and where to go on; None at the end."""

    messages: list[Found]
    next: str | None


@dataclass(frozen=True, slots=True)
class Ends:
    """The stretch of positions that an outbox has now."""

    last: int
    earliest: int | None
    claimed: int
    lanes: int = 1


class Search:
    """One outbox, looked at through a pool."""

    def __init__(self, pool: SearchPool, schema: str = "tallymark") -> None:
        self._pool = pool
        self._sql = load("tallymark.store.postgres", "search.sql", schema)

    def page(self, question: Question, *, cursor: str | None, limit: int) -> Page:
        """The next page; `cursor` is what an earlier one gave, a position or (for delayed ones) an id."""
        with self._pool.connection() as connection:
            if question.state is MessageState.DELAYED:
                before = uuid.UUID(cursor) if cursor else None
                return self._delayed(connection, question, before, limit)
            before_position = int(cursor) if cursor else 2**63 - 1
            if question.state in _PARKED:
                return self._parked(connection, question, before_position, limit)
            return self._stretches(connection, question, before_position, limit)

    def ends(self, connection: Connection) -> Ends:
        row = connection.execute(self._sql["ends"]).fetchone() or (0, None, 0, 1)
        return Ends(row[0], row[1], row[2] or 0, row[3] or 1)

    def between(
        self, connection: Connection, ends: Ends, since: datetime | None, until: datetime | None
    ) -> tuple[int, int]:
        """Positions such that whatever was added in this time lies strictly between them."""
        low = (ends.earliest or 1) - 1
        after = low if since is None else self._first_since(connection, ends, since - _SKEW) - 1
        before = ends.last + 1 if until is None else self._first_since(connection, ends, until + _SKEW)
        return after, before

    def _first_since(self, connection: Connection, ends: Ends, moment: datetime) -> int:
        """The lowest position from which on everything was added at or after a moment, by halving."""
        low, high = ends.earliest or 1, ends.last + 1
        while low < high:
            middle = (low + high) // 2
            row = connection.execute(self._sql["probe"], {"position": middle}).fetchone()
            if row is None or row[1] >= moment:
                high = middle
            else:
                low = row[0] + 1
        return low

    def _stretches(self, connection: Connection, question: Question, before: int, limit: int) -> Page:
        ends = self.ends(connection)
        bottom, top = self.between(connection, ends, question.since, question.until)
        if question.state is MessageState.PENDING:
            bottom = max(bottom, ends.claimed)
        if question.state is MessageState.SENDING:
            low, high = connection.execute(self._sql["sending"]).fetchone() or (None, None)
            bottom, top = max(bottom, low or 0), min(top, (high or 0) + 1)
        top = min(top, before)
        found: list[Found] = []
        stretch, give_up = max(_FIRST_STRETCH, 2 * limit), time.monotonic() + _BUDGET_S
        while top - 1 > bottom and len(found) < limit:
            after = max(bottom, top - 1 - stretch)
            parameters = {
                **_parameters(question),
                "state": str(question.state) if question.state else None,
                "lanes": ends.lanes,
                "after": after,
                "before": top,
                "limit": limit - len(found),
            }
            found += [_found(row) for row in connection.execute(self._sql["page"], parameters)]
            top = after + 1
            if time.monotonic() > give_up:
                break
            stretch = min(2 * stretch, _LONGEST_STRETCH)
        if len(found) == limit:
            top = found[-1].position or 0
        return Page(found, str(top) if top - 1 > bottom else None)

    def _parked(self, connection: Connection, question: Question, before: int, limit: int) -> Page:
        states = [str(state) for state in _PARKED[question.state or MessageState.FAILED]]
        bounds = {"before": before, "limit": limit + 1, "lanes": self.ends(connection).lanes}
        parameters = {**_parameters(question), **bounds, "states": states}
        found = [_found(row) for row in connection.execute(self._sql["parked_page"], parameters)]
        return Page(found[:limit], str(found[limit - 1].position) if len(found) > limit else None)

    def _delayed(
        self, connection: Connection, question: Question, before: uuid.UUID | None, limit: int
    ) -> Page:
        parameters = {**_parameters(question), "before": before, "limit": limit + 1}
        found = [_waiting(row) for row in connection.execute(self._sql["delayed_page"], parameters)]
        return Page(found[:limit], str(found[limit - 1].id) if len(found) > limit else None)


def _parameters(question: Question) -> dict[str, Any]:
    return {
        "topic": question.topic,
        "key": question.key,
        "since": question.since,
        "until": question.until,
    }


def _found(row: tuple[Any, ...]) -> Found:
    (
        position,
        id_,
        topic,
        key,
        partition,
        added_at,
        size,
        lane,
        batch,
        parked,
        batch_state,
        sent_at,
        reason,
    ) = row
    state = MessageState(batch_state) if batch_state else MessageState.PENDING
    if parked is not None:
        state = {
            ParkedState.SENT: MessageState.SENT,
            ParkedState.DISCARDED: MessageState.DISCARDED,
        }.get(ParkedState(parked), MessageState.FAILED)
    return Found(
        id_, state, topic, key, partition, position, lane, batch, added_at, sent_at, None, reason, size
    )


def _waiting(row: tuple[Any, ...]) -> Found:
    id_, topic, key, partition, added_at, size, due_at = row
    return Found(
        id_,
        MessageState.DELAYED,
        topic,
        key,
        partition,
        None,
        None,
        None,
        added_at,
        None,
        due_at,
        None,
        size,
    )
