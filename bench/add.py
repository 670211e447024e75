"""`bench add`: what a message costs the service that adds it, against a bare INSERT or COPY of the same row.

The bare table has the outbox's columns, generated column, indexes and partitions, and no trigger. One connection, one
thread, blocks of both sides in turns; what is timed is said by each row.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Sequence

import psycopg

from bench.backlog import SOURCE, TYPE
from bench.ground import fresh_database
from bench.harness import Sample, interleave
from bench.payloads import Payload, payloads
from bench.registry import Context, benchmark
from bench.row import Row, at_least, at_most, row
from tallymark.message import new_id
from tallymark.outbox.outbox import Draft, Outbox
from tallymark.store.postgres.migrations import migrate
from tallymark.store.postgres.writer import PostgresWriter

TOPIC = "transfers"
_HEADERS = json.dumps(
    {"ce_source": SOURCE, "ce_type": TYPE, "content-type": "application/octet-stream"}, separators=(",", ":")
)
_COLUMNS = "(id, topic, key, value, headers, partition)"
_INSERT = f"insert into {{table}} {_COLUMNS} values (%s, %s, %s, %s, %s, %s)"
_BARE = """
create schema bare;
create sequence bare.position;
create table bare.outbox (like tallymark.outbox including defaults including constraints including generated
    including indexes) partition by range (position);
alter table bare.outbox alter position set default nextval('bare.position');
create index on bare.outbox (id);
create table bare.outbox_1 partition of bare.outbox for values from (0) to (1000000000);
create table account (id int primary key, balance bigint not null);
insert into account values (1, 0);
"""

Bare = tuple[uuid.UUID, str, bytes, bytes, str, None]


@benchmark("add", "one add against a bare INSERT, the floor's trigger alone, add_many against a bare COPY")
def add(context: Context) -> Sequence[Row]:
    block, repetitions = (1_000, 7) if context.quick else (5_000, 15)
    many, copies = (10_000, 5) if context.quick else (100_000, 7)
    with fresh_database(context.cluster) as url:
        migrate(url)
        with psycopg.connect(url) as connection:
            connection.execute(_BARE.encode())
            connection.commit()
            work = _Work(connection)
            calls = interleave(
                {
                    "add": lambda: work.timed(work.add, block),
                    "insert": lambda: work.timed(work.insert_bare, block),
                    "with floor": lambda: work.timed(work.insert_outbox, block),
                    "ten adds": lambda: work.timed(work.add, block, per_transaction=10),
                    "ten inserts": lambda: work.timed(work.insert_bare, block, per_transaction=10),
                    "tx add": lambda: work.timed(work.add, block, whole=True),
                    "tx insert": lambda: work.timed(work.insert_bare, block, whole=True),
                },
                repetitions,
                progress=context.progress,
            )
            bulk = interleave(
                {
                    "add_many": lambda: work.bulk(work.add_many, many),
                    "copy": lambda: work.bulk(work.copy_bare, many),
                },
                copies,
                progress=context.progress,
            )

    def cost(metric: str, ours: str, against: str, bound: float | None = None) -> Row:
        goal = at_most(bound) if bound else None
        return row(metric, "µs", _micros(calls[ours]), _micros(calls[against]), goal)

    return [
        cost("one add in its transaction, against a bare INSERT", "add", "insert", 1.3),
        cost(
            "the whole transaction (UPDATE, add, COMMIT), against one with a bare INSERT",
            "tx add",
            "tx insert",
            1.3,
        ),
        cost("each of ten adds in a transaction, against bare INSERTs", "ten adds", "ten inserts"),
        cost("an INSERT with the floor's trigger, against one without", "with floor", "insert"),
        row(
            "add_many, against a bare COPY",
            "rows/s",
            [one.rate for one in bulk["add_many"]],
            [one.rate for one in bulk["copy"]],
            at_least(0.8),
        ),
    ]


def _micros(samples: Sequence[Sample]) -> list[float]:
    return [one.seconds / one.count * 1e6 for one in samples]


class _Work:
    """Both sides, on one connection."""

    def __init__(self, connection: psycopg.Connection) -> None:
        self._connection = connection
        self._messages = list(payloads(10_000))
        self._outbox = Outbox(SOURCE, writer=PostgresWriter())
        self._at = 0

    def timed(
        self, step: Callable[[], None], count: int, *, per_transaction: int = 1, whole: bool = False
    ) -> Sample:
        """`count` steps in transactions that begin with a business UPDATE. Timed: the steps, or all of it."""
        connection, clock = self._connection, time.perf_counter
        cpu, spent = time.process_time(), 0.0
        for _ in range(count // per_transaction):
            began = clock()
            connection.execute("update account set balance = balance + 1 where id = 1")
            for _ in range(per_transaction):
                before = clock()
                step()
                spent += 0.0 if whole else clock() - before
            connection.commit()
            spent += clock() - began if whole else 0.0
        return Sample(count // per_transaction * per_transaction, spent, time.process_time() - cpu, 1)

    def bulk(self, work: Callable[[int], None], count: int) -> Sample:
        """One transaction of many."""
        cpu, began = time.process_time(), time.perf_counter()
        work(count)
        self._connection.commit()
        return Sample(count, time.perf_counter() - began, time.process_time() - cpu, 1)

    def add(self) -> None:
        one = self._next()
        self._outbox.add(self._connection, TOPIC, one.value, key=one.key, type=TYPE)

    def insert_bare(self) -> None:
        self._connection.execute(_INSERT.format(table="bare.outbox"), self._row())

    def insert_outbox(self) -> None:
        self._connection.execute(_INSERT.format(table="tallymark.outbox"), self._row())

    def add_many(self, count: int) -> None:
        drafts = [
            Draft(TOPIC, one.value, key=one.key, type=TYPE) for one in (self._next() for _ in range(count))
        ]
        self._outbox.add_many(self._connection, drafts)

    def copy_bare(self, count: int) -> None:
        with (
            self._connection.cursor() as cursor,
            cursor.copy(f"copy bare.outbox {_COLUMNS} from stdin") as copy,
        ):
            for _ in range(count):
                copy.write_row(self._row())

    def _row(self) -> Bare:
        one = self._next()
        return (new_id(), TOPIC, one.key, one.value, _HEADERS, None)

    def _next(self) -> Payload:
        self._at = (self._at + 1) % len(self._messages)
        return self._messages[self._at]
