"""An outbox and a consumer in one database, nothing running: what is sent again or taken is decided by tables alone.

The tests of a file share the database: what is made anew is what stands in its tables, for making those takes longer.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from tallymark.inbox.identity import received, saved_id
from tallymark.inbox.ports import Instance, Received
from tallymark.local.cluster import LocalCluster
from tallymark.message import kafka_headers
from tallymark.store.postgres.inboxstore import PostgresInboxStore
from tallymark.store.postgres.migrations import migrate
from tallymark.store.postgres.resend import Resending, wanted_of
from tests.journal import query

# Rows, not tables: to truncate dozens of partitions takes longer than all else.
WRITTEN = (
    *("outbox", "batches", "resends", "findings", "audit", "consumers", "inbox", "queue", "dead_letters"),
    *("applications", "versions", "instances", "tallies"),
)
FILL = """
insert into tallymark.outbox (id, topic, key, value)
select tallymark.new_id(), 'transfers', convert_to(k, 'utf8'), 'x' from unnest(%s::text[]) with ordinality u(k, n)
 order by n;
insert into tallymark.consumers (name, topics, mode) values ('ledger', '{transfers}', 'inline');
"""
SEND = """
insert into tallymark.batches (covered, lane, number, token, kind, after_position, upto, messages, mode, state, owner,
                               epoch, receipt_offset, claimed_at, sent_at)
select 100, lane, 1, gen_random_uuid(), 'range', 0, 100, 1, 'transactional', 'sent', 'relay-1', 1, 1, now(), now()
  from tallymark.lanes
"""
KEEP = """
insert into tallymark.inbox (id, source, topic, partition, "offset", position, key, value, consumer)
select id, '/bank', topic, 0, position, position, key, value, 'ledger' from tallymark.outbox where position = %s
"""
KEEP_NAMED = """
insert into tallymark.inbox (id, named, source, topic, partition, "offset", position, key, value, consumer)
select %s, %s, '/bank', topic, 0, position, position, key, value, 'ledger' from tallymark.outbox where position = %s
"""
DIE = """
insert into tallymark.dead_letters (consumer, source, id, topic, partition, "offset", position, key, value, state, reason)
select consumer, source, id, topic, partition, coalesce(%s, "offset"), position, key, value, 'dead', ''
  from tallymark.inbox where id = %s
"""

APPLY = """
insert into tallymark.applications (id, source, consumer, topic, partition, attempt, outcome)
values (%s, '/bank', 'ledger', 'transfers', 0, 1, 'applied')
"""


@pytest.fixture(scope="module")
def tables(cluster: LocalCluster, request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of a database with our tables, for all tests of a file."""
    name = f"{request.module.__name__.rpartition('.')[2]}_{os.getpid()}"
    url = cluster.database_url(name)
    migrate(url)
    yield url
    cluster.drop_database(name)


class Ground:
    """An outbox and a consumer in one database; nothing runs."""

    def __init__(self, url: str, keys: list[str]) -> None:
        self.url = url
        with psycopg.connect(url) as connection:
            for table in WRITTEN:
                connection.execute(f"delete from tallymark.{table}")
            connection.execute("alter sequence tallymark.outbox_position restart")
            for statement in FILL.split(";\n")[:2]:
                connection.execute(statement, [keys] if "%s" in statement else None)
            connection.execute(SEND)
        self.ids = [row[0] for row in self.query("select id::text from tallymark.outbox order by position")]

    def query(self, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
        return query(self.url, sql, parameters)

    def named(self, number: int) -> None:
        """It was written with an id that is no UUIDv7, as a plain INSERT can."""
        self.ids[number] = str(uuid.uuid4())
        self.query("update tallymark.outbox set id = %s where position = %s", self.ids[number], number + 1)

    def keep_named(self, number: int, *, row: bool = True) -> None:
        """As an inbox keeps and applies one that is `named`."""
        if row:
            self.query(KEEP_NAMED, saved_id(self.ids[number]), self.ids[number], number + 1)
        self.query(APPLY, saved_id(self.ids[number]))

    def keep(self, number: int, *, queued: bool = False) -> None:
        self.query(KEEP, number + 1)
        if queued:
            self.query(
                'insert into tallymark.queue (consumer, key_hash, source, id, topic, partition, "offset")'
                " values ('ledger', 1, '/bank', %s, 'transfers', 0, %s)",
                self.ids[number],
                number + 1,
            )

    def enlisted(self, **declared: tuple[str, ...]) -> None:
        """A process of the consumer has started, and said what order means to it."""
        store = PostgresInboxStore(self.url, "ledger")
        store.enlist(Instance("me", "ledger", ("transfers",), "inline", "1", "host", 1, **declared), 60)  # type: ignore[arg-type]
        store.close()

    def missed(self, number: int, consumer: str = "ledger") -> None:
        """A tally has found that the consumer lacks it."""
        self.query(
            "insert into tallymark.findings (id, verdict, consumer, stage, topic, position, evidence, run)"
            " values (%s, 'lost-in-inbox', %s, 'inbox', 'transfers', %s, '', gen_random_uuid())",
            self.ids[number],
            consumer,
            number + 1,
        )

    def knew(self, **readers: list[str]) -> None:
        """A tally has ended that knew these consumers, and which topics they read."""
        self.query(
            "insert into tallymark.tallies (run, who, from_position, to_position, ended_at, summary)"
            " values (gen_random_uuid(), 'ann', 0, 9, now(), %s::json)",
            json.dumps({"consumers": readers}),
        )

    def resend(
        self, *numbers: int, any_order: bool = False, asked: bool = True
    ) -> tuple[list[str], dict[str, str]]:
        """`asked`: whether the consumer's database is given."""
        found = [{"id": self.ids[n], "verdict": "lost-in-inbox", "position": n + 1} for n in numbers]
        done = Resending(self.url, {"main": self.url} if asked else {}).resend(
            wanted_of(found), who="ann", reason="", any_order=any_order, dry_run=False
        )
        return [str(each["id"]) for each in done.resent], done.refused


def in_log(ground: Ground, position: int) -> Received:
    """A row of the outbox as a consumer gets it from the log."""
    ((id_, key, value, headers),) = ground.query(
        "select id::text, key, value, headers::text from tallymark.outbox where position = %s", position
    )
    own = [("ce_id", id_.encode()), ("tm_position", str(position).encode())]
    return received("transfers", 0, position, key, value, [*kafka_headers(headers), *own], 0)
