"""What the outbox needs of a database: to write entries into a transaction that somebody else began."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from tallymark.lifecycle import MessageState
from tallymark.message import Entry


@dataclass(frozen=True, slots=True)
class AddOptions:
    """How one entry is added."""

    dedup_key: str | None = None
    ignore_existing: bool = False
    serialize_key: bool = False
    due_at: datetime | None = None


# What most messages are added with: no options at all.
PLAIN = AddOptions()


@dataclass(frozen=True, slots=True)
class MessageStatus:
    """What became of one message of the outbox."""

    id: uuid.UUID
    state: MessageState
    topic: str
    key: bytes | None
    position: int | None
    lane: int | None
    batch: int | None
    added_at: datetime
    sent_at: datetime | None
    reason: str | None


class OutboxWriter(Protocol):
    """Writes into the caller's transaction `tx`, whatever kind of object that is."""

    def add(self, tx: Any, entry: Entry, options: AddOptions) -> uuid.UUID: ...

    def add_many(self, tx: Any, entries: Iterable[Entry]) -> None:
        """All of them, or none: where making one of them raises, the transaction is as it was before."""

    async def add_async(self, tx: Any, entry: Entry, options: AddOptions) -> uuid.UUID: ...

    def status(self, tx: Any, id: uuid.UUID) -> MessageStatus | None: ...
