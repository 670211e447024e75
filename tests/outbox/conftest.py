"""One database with an outbox and some accounts for each module: tests tell their messages apart by id."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from tallymark.local.cluster import LocalCluster
from tallymark.store.postgres.migrations import migrate
from tallymark.store.postgres.relaystore import PostgresRelayStore


@pytest.fixture(scope="module")
def bank(cluster: LocalCluster, request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of a producer's database, with one lane."""
    name = f"bank_{uuid.uuid4().hex[:12]}"
    url = cluster.database_url(name)
    migrate(url, lanes=1, partitions_ahead=2)
    with psycopg.connect(url) as connection:
        connection.execute(
            "create table accounts (name text primary key, balance integer not null default 0)"
        )
        connection.execute("insert into accounts values ('alice', 100), ('bob', 100)")
    yield url
    cluster.drop_database(name)


Ids = Callable[[], set[str]]


@pytest.fixture
def committed(bank: str) -> Ids:
    """The ids that are in the outbox now, as anybody sees them."""
    return lambda: {row[0] for row in query(bank, "select id::text from tallymark.outbox")}


@pytest.fixture
def store(bank: str) -> Iterator[PostgresRelayStore]:
    store = PostgresRelayStore(bank)
    store.identity()
    yield store
    store.close()


def query(url: str, sql: str, parameters: Any = None) -> list[tuple[Any, ...]]:
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(sql, parameters)
        return cursor.fetchall() if cursor.description else []
