"""What the tally reads of the databases before Spark does: who is there, how far each has come, what is unfinished.

The order of reading keeps a running system from looking broken: first how far the relay has come and
what it has parked, then (elsewhere) the log's ends, then the consumers' positions, queues and dead letters, and last,
by Spark, the rows themselves. Whatever
was marked as sent is then in the log that is read, and whatever was passed is in the inbox.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import psycopg

from tallymark.errors import Problem, SchemaMismatch, UsageError
from tallymark.inbox.identity import saved_id
from tallymark.lifecycle import DeadState, QueueState, Role
from tallymark.store.postgres.connection import Connection, connect, explain, place_of
from tallymark.store.postgres.migrations import require_schema
from tallymark.store.queries import load
from tallymark.store.sqlite.schema import is_sqlite
from tallymark.tally.records import Letter, ParkedRow, Place, Queued
from tallymark.tally.windows import Frontier

# So much of each queue, and of dead letters, is held in memory: a few hundred bytes each.
UNFINISHED = 1_000_000
# So many that are overdue are named.
OVERDUE = 10_000


@dataclass(frozen=True, slots=True)
class Delayed:
    """A message that was added to be sent later, and has no position yet."""

    id: str
    topic: str
    key: bytes | None
    due_at: datetime


@dataclass(frozen=True, slots=True)
class ProducerView:
    """An outbox and its relay, as they stood at one moment."""

    outbox_id: str
    lanes: int
    outbox_from: int
    frontier: Frontier
    # Up to where each lane has sent everything; where each held topic was first passed over, by lane.
    settled: tuple[int, ...]
    holds: dict[tuple[int, str], int]
    # The topics that the relay has recorded: id and number of partitions.
    topics: dict[str, tuple[str, int]]
    # Positions of what was sent again, of the rows that they copy, and the id of both.
    resends: list[tuple[int, int, str]]
    at: datetime
    # When a topic's log was last replaced by another one, which somebody has accepted.
    remade: dict[str, datetime] = field(default_factory=dict)
    # What was due by then, and is not in the outbox yet; the longest overdue first.
    overdue: list[Delayed] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ConsumerView:
    """A consumer, as it stood at one moment."""

    database: str
    name: str
    topics: frozenset[str]
    created_at: datetime
    kept_from_ms: int
    # Topics whose handlers take any order; None where no process has said so yet.
    unordered: frozenset[str] | None = None
    next_offsets: dict[Place, int] = field(default_factory=dict)
    # Where it began in each partition, as far as that was written down.
    starts: dict[Place, int] = field(default_factory=dict)
    # Of which log each position is, by its topic's id, and topics that it once read and was told to read no more.
    topic_ids: dict[Place, str] = field(default_factory=dict)
    dropped: frozenset[str] = frozenset()
    # When it began with each topic, where that was written down: at the first of its partitions.
    begun: dict[str, datetime] = field(default_factory=dict)
    # Its positions are in Kafka: it has kept messages, and nothing here says what it has passed.
    placeless: bool = False
    queued: list[Queued] = field(default_factory=list)
    letters: list[Letter] = field(default_factory=list)
    # Outbox positions of what waits in the queue, of dead letters, of those that were given up, and of all letters that
    # were never kept.
    queued_at: list[int] = field(default_factory=list)
    dead_at: list[int] = field(default_factory=list)
    discarded_at: list[int] = field(default_factory=list)
    unkept_at: list[int] = field(default_factory=list)
    # Topics of which the inbox has dropped messages whose ids carry no time.
    pruned: frozenset[str] = frozenset()

    @property
    def ordered(self) -> frozenset[str]:
        """Topics of which it is known that the order of each key counts."""
        return frozenset() if self.unordered is None else self.topics - self.unordered

    @property
    def unfinished(self) -> list[int]:
        return [*self.queued_at, *self.dead_at, *self.discarded_at]


class _Reads:
    """Named queries, one connection per call."""

    role: Role

    def __init__(self, url: str, *, schema: str = "tallymark") -> None:
        self._url = url
        self._schema = schema
        self._sql = load("tallymark.store.postgres", "tally.sql", schema)

    @contextmanager
    def _open(self) -> Iterator[Connection]:
        with connect(self._url, application="tallymark tally") as connection:
            require_schema(connection, self._schema, self.role)
            try:
                yield connection
            except psycopg.Error as error:
                raise explain(error, self._url) from error

    def _rows(self, name: str, parameters: dict[str, Any] | None = None) -> list[tuple[Any, ...]]:
        with self._open() as connection:
            return connection.execute(self._sql[name], parameters).fetchall()


class TallyProducer(_Reads):
    """An outbox's database."""

    role = Role.PRODUCER

    def view(self) -> ProducerView:
        with self._open() as connection:

            def rows(name: str, parameters: dict[str, Any] | None = None) -> list[tuple[Any, ...]]:
                return connection.execute(self._sql[name], parameters).fetchall()

            outbox_id, lanes, _, outbox_from, at = self._identity(rows("outbox"))
            settled = [row[1] for row in rows("lanes")]
            # The sequence first, then the floors: whoever is not seen here has a position behind the sequence's.
            last = rows("outbox")[0][2]
            floor = rows("floor")[0][0]
            holds = {(lane, topic): position for lane, topic, position in rows("holds")}
            firsts = [
                rows("first_unsent", {"after": after, "lane": lane})[0][0]
                for lane, after in enumerate(settled)
            ]
            relayed = min(
                [last, *(first - 1 for first in firsts if first is not None), *holds.values()], default=last
            )
            known = rows("topics")
            topics = {topic: (topic_id, partitions) for topic, topic_id, partitions, _ in known}
            return ProducerView(
                outbox_id=outbox_id,
                lanes=lanes,
                outbox_from=max(1, outbox_from),
                frontier=Frontier(last, floor, relayed),
                settled=tuple(settled),
                holds=holds,
                topics=topics,
                resends=[(position, of, id_) for position, of, id_ in rows("resends")],
                at=at,
                remade={topic: remade_at for topic, _, _, remade_at in known if remade_at is not None},
                overdue=[Delayed(*row) for row in rows("overdue", {"at": at, "limit": OVERDUE})],
            )

    def outbox_id(self) -> str:
        return str(self._identity(self._rows("outbox"))[0])

    def _identity(self, rows: list[tuple[Any, ...]]) -> tuple[Any, ...]:
        if not rows:
            raise Problem(
                f"the outbox in schema {self._schema} has no identity", remedy="run `tallymark init`"
            )
        return rows[0]

    def parked(self, first: int, last: int) -> list[ParkedRow]:
        rows = self._rows("parked", {"first": first, "last": last})
        return [ParkedRow(id_, position, state) for id_, position, state, _ in rows]

    def position_since(self, moment: datetime) -> int | None:
        """The first position that was added at a moment or later."""
        found = self._rows("position_since", {"moment": moment})[0][0]
        return None if found is None else int(found)

    def added_at(self, position: int) -> datetime | None:
        """When the first row from a position on was added."""
        found = self._rows("added_at", {"position": position})
        return found[0][0] if found else None

    def positions_of(self, ids: Sequence[str]) -> list[int]:
        return [row[0] for row in self._rows("positions_of", {"ids": _uuids(ids)})]

    def known(self, ids: Sequence[str]) -> set[str]:
        """Which of these messages this outbox has."""
        return {row[0] for row in self._rows("known", {"ids": _uuids(ids)})}

    def usual_source(self) -> str:
        """What its newest message names as its source."""
        found = self._rows("usual_source")
        return str(found[0][0]) if found else ""

    def sources(self, among: Sequence[str]) -> frozenset[str]:
        """Which of these its messages name as their source."""
        return frozenset(row[0] for row in self._rows("sources", {"sources": list(among)}))


class TallyConsumers(_Reads):
    """An inbox's database: one consumer or several."""

    role = Role.CONSUMER

    def __init__(
        self, name: str, url: str, *, schema: str = "tallymark", unfinished_limit: int = UNFINISHED
    ) -> None:
        super().__init__(url, schema=schema)
        self.name = name
        self.unfinished_limit = unfinished_limit

    def views(self, *, unfinished: bool = True) -> list[ConsumerView]:
        """Every consumer; without what is `unfinished` where nobody wants to know."""
        with self._open() as connection:

            def rows(name: str) -> list[tuple[Any, ...]]:
                return connection.execute(self._sql[name], {"limit": self.unfinished_limit + 1}).fetchall()

            # Positions first: what they have passed is kept by then.
            positions = rows("positions")
            placeless = {row[0] for row in rows("placeless")}
            pruned = rows("pruned")
            found = {}
            for name, topics, created_at, kept_from, unordered in rows("consumers"):
                read = {row[1] for row in positions if row[0] == name and not row[7]} | set(topics)
                view = ConsumerView(
                    self.name,
                    name,
                    frozenset(read),
                    created_at,
                    _milliseconds(kept_from),
                    None if unordered is None else frozenset(unordered),
                    placeless=name in placeless,
                    pruned=frozenset(topic for owner, topic in pruned if owner == name),
                    dropped=frozenset(row[1] for row in positions if row[0] == name and row[7]) - read,
                )
                for owner, topic, part, offset, start, begun, topic_id, retired in positions:
                    if owner == name and not retired:
                        view.topic_ids[topic, part] = topic_id
                        view.next_offsets[topic, part] = offset
                        view.starts.update({} if start is None else {(topic, part): start})
                        at = begun or created_at
                        view.begun[topic] = min(at, view.begun.get(topic, at))
                found[name] = view
            if not unfinished:
                return list(found.values())
            for consumer, id_, state, position in self._bounded(rows("queue"), "wait in queues"):
                if consumer in found:
                    view = found[consumer]
                    view.queued.append(Queued(consumer, id_, state))
                    if position is not None and state != QueueState.DEAD:
                        view.queued_at.append(position)
            for consumer, id_, state, position, kept in self._bounded(rows("letters"), "are dead letters"):
                if consumer in found:
                    view = found[consumer]
                    view.letters.append(Letter(consumer, id_, state))
                    if position is not None and state != DeadState.RETRYING:
                        given_up = state == DeadState.DISCARDED
                        (view.discarded_at if given_up else view.dead_at).append(position)
                        view.unkept_at.extend([] if kept else [position])
            return list(found.values())

    def retired(self) -> set[str]:
        """Consumers that were stopped for good."""
        return {name for (name,) in self._rows("retired")}

    def _bounded(self, rows: list[tuple[Any, ...]], what: str) -> list[tuple[Any, ...]]:
        """They are held in memory; a part of them would make faults of what is only late."""
        if len(rows) > self.unfinished_limit:
            raise Problem(
                f"more than {self.unfinished_limit:,} messages {what} in {self.name or place_of(self._url)}: the tally"
                " cannot hold them",
                remedy="let the consumers catch up, or settle what is dead (`tallymark failed`), and run it then",
            )
        return rows

    def kept(self, consumer: str, ids: Sequence[str]) -> set[str]:
        """Which of these messages the consumer has."""
        saved = {str(saved_id(each)): each for each in ids}
        found = self._rows("kept", {"consumer": consumer, "ids": list(saved)})
        return {saved[row[0]] for row in found}

    def beginnings(self) -> dict[tuple[str, str, int], int]:
        """The lowest offset that each consumer has kept of each partition."""
        return {(name, topic, part): low for name, topic, part, low in self._rows("beginnings")}

    def id_bounds(self) -> tuple[uuid.UUID, uuid.UUID] | None:
        low, high = self._rows("id_bounds")[0]
        return None if low is None else (low, high)


def what_is_here(url: str, *, schema: str = "tallymark") -> tuple[bool, bool]:
    """Whether a database has an outbox, and whether it has an inbox."""
    if is_sqlite(url):
        raise UsageError(
            "the tally reads PostgreSQL only", remedy="leave SQLite's outboxes out: --database the others"
        )
    sql = load("tallymark.store.postgres", "tally.sql", schema)
    with connect(url, application="tallymark tally") as connection:
        row = connection.execute(sql["what_is_here"]).fetchone()
    if row is None or not any(row):
        raise SchemaMismatch(
            f"there is no schema {schema} in {place_of(url)}", remedy="run `tallymark init` there"
        )
    return bool(row[0]), bool(row[1])


def _uuids(ids: Sequence[str]) -> list[uuid.UUID]:
    found = []
    for each in ids:
        try:
            found.append(uuid.UUID(each))
        except ValueError:  # a foreign producer's name
            continue
    return found


def _milliseconds(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)
