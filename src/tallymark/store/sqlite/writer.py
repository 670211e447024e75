"""Writes outbox entries into the caller's own SQLite transaction, and says what became of a message.

SQLite has one writer at a time, so positions follow commits by nature: `serialize_key` has nothing left to do.
"""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from tallymark.errors import NotInTransaction, SchemaMismatch, UsageError
from tallymark.lifecycle import MessageState, ParkedState
from tallymark.message import Entry
from tallymark.outbox.ports import AddOptions, MessageStatus
from tallymark.store.sqlite.schema import make_tables, queries


class SqliteWriter:
    """The outbox's port, on SQLite. `tx` is a sqlite3 connection or cursor."""

    def __init__(self, schema: str = "tallymark") -> None:
        self._schema = schema
        self._sql = queries("outbox.sql", schema)

    def add(self, tx: Any, entry: Entry, options: AddOptions) -> uuid.UUID:
        connection = _begun(tx)
        with self._all_or_nothing(connection):
            known = self._reserve(connection, entry, options)
            if known is not None:
                return known
            self._insert(connection, [entry], options.due_at)
        return entry.id

    def add_many(self, tx: Any, entries: Iterable[Entry]) -> None:
        connection = _begun(tx)
        with self._all_or_nothing(connection):
            self._insert(connection, list(entries), None)

    async def add_async(self, _tx: Any, _entry: Entry, _options: AddOptions) -> uuid.UUID:
        raise UsageError("sqlite3 is synchronous", remedy="use `outbox.add(…)`")

    def status(self, tx: Any, id: uuid.UUID) -> MessageStatus | None:
        connection = _connection(tx)
        try:
            row = _one(connection, self._sql["status"], {"id": str(id)})
            if row is not None:
                return _status(row)
            later = _one(connection, self._sql["delayed"], [str(id)])
        except sqlite3.OperationalError as error:
            if _is_missing(error):
                raise SchemaMismatch(
                    "there is no outbox in this file",
                    remedy="add a message, or run `tallymark init --database sqlite:///PATH`",
                ) from error
            raise
        return None if later is None else _delayed(later)

    def _reserve(self, connection: sqlite3.Connection, entry: Entry, options: AddOptions) -> uuid.UUID | None:
        """Keep the caller's name for this message; gives back the id of the one that has it, where one may."""
        if options.dedup_key is None:
            return None
        if connection.execute(self._sql["reserve"], [options.dedup_key, str(entry.id)]).rowcount == 1:
            return None
        if not options.ignore_existing:
            raise UsageError(
                f"a message with dedup_key {options.dedup_key} was added before",
                remedy='use if_exists="ignore" where adding it again should change nothing',
            )
        known = _one(connection, self._sql["reserved"], [options.dedup_key])
        if known is None:
            raise AssertionError("a name that is taken has a message")
        return uuid.UUID(known[0])

    def _insert(
        self, connection: sqlite3.Connection, entries: Sequence[Entry], due_at: datetime | None
    ) -> None:
        for topic in {entry.topic for entry in entries}:
            self._refuse_oversized(connection, topic, entries)
        rows = ((str(e.id), e.topic, e.key, e.value, e.headers, e.partition) for e in entries)
        if due_at is None:
            connection.executemany(self._sql["add"], rows)
        else:
            connection.executemany(self._sql["delay"], ((*row, due_at.timestamp()) for row in rows))

    def _refuse_oversized(self, connection: sqlite3.Connection, topic: str, entries: Sequence[Entry]) -> None:
        limit = _one(connection, self._sql["limit"], [topic])
        for entry in entries if limit is not None else ():
            if limit is not None and entry.topic == topic and len(entry.value or b"") > limit[0]:
                raise UsageError(
                    f"a value of {len(entry.value or b'')} bytes is larger than topic {topic} takes "
                    f"(max.message.bytes = {limit[0]})",
                    remedy="split the message, or raise max.message.bytes of the topic",
                )

    @contextmanager
    def _all_or_nothing(self, connection: sqlite3.Connection) -> Iterator[None]:
        """An add that is refused leaves the caller's transaction as it was. The first one makes the tables."""
        connection.execute("savepoint tallymark_add")
        try:
            try:
                # First of all, whoever began the transaction: the driver begins some itself (autocommit=False).
                connection.execute(self._sql["begin_to_write"])
            except sqlite3.OperationalError as error:
                if not _is_missing(error):
                    raise
                make_tables(connection, self._schema)
            yield
        except BaseException:
            if connection.in_transaction:  # some failures (a full disk) have rolled everything back already
                connection.execute("rollback to tallymark_add")
                connection.execute("release tallymark_add")
            raise
        connection.execute("release tallymark_add")


def _connection(tx: Any) -> sqlite3.Connection:
    if isinstance(tx, sqlite3.Cursor):
        return tx.connection
    if not isinstance(tx, sqlite3.Connection):
        raise UsageError(
            f"{type(tx).__name__} is not an SQLite connection", remedy="pass a sqlite3.Connection"
        )
    return tx


def _begun(tx: Any) -> sqlite3.Connection:
    """The caller's connection, in a transaction: the one it began, or the one that sqlite3 begins at the first write."""
    connection = _connection(tx)
    if connection.in_transaction:
        return connection
    # From Python 3.12: True is the driver's autocommit, False always has a transaction open, -1 is as ever.
    if connection.isolation_level is None or getattr(connection, "autocommit", -1) is True:
        raise NotInTransaction(
            "a message can only be added inside a transaction: the SQLite connection is in autocommit",
            remedy="begin one, so that the message commits or rolls back with the business data",
        )
    connection.execute(f"begin {connection.isolation_level}")
    return connection


def _one(connection: sqlite3.Connection, sql: str, parameters: Any) -> tuple[Any, ...] | None:
    cursor = connection.cursor()
    cursor.row_factory = None  # the caller may have one of its own
    row: tuple[Any, ...] | None = cursor.execute(sql, parameters).fetchone()
    return row


def _is_missing(error: sqlite3.OperationalError) -> bool:
    return "no such table" in str(error)


def _status(row: Sequence[Any]) -> MessageStatus:
    id_, topic, key, position, added_at, parked, reason, batch, batch_state, sent_at = row
    state = MessageState.PENDING
    if parked is not None:
        state = {
            ParkedState.SENT: MessageState.SENT,
            ParkedState.DISCARDED: MessageState.DISCARDED,
        }.get(ParkedState(parked), MessageState.FAILED)
    elif batch_state is not None:
        state = MessageState(batch_state)
    return MessageStatus(
        id=uuid.UUID(id_),
        state=state,
        topic=topic,
        key=key,
        position=position,
        lane=0,
        batch=batch,
        added_at=moment(added_at),
        sent_at=None if sent_at is None else moment(sent_at),
        reason=reason,
    )


def _delayed(row: Sequence[Any]) -> MessageStatus:
    id_, topic, key, added_at, due_at = row
    return MessageStatus(
        id=uuid.UUID(id_),
        state=MessageState.DELAYED,
        topic=topic,
        key=key,
        position=None,
        lane=None,
        batch=None,
        added_at=moment(added_at),
        sent_at=None,
        reason=f"due at {moment(due_at).isoformat()}",
    )


def moment(seconds: float) -> datetime:
    """A time as the tables keep it."""
    return datetime.fromtimestamp(seconds, UTC)
