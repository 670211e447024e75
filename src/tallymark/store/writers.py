"""The outbox as services import it: `Outbox("/bank")`, with a writer that goes by the transaction it is given."""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Iterable
from typing import Any

from tallymark.message import Encode, Entry
from tallymark.outbox import outbox as station
from tallymark.outbox.ports import AddOptions, MessageStatus, OutboxWriter
from tallymark.store.postgres.writer import PostgresWriter
from tallymark.store.queries import checked_schema
from tallymark.store.sqlite.writer import SqliteWriter


class AnyWriter:
    """Chooses by the transaction given: sqlite3's goes to SQLite, every other to PostgreSQL."""

    def __init__(self, schema: str = "tallymark") -> None:
        self._postgres = PostgresWriter(checked_schema(schema))
        self._sqlite = SqliteWriter(schema)

    def add(self, tx: Any, entry: Entry, options: AddOptions) -> uuid.UUID:
        return self._of(tx).add(tx, entry, options)

    def add_many(self, tx: Any, entries: Iterable[Entry]) -> None:
        self._of(tx).add_many(tx, entries)

    async def add_async(self, tx: Any, entry: Entry, options: AddOptions) -> uuid.UUID:
        return await self._of(tx).add_async(tx, entry, options)

    def status(self, tx: Any, id: uuid.UUID) -> MessageStatus | None:
        return self._of(tx).status(tx, id)

    def _of(self, tx: Any) -> OutboxWriter:
        return self._sqlite if isinstance(tx, sqlite3.Connection | sqlite3.Cursor) else self._postgres


class Outbox(station.Outbox):
    """Adds messages to the caller's own transaction, on PostgreSQL or SQLite.

    `source` names the service (CloudEvents' `ce_source`); `schema` is where `tallymark init` made the tables.
    """

    def __init__(self, source: str, *, schema: str = "tallymark", encode: Encode | None = None) -> None:
        super().__init__(source, writer=AnyWriter(schema), encode=encode)
