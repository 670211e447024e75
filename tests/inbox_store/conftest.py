"""A consumer's database with an inbox, and stores of it."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest

from tallymark.inbox.ports import Instance, Move, Place, Position, Queued, Received, Wanted
from tallymark.lifecycle import OwnerKind, Role
from tallymark.local.cluster import LocalCluster
from tallymark.message import new_id
from tallymark.store.postgres.inboxstore import PostgresInboxStore
from tallymark.store.postgres.migrations import migrate
from tests.outbox.callers import django_connection

LOGGED = datetime(2026, 1, 2, 3, 4, 5, 678000, tzinfo=UTC)
MakeStore = Callable[..., PostgresInboxStore]


TABLES = (
    "inbox",
    "named_again",
    "applications",
    "queue",
    "dead_letters",
    "positions",
    "consumers",
    "instances",
    "versions",
    "audit",
)


@pytest.fixture(scope="module")
def module_database(cluster: LocalCluster) -> Iterator[str]:
    name = f"ledger_{uuid.uuid4().hex[:12]}"
    url = cluster.database_url(name)
    found(url)
    yield url
    cluster.drop_database(name)


@pytest.fixture
def ledger(module_database: str) -> str:
    """A consumer's database, with accounts to apply to. Emptied, not made anew: that is what takes long."""
    with psycopg.connect(module_database) as tx:
        for table in TABLES:
            tx.execute(f"delete from tallymark.{table}")
        tx.execute("delete from account")
        tx.execute("insert into account values ('alice', 100, 7), ('bob', 100, null)")
    return module_database


@pytest.fixture
def fresh_ledger(database: str) -> str:
    """One of its own, for tests that change its tables."""
    found(database)
    return database


def found(url: str) -> None:
    migrate(url, role=Role.CONSUMER)
    with psycopg.connect(url) as tx:
        tx.execute(
            "create table public.account (name text primary key, balance integer not null, version bigint)"
        )


@pytest.fixture
def make_store(ledger: str) -> Iterator[MakeStore]:
    made: list[PostgresInboxStore] = []

    def make(consumer: str = "ledger", **options: Any) -> PostgresInboxStore:
        made.append(PostgresInboxStore(ledger, consumer, **options))
        return made[-1]

    yield make
    for store in made:
        store.close()


@pytest.fixture
def store(make_store: MakeStore) -> PostgresInboxStore:
    return make_store()


@pytest.fixture(params=["psycopg", "sqlalchemy", "django"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def any_store(kind: str, ledger: str, make_store: MakeStore) -> Iterator[PostgresInboxStore]:
    connection = django_connection(ledger) if kind == "django" else None
    store = make_store(tx=kind)
    yield store
    store.close()
    if connection is not None:
        connection.close()


def message(offset: int | None = 0, **changes: Any) -> Received:
    """A message of transfers/0, with a fresh id."""
    made = Received(
        id=new_id(),
        source="bank",
        named=None,
        topic="transfers",
        partition=0,
        offset=offset,
        position=None if offset is None else offset + 1,
        key=b"alice",
        value=b'{"amount": 5}',
        headers='{"ce_type": "transfer"}',
        logged_at=LOGGED,
    )
    return made._replace(**changes)


def queued(offset: int, key_hash: int = 1, **changes: Any) -> Queued:
    return Queued(message(offset, key=b"%d" % key_hash, **changes), key_hash)


def wanted(partition: int = 0, start: int = 0, topic: str = "transfers") -> Wanted:
    return Wanted(topic, partition, f"id-of-{topic}", start)


def taken(store: PostgresInboxStore, owner: str = "me", *partitions: int) -> list[Position]:
    return store.take(owner, OwnerKind.SERVICE, 60, [wanted(p) for p in partitions or (0,)])


def move(position: Position, end: int, *, start: int | None = None) -> Move:
    begin = position.next_offset if start is None else start
    return Move(position.topic, position.partition, position.epoch, begin, end, 3, LOGGED)


def instance(
    owner: str = "me", topics: tuple[str, ...] = ("transfers",), consumer: str = "ledger"
) -> Instance:
    return Instance(owner, consumer, topics, "inline", "1", "host", 1)


def query(url: str, sql: str, parameters: Any = None) -> list[tuple[Any, ...]]:
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(sql, parameters)
        return cursor.fetchall() if cursor.description else []


def offsets(store: PostgresInboxStore) -> dict[Place, int]:
    return {place: position.next_offset for place, position in store.positions().items()}
