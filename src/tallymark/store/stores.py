"""How a relay opens its stores, by the database's URL: PostgreSQL, or a file of SQLite."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from tallymark.relay.ports import RelayStore
from tallymark.store.sqlite.schema import is_sqlite, path_of


@dataclass(frozen=True, slots=True)
class Stores:
    """What `Relay` is made with: a new store by name, the housekeeping beside it, and the end of both."""

    open: Callable[[str], RelayStore]
    upkeep: Callable[[], None]
    close: Callable[[], None]


def stores_for(url: str, *, schema: str = "tallymark", keep: timedelta, owner: str | None = None) -> Stores:
    """The stores behind a URL. A file of SQLite has one relay: a second one is refused, and told who the first is."""
    if is_sqlite(url):
        return _sqlite(path_of(url), schema, keep)
    from tallymark.store.postgres.relaystore import PostgresRelayStore
    from tallymark.store.postgres.retention import Retention

    retention = Retention(url, schema=schema, keep=keep, owner=owner)
    return Stores(
        lambda name: PostgresRelayStore(url, schema=schema, application=f"tallymark relay, {name}"),
        retention.run_safely,
        lambda: None,
    )


def _sqlite(path: str, schema: str, keep: timedelta) -> Stores:
    from tallymark.store.sqlite.onerelay import OneRelay
    from tallymark.store.sqlite.relaystore import SqliteRelayStore
    from tallymark.store.sqlite.retention import SqliteRetention

    one = OneRelay(path, schema=schema)
    one.hold()
    return Stores(
        lambda _name: SqliteRelayStore(path, schema=schema),
        SqliteRetention(path, schema=schema, keep=keep).run_safely,
        one.let_go,
    )
