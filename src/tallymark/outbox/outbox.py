"""The outbox as a service uses it: add a message to the transaction that changes the business data.

    outbox.add(tx, "transfers", {"amount": 5}, key="alice", type="transfer.made")

The row commits or rolls back with the rest (P1). Messages of one key are sent in the order in which they were
added, which is the order of their commits for transactions that lock what the key names before adding (P3);
`serialize_key=True` takes that lock. Without a key no order is promised.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Literal, NamedTuple

from tallymark.errors import UsageError
from tallymark.lifecycle import MessageState
from tallymark.message import (
    Encode,
    Entry,
    HeaderValue,
    encoded,
    encoded_key,
    headers_json,
    is_uuid7,
    new_id,
)
from tallymark.outbox.ports import PLAIN, AddOptions, MessageStatus, OutboxWriter
from tallymark.outbox.tracing import current_traceparent

# Kafka's own rule for topic names.
_TOPIC_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")

# Kafka's, and the column's. COPY in binary would cut a larger one off, and the message go elsewhere without a word.
_LAST_PARTITION = 2**31 - 1


class Draft(NamedTuple):
    """One message for `add_many`. A tuple, for there are many of them."""

    topic: str
    value: Any
    key: Any = None
    type: str | None = None
    headers: Mapping[str, HeaderValue] | None = None
    partition: int | None = None
    id: uuid.UUID | None = None


class Outbox:
    """Adds messages to the caller's own transaction."""

    def __init__(self, source: str, *, writer: OutboxWriter, encode: Encode | None = None) -> None:
        if not source:
            raise UsageError("an outbox needs a source", remedy='name the service, as in Outbox("/bank")')
        self.source = source
        self._writer = writer
        self._encode = encode

    def add(
        self,
        tx: Any,
        topic: str,
        value: Any,
        *,
        key: Any = None,
        type: str | None = None,
        headers: Mapping[str, HeaderValue] | None = None,
        partition: int | None = None,
        encode: Encode | None = None,
        dedup_key: str | None = None,
        if_exists: Literal["refuse", "ignore"] = "refuse",
        serialize_key: bool = False,
        deliver_after: datetime | timedelta | None = None,
    ) -> uuid.UUID:
        """Add one message; gives back its id (with if_exists="ignore", that of the one added before)."""
        draft = Draft(topic, value, key, type, headers, partition)
        options = _options(key, dedup_key, if_exists, serialize_key, deliver_after)
        return self._writer.add(tx, self.entry(draft, encode), options)

    async def add_async(
        self,
        tx: Any,
        topic: str,
        value: Any,
        *,
        key: Any = None,
        type: str | None = None,
        headers: Mapping[str, HeaderValue] | None = None,
        partition: int | None = None,
        encode: Encode | None = None,
        dedup_key: str | None = None,
        if_exists: Literal["refuse", "ignore"] = "refuse",
        serialize_key: bool = False,
        deliver_after: datetime | timedelta | None = None,
    ) -> uuid.UUID:
        """`add` for async psycopg, SQLAlchemy's AsyncSession and AsyncConnection, and asyncpg."""
        draft = Draft(topic, value, key, type, headers, partition)
        options = _options(key, dedup_key, if_exists, serialize_key, deliver_after)
        return await self._writer.add_async(tx, self.entry(draft, encode), options)

    def add_many(
        self, tx: Any, messages: Iterable[Draft], *, encode: Encode | None = None
    ) -> list[uuid.UUID]:
        """Add many messages at COPY's speed; gives back their ids in order. They carry the trace of this call."""
        # Rows are made while the database takes those before them. What callers wrote may ask the same connection,
        # which cannot answer in the midst of a COPY: their iterable and their encode= come first.
        drafts = list(messages)
        if not drafts:
            return []
        ids: list[uuid.UUID] = []
        entries = self._entries(drafts, encode, ids)
        self._writer.add_many(tx, list(entries) if encode or self._encode else entries)
        return ids

    def state(self, tx: Any, id: uuid.UUID | str) -> MessageState | None:
        """Where a message is; None where this outbox does not know it (or retention has dropped it)."""
        status = self.status(tx, id)
        return status.state if status else None

    def status(self, tx: Any, id: uuid.UUID | str) -> MessageStatus | None:
        """Where a message is, with its batch, lane and times."""
        return self._writer.status(tx, id if isinstance(id, uuid.UUID) else _id_of(id))

    def entry(self, draft: Draft, encode: Encode | None = None) -> Entry:
        """Check one message and turn it into the row that will be written."""
        return self._entry(draft, encode, current_traceparent())

    def _entries(
        self, drafts: Sequence[Draft], encode: Encode | None, ids: list[uuid.UUID]
    ) -> Iterator[Entry]:
        trace = current_traceparent()
        for draft in drafts:
            entry = self._entry(draft, encode, trace)
            ids.append(entry.id)
            yield entry

    def _entry(self, draft: Draft, encode: Encode | None, trace: str | None) -> Entry:
        topic, value, key, type_, headers, partition, id_ = draft
        check_topic(topic)
        if partition is not None and (
            not isinstance(partition, int) or not 0 <= partition <= _LAST_PARTITION
        ):
            raise UsageError(f"partition {partition!r} is not a number from 0 to {_LAST_PARTITION}")
        sent, content_type = encoded(value, encode or self._encode)
        carried = headers_json(self.source, type_ or topic, content_type, trace, headers)
        own = new_id() if id_ is None else _checked(id_)
        return Entry(own, topic, encoded_key(key), sent, carried, partition)


def _checked(id: Any) -> uuid.UUID:
    """An id of the caller's own: inboxes drop ids by the time that they name, and save any other under another id."""
    if isinstance(id, uuid.UUID) and is_uuid7(id):
        return id
    raise UsageError(
        f"id {str(id)!r} is not a UUIDv7",
        remedy="leave the id out; for a number of your own there is dedup_key= of add",
    )


def _id_of(text: Any) -> uuid.UUID:
    try:
        return uuid.UUID(text)
    except (ValueError, AttributeError, TypeError):
        raise UsageError(
            f"{text!r} is not a message's id", remedy="ids are UUIDs, as add gives back"
        ) from None


def check_topic(topic: Any) -> None:
    """Refuse what Kafka would not take as a topic's name."""
    if not isinstance(topic, str) or not _is_name(topic):
        raise UsageError(
            f"{topic!r} is not a topic's name",
            remedy="use up to 249 letters, digits, dots, underscores and hyphens",
        )


@lru_cache(maxsize=1024)
def _is_name(topic: str) -> bool:
    return 0 < len(topic) <= 249 and _TOPIC_LETTERS.issuperset(topic) and topic not in (".", "..")


def _options(
    key: Any,
    dedup_key: str | None,
    if_exists: str,
    serialize_key: bool,
    deliver_after: datetime | timedelta | None,
) -> AddOptions:
    if dedup_key is None and if_exists == "refuse" and not serialize_key and deliver_after is None:
        return PLAIN
    if if_exists not in ("refuse", "ignore"):
        raise UsageError(f"if_exists={if_exists!r} is not known", remedy='use "refuse" or "ignore"')
    if if_exists == "ignore" and dedup_key is None:
        raise UsageError('if_exists="ignore" says nothing without a dedup_key', remedy="pass dedup_key=")
    if serialize_key and key is None:
        raise UsageError("serialize_key=True needs a key", remedy="pass key=, or leave serialize_key out")
    options = AddOptions(
        dedup_key=dedup_key, ignore_existing=if_exists == "ignore", serialize_key=serialize_key
    )
    if deliver_after is None:
        return options
    if isinstance(deliver_after, timedelta):
        return replace(options, due_at=datetime.now(UTC) + deliver_after)
    if not isinstance(deliver_after, datetime):
        raise UsageError(
            f"deliver_after={deliver_after!r} is no time", remedy="give an aware datetime, or a timedelta"
        )
    if deliver_after.tzinfo is None:
        raise UsageError("deliver_after has no time zone", remedy="give an aware datetime, or a timedelta")
    return replace(options, due_at=deliver_after)
