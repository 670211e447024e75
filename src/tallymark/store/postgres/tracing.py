"""Reads the whole life of one message out of the producers' and the consumers' databases.

    tracer = Tracer({"bank": "postgresql://…", "ledger": "postgresql://…"})
    tracer.trace("0199…")          -> Trace | None
    tracer.ids(b"alice", since)    -> ids of a key's messages

A database is asked for what is in it: an outbox, an inbox, or both. One connection each and call; a database that is
away is an error, because a life with a hole in it would look like a loss.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

import psycopg

from tallymark.errors import SchemaMismatch, UsageError
from tallymark.inbox.identity import named_id
from tallymark.store.postgres.connection import Connection, connect, explain
from tallymark.store.queries import load
from tallymark.store.sqlite.schema import is_sqlite
from tallymark.tally.found import DeadLetter, Deed, Effect, KeptRow, Records, Unfinished, WrittenRow
from tallymark.tally.history import id_ms
from tallymark.tally.trace import LATE_AFTER, Trace, life_of

_UUID7 = 7


class Tracer:
    """Several databases, by the names that people know them by."""

    def __init__(
        self, databases: Mapping[str, str], *, schema: str = "tallymark", late_after: timedelta = LATE_AFTER
    ) -> None:
        if not databases:
            raise UsageError("no database is given to look in", remedy="name one with --database")
        if name := next((name for name, url in databases.items() if is_sqlite(url)), None):
            raise UsageError(
                f"{name} is SQLite: a trace reads PostgreSQL only",
                remedy="`tallymark outbox show ID` says what SQLite knows of a message",
            )
        self._databases = dict(databases)
        self._schema = schema
        self._late_after = late_after
        self._sql = load("tallymark.store.postgres", "tracing.sql", schema)

    def trace(self, id: str) -> Trace | None:
        """The life of the message with this id, or with this name of a foreign producer's; None where nobody knows it."""
        found: list[Records] = []
        now: datetime | None = None
        inboxes = []
        for name in self._databases:
            with self._looking(name) as connection:
                here = self._one(connection, "what_is_here")
                now = here[3]
                if here[1]:
                    inboxes.append(name)
                found += self._found(connection, name, id, here)
        if now is None:
            raise AssertionError("at least one database was asked")
        records = self._with_readers(id, _merged(found), inboxes)
        return life_of(id, records, now=now, late_after=self._late_after)

    @contextmanager
    def _looking(self, name: str) -> Iterator[Connection]:
        url = self._databases[name]
        with _opened(url) as connection:
            try:
                yield connection
            except psycopg.Error as error:
                raise explain(error, url) from error

    def ids(self, key: bytes, since: datetime, *, topic: str | None = None, limit: int = 100) -> list[str]:
        """Messages of a key, the oldest first: from the outboxes, or the inboxes where no outbox is among them."""
        parameters = {"key": key, "since": since, "topic": topic, "limit": limit}
        written: list[str] = []
        kept: list[str] = []
        for name in self._databases:
            with self._looking(name) as connection:
                has_outbox, has_inbox, *_ = self._one(connection, "what_is_here")
                if has_outbox:
                    written += [row[0] for row in connection.execute(self._sql["ids_written"], parameters)]
                if has_inbox and not written:
                    kept += [row[0] for row in connection.execute(self._sql["ids_kept"], parameters)]
        return list(dict.fromkeys(written or kept))[:limit]

    def _with_readers(self, id: str, records: Records, inboxes: Sequence[str]) -> Records:
        """With who reads its topic, which of them have passed it or began behind it, and which no longer
        remember its time."""
        if records.topic is None:
            return records
        partition, offset = records.place or (None, None)
        asked = {"topic": records.topic, "partition": partition, "offset": offset}
        made = id_ms(id)
        readers, passed, forgotten, unowed = set(), set(), set(), set()
        for name in inboxes:
            with self._looking(name) as connection:
                for consumer, kept_from, has_passed, began_behind in connection.execute(
                    self._sql["readers"], asked
                ):
                    readers.add((name, consumer))
                    if began_behind:
                        unowed.add((name, consumer))
                    if has_passed:
                        passed.add((name, consumer))
                    if made is not None and made < kept_from.timestamp() * 1000:
                        forgotten.add((name, consumer))
        return dataclasses.replace(
            records,
            consumers=sorted(readers),
            passed=sorted(passed),
            forgotten=sorted(forgotten),
            unowed=sorted(unowed),
        )

    def _found(self, connection: Connection, name: str, id: str, here: tuple[Any, ...]) -> list[Records]:
        has_outbox, has_inbox, has_certificates, _, outbox_from = here
        if not has_outbox and not has_inbox:
            raise SchemaMismatch(
                f"there is no schema {self._schema} in database {name}",
                remedy=f"run `tallymark init --database {name}`, or name other databases with --database",
            )
        records: list[Records] = []
        if has_outbox:
            written = self._written(connection, name, id, bool(has_certificates))
            records.append(Records(written=written, outboxes_asked=1, outbox_from=outbox_from))
        if has_inbox:
            records.append(self._received(connection, name, id))
        if any(each.written or each.kept or each.dead for each in records):
            deeds = [Deed(name, *row) for row in connection.execute(self._sql["deeds"], {"name": id})]
            records.append(Records(deeds=deeds))
        return records

    def _written(self, connection: Connection, name: str, id: str, certificates: bool) -> list[WrittenRow]:
        uid = _uuid_of(id)
        if uid is None:  # our own ids are UUIDs
            return []
        rows = []
        for row in connection.execute(self._sql["written"], {"id": uid}).fetchall():
            position, topic, key, lane, added_at, resend, committed_at, *rest = row
            certificate = (
                connection.execute(self._sql["certificate"], {"position": position}).fetchone()
                if certificates
                else None
            )
            rows.append(
                WrittenRow(
                    name,
                    position,
                    topic,
                    key,
                    lane,
                    added_at,
                    committed_at,
                    None,
                    int(resend or 0),
                    *rest,
                    *(
                        (f"{certificate[1]}–{certificate[2] - 1}", certificate[0], certificate[3])
                        if certificate
                        else ()
                    ),
                )
            )
        for topic, key, added_at, due_at in connection.execute(self._sql["delayed"], {"id": uid}).fetchall():
            rows.append(WrittenRow(name, None, topic, key, None, added_at, due_at=due_at))
        return rows

    def _received(self, connection: Connection, name: str, id: str) -> Records:
        uid = _uuid_of(id)
        saved = uid if uid is not None and uid.version == _UUID7 else named_id(id.encode())
        parameters = {"id": saved, "name": id}
        return Records(
            kept=[KeptRow(name, *row) for row in connection.execute(self._sql["kept"], parameters)],
            effects=[Effect(name, *row) for row in connection.execute(self._sql["effects"], parameters)],
            unfinished=[
                Unfinished(name, *row) for row in connection.execute(self._sql["unfinished"], parameters)
            ],
            dead=[DeadLetter(name, *row) for row in connection.execute(self._sql["dead"], parameters)],
        )

    def _one(self, connection: Connection, name: str) -> tuple[Any, ...]:
        row = connection.execute(self._sql[name]).fetchone()
        if row is None:
            raise AssertionError(f"{name} gives one row")
        return row


def _opened(url: str) -> Connection:
    return connect(url, application="tallymark trace")


def _uuid_of(id: str) -> uuid.UUID | None:
    try:
        return uuid.UUID(id)
    except ValueError:
        return None


def _merged(found: Sequence[Records]) -> Records:
    return Records(
        written=[row for each in found for row in each.written],
        kept=[row for each in found for row in each.kept],
        effects=[row for each in found for row in each.effects],
        unfinished=[row for each in found for row in each.unfinished],
        dead=[row for each in found for row in each.dead],
        deeds=[row for each in found for row in each.deeds],
        outboxes_asked=sum(each.outboxes_asked for each in found),
        outbox_from=max((each.outbox_from for each in found), default=1),
    )
