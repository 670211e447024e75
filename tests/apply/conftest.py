"""Handlers applied for real: on PostgreSQL, through the store that the inbox uses."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from tallymark.apply.applier import Applied, Applier, HandlerFailed
from tallymark.apply.handlers import Handlers
from tallymark.apply.watch import Watch
from tallymark.inbox.ports import InboxTx, Queued
from tallymark.lifecycle import Role
from tallymark.local.cluster import LocalCluster
from tallymark.store.postgres.inboxstore import PostgresInboxStore
from tallymark.store.postgres.migrations import migrate
from tests import journal

TABLES = """
create table effect (seq bigserial, what text not null);
create table ledger_entry (id text, amount integer check (amount > 0), reference text,
    constraint ledger_entry_pkey primary key (id), constraint ledger_entry_reference unique (reference));
create table holder (name text primary key);
create table holding (name text constraint holding_holder references holder deferrable initially deferred,
    slot integer constraint holding_slot unique deferrable initially deferred);
create table stock (sku text primary key, level integer not null, version bigint);
"""


@pytest.fixture(scope="module")
def ledger(cluster: LocalCluster) -> Iterator[str]:
    """A consumer's database."""
    name = f"ledger_{uuid.uuid4().hex[:12]}"
    url = cluster.database_url(name)
    with psycopg.connect(url) as connection:
        connection.execute(TABLES)
    migrate(url, role=Role.BOTH, partitions_ahead=2)
    yield url
    cluster.drop_database(name)


@dataclasses.dataclass
class Ground:
    """Handlers, and a database to apply them in."""

    url: str
    store: PostgresInboxStore
    handlers: Handlers = dataclasses.field(default_factory=Handlers)
    watch: Watch = dataclasses.field(default_factory=Watch)
    options: dict[str, Any] = dataclasses.field(default_factory=lambda: {"jitter": lambda: 0.0})

    @property
    def handler(self) -> Callable[..., Callable[[Any], Any]]:
        return self.handlers.handler

    def apply(self, *rows: Queued, careful: bool = False, **options: Any) -> Applied:
        """One transaction, one way through; commits unless it raises."""
        with self.store.begin() as tx:
            return self.in_tx(tx, *rows, careful=careful, **options)

    def in_tx(self, tx: InboxTx, *rows: Queued, careful: bool = False, **options: Any) -> Applied:
        applier = Applier(self.handlers, **self.options)
        return applier.apply(tx, rows, careful=careful, watch=self.watch, **options)

    def settle(self, *rows: Queued, **options: Any) -> Applied:
        """The happy way, then the careful one: as the inbox does it."""
        try:
            return self.apply(*rows, **options)
        except HandlerFailed:
            return self.apply(*rows, careful=True, **options)

    def effects(self) -> list[str]:
        """What was committed, in order."""
        return [what for (what,) in self.query("select what from effect order by seq")]

    def query(self, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
        return journal.query(self.url, sql, parameters)


@pytest.fixture
def ground(ledger: str) -> Iterator[Ground]:
    with psycopg.connect(ledger) as connection:
        connection.execute("truncate effect, ledger_entry, stock, holder, holding, tallymark.versions")
    store = PostgresInboxStore(ledger, "ledger")
    yield Ground(ledger, store)
    store.close()


def effect(tx: Any, what: object) -> None:
    tx.execute("insert into effect (what) values (%s)", [str(what)])
