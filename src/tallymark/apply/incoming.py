"""What a handler is given: one message, with its value decoded and everything that the log and its producer said of it.

Cheap to make: what most handlers never ask for (headers, type, keys as text) is worked out when it is asked for.
"""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any
from urllib.parse import quote

from tallymark.inbox.ports import Received
from tallymark.message import CE_ID, CE_SOURCE, CE_TYPE, CONTENT_TYPE, TM_ORIGIN, TM_POSITION, TRACEPARENT

# Most messages of a producer carry the same few headers; longer ones would make the cache's size a matter of luck.
_CACHED_LENGTH = 1024
# Longer than any position.
_TOO_LONG = 19


class Message:
    """One message on its way into a handler. `value` is decoded; `raw` is what the log holds."""

    __slots__ = ("_received", "attempt", "value")

    def __init__(self, received: Received, attempt: int, value: Any) -> None:
        self._received = received
        # Which try this is, from 1.
        self.attempt = attempt
        self.value = value

    @classmethod
    def of(cls, received: Received, attempt: int, value: Any) -> Message:
        return cls(received, attempt, value)

    @property
    def received(self) -> Received:
        """The row as the inbox keeps it."""
        return self._received

    @property
    def id(self) -> uuid.UUID | str:
        """The producer's id: a UUID, or its own text where that is not a UUIDv7."""
        received = self._received
        return received.id if received.named is None else received.named

    @property
    def source(self) -> str:
        """Who sent it: ids are unique within a source."""
        return self._received.source

    @property
    def topic(self) -> str:
        return self._received.topic

    @property
    def partition(self) -> int:
        return self._received.partition

    @property
    def offset(self) -> int | None:
        """None for what was repaired without Kafka."""
        return self._received.offset

    @property
    def position(self) -> int | None:
        """Its position in its producer's outbox: of what was sent again, the original's. None from a foreign producer."""
        return origin_of(self._received)

    @property
    def key(self) -> bytes | None:
        return self._received.key

    @property
    def key_text(self) -> str | None:
        """The key as text; bytes that are not UTF-8 are escaped."""
        key = self._received.key
        return None if key is None else key.decode("utf-8", "backslashreplace")

    @property
    def raw(self) -> bytes | None:
        """The value as the log holds it; None is a tombstone."""
        return self._received.value

    @property
    def time(self) -> datetime | None:
        """When the log took it."""
        return self._received.logged_at

    @property
    def headers(self) -> Mapping[str, bytes]:
        """All headers by name; where a name is repeated, the last one."""
        return headers_of(self._received)

    @property
    def type(self) -> str | None:
        return _text(carried(self._received).get(CE_TYPE))

    @property
    def traceparent(self) -> str | None:
        return _text(carried(self._received).get(TRACEPARENT))

    @property
    def idempotency_key(self) -> str:
        """The same at every delivery and every attempt: for calls to systems outside the transaction."""
        return f"{quote(self._received.source, safe='')}/{quote(str(self.id), safe='')}"

    def __repr__(self) -> str:
        received = self._received
        where = f"{received.topic}/{received.partition}@{received.offset}"
        return f"<Message {self.id} from {received.source}, {where}, attempt {self.attempt}>"


def headers_of(received: Received) -> dict[str, bytes]:
    """All headers, with those put back that have columns of their own."""
    own = {
        CE_ID: str(received.named or received.id).encode(),
        CE_SOURCE: received.source.encode(),
    }
    if received.position is not None:
        own[TM_POSITION] = str(received.position).encode()
    return {**carried(received), **own}


def origin_of(received: Received) -> int | None:
    """Where it stands in the order of its producer's outbox: what is sent again is as old as its original."""
    position = received.position
    # Looked for as text first: nearly all of them are originals, and parsing costs more.
    if position is None or TM_ORIGIN not in received.headers:
        return position
    said = carried(received).get(TM_ORIGIN, b"")
    return min(int(said), position) if said.isdigit() and len(said) < _TOO_LONG else position


def content_type_of(received: Received) -> str:
    """The media type without its parameters, in lower case; empty where the producer named none."""
    found = carried(received).get(CONTENT_TYPE)
    return "" if found is None else _media_type(found)


@lru_cache(maxsize=64)
def _media_type(header: bytes) -> str:
    return header.decode("latin-1").partition(";")[0].strip().lower()


def carried(received: Received) -> Mapping[str, bytes]:
    """The headers without ce_id, ce_source and tm_position. Shared between messages: not to be changed."""
    text = received.headers
    return _parsed_once(text) if len(text) <= _CACHED_LENGTH else _parsed(text)


def _parsed(text: str) -> Mapping[str, bytes]:
    return {name: _bytes_of(value) for name, value in json.loads(text).items()}


_parsed_once = lru_cache(maxsize=1024)(_parsed)


def _bytes_of(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, dict) and "base64" in value:
        return base64.b64decode(value["base64"])
    if value is None:  # Kafka allows a header without a value
        return b""
    return json.dumps(value).encode()


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("utf-8", "backslashreplace")
