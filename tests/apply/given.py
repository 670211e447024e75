"""Messages as the inbox would have received them, from the few things that a test cares about."""

from __future__ import annotations

import json
import uuid
from datetime import UTC, datetime
from typing import Any

from tallymark.inbox.identity import key_hash
from tallymark.inbox.ports import Queued, Received
from tallymark.message import new_id

TIME = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


def received(
    value: bytes | None = b"{}",
    *,
    topic: str = "transfers",
    key: bytes | None = b"alice",
    id: uuid.UUID | None = None,
    named: str | None = None,
    source: str = "/bank",
    partition: int = 2,
    offset: int | None = 5,
    position: int | None = 70,
    headers: str | None = None,
    content_type: str | None = None,
) -> Received:
    kept = {"ce_type": "transfer.made"}
    if content_type is not None:
        kept["content-type"] = content_type
    return Received(
        id or new_id(),
        source,
        named,
        topic,
        partition,
        offset,
        position,
        key,
        value,
        headers or json.dumps(kept),
        TIME,
    )


def queued(value: Any = None, *, attempts: int = 0, **rest: Any) -> Queued:
    """A message whose value is JSON, as it waits to be applied; bytes are taken as they are."""
    raw = value if isinstance(value, bytes) else json.dumps(value).encode()
    message = received(raw, **rest)
    return Queued(message, key_hash(message.topic, message.key, message.id), attempts=attempts)
