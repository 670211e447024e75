"""By the database's URL: PostgreSQL, or a file of SQLite. The one place that knows both."""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from tallymark.errors import UsageError
from tallymark.lifecycle import Role
from tallymark.outbox.ports import MessageStatus
from tallymark.relay.ports import RelayStore
from tallymark.store.postgres.migrations import MigrationReport, migrate
from tallymark.store.postgres.operators import Operators
from tallymark.store.sqlite.operators import SqliteOperators
from tallymark.store.sqlite.schema import explain, is_sqlite, path_of, report

AnyOperators = Operators | SqliteOperators


@dataclass(frozen=True, slots=True)
class Stores:
    """What `Relay` is made with: a new store by name, the housekeeping beside it, and the end of both."""

    open: Callable[[str], RelayStore]
    upkeep: Callable[[], None]
    close: Callable[[], None]


def stores_for(
    url: str,
    *,
    schema: str = "tallymark",
    keep: timedelta,
    keep_names: timedelta | None = None,
    owner: str | None = None,
) -> Stores:
    """The stores behind a URL. A file of SQLite has one relay: a second one is refused, and told who the first is."""
    if is_sqlite(url):
        return _sqlite(path_of(url), schema, keep, keep_names)
    from tallymark.store.postgres.relaystore import PostgresRelayStore
    from tallymark.store.postgres.retention import Retention

    retention = Retention(url, schema=schema, keep=keep, keep_names=keep_names, owner=owner)
    return Stores(
        lambda name: PostgresRelayStore(url, schema=schema, application=f"tallymark relay, {name}"),
        retention.run_safely,
        lambda: None,
    )


def migrate_for(
    url: str,
    *,
    schema: str,
    role: Role,
    dry_run: bool = False,
    lanes: int | None = None,
    notify: bool | None = None,
) -> MigrationReport:
    """Create or migrate the tables behind a URL."""
    if is_sqlite(url):
        if notify:
            raise UsageError(
                "SQLite wakes nobody", remedy="leave --notify out: its relay looks every few milliseconds"
            )
        return report(path_of(url), schema=schema, role=role, dry_run=dry_run, lanes=lanes)
    return migrate(url, schema=schema, role=role, dry_run=dry_run, lanes=lanes, notify=notify)


def operators_for(url: str, *, schema: str = "tallymark") -> AnyOperators:
    """What operators see and do, behind a URL."""
    return SqliteOperators(path_of(url), schema=schema) if is_sqlite(url) else Operators(url, schema=schema)


def message_status(url: str, id: uuid.UUID, *, schema: str = "tallymark") -> MessageStatus | None:
    """Where one message is."""
    if is_sqlite(url):
        from tallymark.store.sqlite.writer import SqliteWriter

        path = path_of(url)
        try:
            # Looking must not make a file. As a URI, quoted: a path may have ?, # or % in it.
            with closing(sqlite3.connect(f"{Path(path).absolute().as_uri()}?mode=ro", uri=True)) as file:
                return SqliteWriter(schema).status(file, id)
        except sqlite3.Error as error:
            raise explain(error, path) from error
    from tallymark.store.postgres.connection import connect
    from tallymark.store.postgres.writer import PostgresWriter

    with connect(url, application="tallymark outbox", autocommit=False) as connection:
        return PostgresWriter(schema).status(connection, id)


def _sqlite(path: str, schema: str, keep: timedelta, keep_names: timedelta | None) -> Stores:
    from tallymark.store.sqlite.onerelay import OneRelay
    from tallymark.store.sqlite.relaystore import SqliteRelayStore
    from tallymark.store.sqlite.retention import SqliteRetention

    one = OneRelay(path, schema=schema)
    one.hold()

    def opened(_name: str) -> RelayStore:
        one.hold()  # for as long as somebody can open stores, the file is ours
        return SqliteRelayStore(path, schema=schema)

    return Stores(
        opened,
        SqliteRetention(path, schema=schema, keep=keep, keep_names=keep_names).run_safely,
        one.let_go,
    )
