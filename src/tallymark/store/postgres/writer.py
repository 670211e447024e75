"""Writes outbox entries into the caller's transaction, and says what became of a message."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from itertools import chain, islice
from typing import Any

import psycopg

from tallymark.errors import Problem, SchemaMismatch, UsageError
from tallymark.lifecycle import MessageState, ParkedState
from tallymark.message import Entry
from tallymark.outbox.ports import PLAIN, AddOptions, MessageStatus
from tallymark.store.postgres.callers import async_caller_of, caller_of
from tallymark.store.queries import load

# Hardly any topic takes less than this. A plain add that is no larger is one INSERT: to weigh it would cost a second
# statement, or the function that goes with it. Where a topic does take less, the relay parks what is too large.
_SURELY_SMALL = 10_000
# So many rows of add_many are made before any is written.
_FIRST = 1_000

_SCHEMA_MISSING = ("3F000", "42P01", "42883")
_REFUSED = {
    "TM001": "split the message, or raise max.message.bytes of the topic",
    "TM002": 'use if_exists="ignore" where adding it again should change nothing',
    "TM003": "leave the id out; for a number of your own there is dedup_key",
    "23514": "",
    "22P02": "",
}


class PostgresWriter:
    """The outbox's port, on PostgreSQL."""

    def __init__(self, schema: str = "tallymark") -> None:
        self._schema = schema
        self._sql = load("tallymark.store.postgres", "outbox.sql", schema)

    def add(self, tx: Any, entry: Entry, options: AddOptions) -> uuid.UUID:
        caller = caller_of(tx)
        with self._explained():
            if options is PLAIN and len(entry.value or b"") <= _SURELY_SMALL:
                caller.run(self._sql["insert"], entry)
                return entry.id
            return _id_of(caller.fetch(self._sql["add"], _parameters(entry, options)))

    async def add_async(self, tx: Any, entry: Entry, options: AddOptions) -> uuid.UUID:
        caller = async_caller_of(tx)
        with self._explained():
            row = await caller.fetch(self._sql["add"], _parameters(entry, options))
        return _id_of(row)

    def add_many(self, tx: Any, entries: Iterable[Entry]) -> None:
        caller = caller_of(tx)
        rest = iter(entries)
        first = list(islice(rest, _FIRST))
        with self._explained():
            # Through the caller's own object, before COPY goes beneath it: SQLAlchemy begins a transaction with what it
            # executes itself, and its commit does nothing where it has begun none.
            limits = _limits_in(caller.fetch(self._sql["limits"], []))
        connection = caller.psycopg()
        if connection is None:  # a driver without COPY of ours: one by one
            for entry in list(_weighed(chain(first, rest), limits)):
                self.add(tx, entry, PLAIN)
            return
        with self._explained():
            # Nothing but the database can refuse what was made and weighed before COPY begins. Further ones are made
            # meanwhile, and one that cannot be would take the caller's transaction with it, but for the savepoint.
            few = len(first) < _FIRST
            with nullcontext() if few else connection.transaction():
                self._copy(connection, chain(list(_weighed(first, limits)), _weighed(rest, limits)))

    def _copy(self, connection: psycopg.Connection[Any], entries: Iterable[Entry]) -> None:
        with connection.cursor() as cursor, cursor.copy(self._sql["copy"]) as copy:
            # headers go as text: as json, a str would be quoted once more
            copy.set_types(["uuid", "text", "bytea", "bytea", "text", "int4"])
            for entry in entries:
                copy.write_row(entry)

    def status(self, tx: Any, id: uuid.UUID) -> MessageStatus | None:
        caller = caller_of(tx, reading=True)
        with self._explained():
            row = caller.fetch(self._sql["status"], [id, id])
            if row is None:
                later = caller.fetch(self._sql["delayed"], [id])
                return None if later is None else _delayed(later)
        return _status(row)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Our words for what the database refuses; whatever else goes wrong is the caller's, unchanged."""
        try:
            yield
        except Exception as error:
            code = _sqlstate(error)
            if code == "23514" and "no partition" in str(error):
                raise Problem(
                    "the outbox has no partition left: no relay has kept house here for millions of messages",
                    remedy="let a relay run (`tallymark relay run`): it makes partitions ahead",
                ) from error
            if code in _REFUSED:
                raise UsageError(_sentence(error), remedy=_REFUSED[code]) from error
            if code in _SCHEMA_MISSING and self._schema in str(error):
                raise SchemaMismatch(
                    f"there is no outbox in schema {self._schema} of this database",
                    remedy="run `tallymark init --role producer --database …` with its name or URL",
                ) from error
            raise


def _limits_in(row: Sequence[Any] | None) -> dict[str, int]:
    limits: dict[str, int] = json.loads(row[0]) if row else {}
    return limits


def _weighed(entries: Iterable[Entry], limits: Mapping[str, int]) -> Iterator[Entry]:
    """Each entry, unless its topic takes less."""
    for entry in entries:
        size, limit = len(entry.value or b""), limits.get(entry.topic)
        if limit is not None and size > limit:
            raise UsageError(
                f"a value of {size} bytes is larger than topic {entry.topic} takes (max.message.bytes = {limit})",
                remedy=_REFUSED["TM001"],
            )
        yield entry


def _parameters(entry: Entry, options: AddOptions) -> list[Any]:
    return [
        entry.topic,
        entry.value,
        entry.key,
        entry.headers,
        entry.id,
        entry.partition,
        options.dedup_key,
        "ignore" if options.ignore_existing else "refuse",
        options.serialize_key,
        options.due_at,
    ]


def _id_of(row: Sequence[Any] | None) -> uuid.UUID:
    if row is None:
        raise AssertionError("outbox_add gives back an id")
    return row[0] if isinstance(row[0], uuid.UUID) else uuid.UUID(str(row[0]))


def _sqlstate(error: BaseException) -> str | None:
    """The database's code, through whatever wraps it (SQLAlchemy: .orig; Django: __cause__; asyncpg: itself)."""
    seen: BaseException | None = error
    while seen is not None:
        code = getattr(seen, "sqlstate", None) or getattr(seen, "pgcode", None)
        if isinstance(code, str):
            return code
        seen = getattr(seen, "orig", None) or seen.__cause__
    return None


def _sentence(error: BaseException) -> str:
    diag = getattr(error, "diag", None)
    if diag is not None and diag.message_primary:
        return str(diag.message_primary)
    inner = getattr(error, "orig", None) or error.__cause__
    return _sentence(inner) if inner is not None and inner is not error else str(error).splitlines()[0]


def _status(row: Sequence[Any]) -> MessageStatus:
    id_, topic, key, position, lane, added_at, parked, reason, batch, batch_state, sent_at = row
    state = MessageState.PENDING
    if parked is not None:
        state = {
            ParkedState.SENT: MessageState.SENT,
            ParkedState.DISCARDED: MessageState.DISCARDED,
        }.get(ParkedState(parked), MessageState.FAILED)
    elif batch_state is not None:
        state = MessageState(batch_state)
    return MessageStatus(
        id=uuid.UUID(str(id_)),
        state=state,
        topic=topic,
        key=None if key is None else bytes(key),
        position=position,
        lane=lane,
        batch=batch,
        added_at=added_at,
        sent_at=sent_at,
        reason=reason,
    )


def _delayed(row: Sequence[Any]) -> MessageStatus:
    id_, topic, key, added_at, due_at = row
    return MessageStatus(
        id=uuid.UUID(str(id_)),
        state=MessageState.DELAYED,
        topic=topic,
        key=None if key is None else bytes(key),
        position=None,
        lane=None,
        batch=None,
        added_at=added_at,
        sent_at=None,
        reason=f"due at {due_at.isoformat()}",
    )
