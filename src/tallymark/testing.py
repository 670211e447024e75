"""For tests of a team's own services: PostgreSQL with the schema (`tallymark init`), and no Kafka.

    def test_a_transfer_is_announced(tx):
        transfer(tx, "alice", 5)
        [message] = added(tx)
        assert (message.topic, message.value["amount"]) == ("transfers", 5)

    def test_a_transfer_is_booked_once(tx):
        assert deliver(inbox, {"amount": 5}, tx, key="alice") == ["applied", "repeated"]

`tx` is the test's own transaction: psycopg's connection, a SQLAlchemy session or Django's connection. The test rolls
it back, and nothing is left.
"""

from __future__ import annotations

import base64
import enum
import itertools
import json
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NoReturn

import psycopg

from tallymark.apply.applier import Applier, HandlerFailed
from tallymark.apply.decoding import decoder_for
from tallymark.apply.watch import Watch
from tallymark.errors import UsageError
from tallymark.inbox import identity
from tallymark.inbox.definition import Definition
from tallymark.inbox.ports import Queued, Received
from tallymark.message import (
    CE_ID,
    TM_POSITION,
    Encode,
    HeaderValue,
    encoded,
    encoded_key,
    headers_json,
    kafka_headers,
    new_id,
)
from tallymark.store.postgres.callers import Caller, caller_of
from tallymark.store.postgres.handed import ours
from tallymark.store.postgres.handedchecks import DeferredChecks
from tallymark.store.postgres.handedguard import has_ended, settled
from tallymark.store.postgres.inboxtx import PostgresInboxTx
from tallymark.store.postgres.migrations import INBOX_AHEAD
from tallymark.store.queries import load

# Each message that is made here is later than the one before.
_positions = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Added:
    """A message that this transaction put into the outbox."""

    id: uuid.UUID
    topic: str
    key: bytes | None
    # The value as a handler would be given it, and as it was written.
    value: Any
    raw: bytes | None
    headers: Mapping[str, bytes]
    # None where it is delayed: it has no place in the order yet.
    position: int | None
    due_at: datetime | None


class Delivered(enum.StrEnum):
    """What one delivery came to."""

    APPLIED = "applied"
    ALREADY = "already"
    OLDER = "older"
    # Its id had been saved: the handler was not called.
    REPEATED = "repeated"


def added(tx: Any, *, schema: str = "tallymark") -> list[Added]:
    """What this very transaction put into the outbox, in order; what is delayed comes last."""
    row = caller_of(tx).fetch(load("tallymark", "testing.sql", schema)["added"], [])
    return [_added(*columns) for columns in json.loads(row[0] if row else "[]")]


def deliver(
    inbox: Definition,
    message: Any,
    tx: Any,
    *,
    topic: str | None = None,
    key: Any = None,
    times: int = 2,
    id: uuid.UUID | str | None = None,
    source: str = "/test",
    type: str | None = None,
    headers: Mapping[str, HeaderValue] | None = None,
    position: int | None = None,
    encode: Encode | None = None,
    schema: str = "tallymark",
) -> list[Delivered]:
    """Hand a message to the inbox's handler, `times` over, in the test's own transaction; what each time came to.

    `message` is a value, as `outbox.add` takes it, or what `added` gave back. Where the handler's scheme protects by
    itself (UniqueConstraint, Version), the saved id is taken as forgotten from the second delivery on: so that the
    scheme is put to the test. What the handler raises is raised, and what a commit would refuse (a deferred constraint);
    what it had written is undone, and `tx` goes on.
    """
    received = _received(inbox, message, topic, key, id, source, type, headers, position, encode)
    handler = inbox.handlers.of(received.topic)
    handler.decoder(received)  # what does not fit is raised as it is
    borrowed = _Borrowed(tx)
    inside = PostgresInboxTx(
        borrowed.connection,
        borrowed,
        url=borrowed.connection.info.dsn,
        schema=schema,
        consumer=inbox.name,
        lease_s=0.0,
        written=True,  # by the test, and by what it delivered before
    )
    _make_ahead(borrowed.connection, schema)
    applier = Applier(inbox.handlers)
    row = Queued(received, applier.key_hash(received))
    outcomes = []
    for number in range(times):
        with inside.savepoint():
            if (number == 0 or handler.once.needs_saved_id) and not inside.keep([received]).new:
                outcomes.append(Delivered.REPEATED)
                continue
            try:
                applied = applier.apply(inside, [row], careful=False, watch=Watch())
            except HandlerFailed as failed:
                raise failed.cause from None
            inside.settle_handed(check=True)  # what a commit would refuse, and there is none
            inside.record(applied.applications)
            outcomes += [Delivered(str(each.outcome)) for each in applied.applications]
    return outcomes


def _make_ahead(connection: psycopg.Connection[Any], schema: str) -> None:
    """A place for today's ids: a running inbox makes them for some days ahead, and here there may never have been one.

    On a connection of its own, for it is to stay, and tests that run side by side are not to wait for each other.
    """
    ready = ours(connection).execute(load("tallymark", "testing.sql", schema)["ready"]).fetchone()
    if ready is not None and ready[0]:
        return
    queries, info = load("tallymark.store.postgres", "inbox.sql", schema), connection.info
    with psycopg.connect(info.dsn, password=info.password) as other:
        other.execute(queries["make_ahead"], {"ahead": INBOX_AHEAD})


def _received(
    inbox: Definition,
    message: Any,
    topic: str | None,
    key: Any,
    id: uuid.UUID | str | None,
    source: str,
    type: str | None,
    headers: Mapping[str, HeaderValue] | None,
    position: int | None,
    encode: Encode | None,
) -> Received:
    """The message as the inbox would receive it from the log."""
    if isinstance(message, Received):
        return message
    place = next(_positions) if position is None else position
    if isinstance(message, Added):
        own = {CE_ID: str(message.id).encode(), TM_POSITION: str(message.position or place).encode()}
        return _record(
            message.topic, message.key, message.raw, [*message.headers.items(), *own.items()], place
        )
    if topic is None:
        if len(inbox.topics) != 1:
            raise UsageError(
                f"inbox {inbox.name} has handlers for several topics: {', '.join(inbox.topics)}",
                remedy="say which one is meant: topic=",
            )
        topic = inbox.topics[0]
    raw, content_type = encoded(message, encode)
    carried = kafka_headers(headers_json(source, type or topic, content_type, None, headers))
    own = {CE_ID: str(id or new_id()).encode(), TM_POSITION: str(place).encode()}
    return _record(topic, encoded_key(key), raw, [*carried, *own.items()], place)


def _record(
    topic: str, key: bytes | None, raw: bytes | None, headers: list[tuple[str, bytes]], offset: int
) -> Received:
    return identity.received(topic, 0, offset, key, raw, headers, int(time.time() * 1000))


def _added(
    id: str,
    topic: str,
    key: str | None,
    value: str | None,
    headers: Any,
    position: int | None,
    due: float | None,
) -> Added:
    raw = None if value is None else base64.b64decode(value)
    carried = dict(kafka_headers(json.dumps(headers)))
    record = _record(topic, None, raw, list(carried.items()), 0)
    return Added(
        id=uuid.UUID(id),
        topic=topic,
        key=None if key is None else base64.b64decode(key),
        value=decoder_for(topic)(record),
        raw=raw,
        headers=carried,
        position=position,
        due_at=None if due is None else datetime.fromtimestamp(due, UTC),
    )


class _Borrowed:
    """A transaction that the test began: savepoints in it, and never its end."""

    def __init__(self, tx: Any) -> None:
        caller: Caller = caller_of(tx)
        caller.fetch("select 1", [])  # it begins, where it had not: else a savepoint would be the whole of it
        connection = caller.psycopg()
        if connection is None:
            raise UsageError(
                f"{type(tx).__name__} is not over psycopg 3", remedy="let the test connect through psycopg 3"
            )
        self.connection: psycopg.Connection[Any] = connection
        self._tx = tx

    @property
    def handed(self) -> Any:
        return self._tx

    @property
    def lost(self) -> bool:
        return self.connection.closed

    @property
    def over(self) -> bool:
        return has_ended(self.connection, begun=True)

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        with self._block()():
            yield

    def settle(self, *, check: bool = False) -> None:
        if callable(flush := getattr(self._tx, "flush", None)):
            flush()
        settled(self.connection, begun=True)
        if check:
            DeferredChecks().run(ours(self.connection))

    def _block(self) -> Callable[[], AbstractContextManager[Any]]:
        nested = getattr(self._tx, "begin_nested", None)
        if callable(nested):
            return nested  # type: ignore[no-any-return]  # SQLAlchemy is optional: its types are not at hand
        if hasattr(self._tx, "in_atomic_block"):
            from django.db import transaction

            return lambda: transaction.atomic(using=self._tx.alias)
        return self.connection.transaction

    def _not_ours(self, *_: Any) -> NoReturn:
        raise AssertionError("the transaction is the test's")

    transaction = restart = abort = close = _not_ours
