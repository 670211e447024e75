"""The two stores, each behind the same few handles: a contract test sees no difference."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tallymark import Outbox
from tallymark.lifecycle import BatchKind, Mode
from tallymark.relay.ports import Batch, Lane, RelayStore
from tallymark.store.postgres.migrations import migrate
from tallymark.store.postgres.relaystore import PostgresRelayStore
from tallymark.store.sqlite.relaystore import SqliteRelayStore
from tallymark.store.sqlite.schema import create
from tallymark.store.stores import AnyOperators, operators_for


@dataclass
class Ground:
    """One outbox with one lane: how to open its store, how to write to it, how to look at its tables."""

    kind: str
    new_store: Callable[[], RelayStore]
    connect: Callable[[], Any]
    prefix: str
    operators: AnyOperators | None = None
    outbox: Outbox = field(default_factory=lambda: Outbox("/contract"))
    _stores: list[RelayStore] = field(default_factory=list)

    def store(self) -> RelayStore:
        store = self.new_store()
        store.identity()
        self._stores.append(store)
        return store

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        connection = self.connect()
        try:
            yield connection
            connection.commit()
        finally:
            connection.close()

    def add(
        self, count: int = 1, *, topic: str = "t", key: str | None = "k", value: bytes = b"v"
    ) -> list[str]:
        with self.transaction() as tx:
            return [str(self.outbox.add(tx, topic, value, key=key)) for _ in range(count)]

    def sql(self, statement: str) -> list[tuple[Any, ...]]:
        """Plain SQL; `~name` is a table of ours. Rows where there are any."""
        with self.transaction() as tx:
            cursor = tx.execute(statement.replace("~", self.prefix))
            return cursor.fetchall() if cursor.description else []

    def close(self) -> None:
        for store in self._stores:
            store.close()


@pytest.fixture(params=["postgres", "sqlite"])
def ground(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ground]:
    made = postgres(request) if request.param == "postgres" else sqlite(tmp_path / "outbox.db")
    yield made
    made.close()


def postgres(request: pytest.FixtureRequest) -> Ground:
    url: str = request.getfixturevalue("database")
    migrate(url, lanes=1, partitions_ahead=2)
    return Ground(
        "postgres",
        lambda: PostgresRelayStore(url),
        lambda: psycopg.connect(url),
        "tallymark.",
        operators_for(url, schema="tallymark"),
    )


def sqlite(path: Path) -> Ground:
    create(path)
    return Ground(
        "sqlite",
        lambda: SqliteRelayStore(str(path)),
        lambda: sqlite3.connect(path, timeout=20),
        "tallymark_",
        operators_for(f"sqlite:///{path}", schema="tallymark"),
    )


def next_batch(
    lane: Lane, upto: int, *, after: int | None = None, messages: int = 0, **changes: Any
) -> Batch:
    """The lane's next batch, as the relay would make it."""
    given: dict[str, Any] = {
        "lane": lane.lane,
        "number": lane.last_number + 1,
        "token": f"00000000-0000-4000-8000-{lane.last_number + 1:012}",
        "kind": BatchKind.RANGE,
        "after": lane.covered if after is None else after,
        "upto": upto,
        "covered": upto,
        "mode": Mode.TRANSACTIONAL,
        "messages": messages,
        **changes,
    }
    return Batch(**given)
