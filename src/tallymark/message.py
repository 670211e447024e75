"""What a message is: its id, key, value and headers, and how a caller's values become bytes. Pure.

Headers follow the CloudEvents Kafka binding in binary mode: `ce_id`, `ce_source`, `ce_type`, `ce_specversion`,
and `content-type`. Ours start with `tm_`. Ids are UUIDv7.
"""

from __future__ import annotations

import base64
import dataclasses
import datetime
import decimal
import json
import uuid
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from uuid_utils.compat import uuid7

from tallymark.errors import UsageError

CE_ID = "ce_id"
CE_SOURCE = "ce_source"
CE_TYPE = "ce_type"
CE_SPECVERSION = "ce_specversion"
CONTENT_TYPE = "content-type"
TRACEPARENT = "traceparent"
TM_POSITION = "tm_position"
TM_FORMAT = "tm_format"
# Of what was sent again: how often, and where the original stood in the outbox.
TM_RESEND = "tm_resend"
TM_ORIGIN = "tm_origin"

SPECVERSION = "1.0"
# Of our own headers: a reader that meets a higher one knows that it is too old.
HEADERS_FORMAT = "1"

# Written by us alone: a caller that could set them could pass for another message.
_OURS = frozenset({CE_ID, CE_SPECVERSION, TM_POSITION, TM_FORMAT, TM_RESEND, TM_ORIGIN})

_VERSION = 7
_NO_TIME_BITS = 112

Encode = Callable[[Any], bytes]
HeaderValue = str | bytes


def new_id() -> uuid.UUID:
    """A fresh UUIDv7: unique, and rising with time."""
    return uuid7()


def is_uuid7(id: uuid.UUID) -> bool:
    """Whether it is an id as we give them. Those of 1970's first weeks are not: inboxes keep other names there."""
    return id.version == _VERSION and bool(id.int >> _NO_TIME_BITS)


class Entry(NamedTuple):
    """A message as it is added: what becomes one row of the outbox. A tuple, for `add_many` makes many."""

    id: uuid.UUID
    topic: str
    key: bytes | None
    value: bytes | None
    headers: str
    partition: int | None = None


def encoded(  # noqa: PLR0911 - one return per kind of value
    value: Any, encode: Encode | None = None
) -> tuple[bytes | None, str]:
    """A caller's value as bytes, with its content type. None is a tombstone."""
    if encode is not None:
        result = encode(value)
        if not isinstance(result, bytes):
            raise UsageError(
                f"encode= gave back {type(result).__name__}, not bytes", remedy="return bytes from encode="
            )
        return result, "application/octet-stream"
    if value is None:
        return None, ""
    if isinstance(value, bytes):
        return value, "application/octet-stream"
    if isinstance(value, bytearray | memoryview):
        return bytes(value), "application/octet-stream"
    if isinstance(value, str):
        return _utf8(value, "a value", "be sent"), "text/plain; charset=utf-8"
    dump = getattr(value, "model_dump_json", None)  # a pydantic model; pydantic itself is not needed
    if callable(dump):
        return str(dump()).encode(), "application/json"
    try:
        return _compact(value).encode(), "application/json"
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"a value of type {type(value).__name__} cannot be sent: {error}",
            remedy="give bytes, str, something JSON-able, a pydantic model or a dataclass, or pass encode=",
        ) from None


def _plain(value: Any) -> Any:
    """What json does not know by itself."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if isinstance(value, uuid.UUID | decimal.Decimal):
        return str(value)
    if isinstance(value, datetime.datetime | datetime.date | datetime.time):
        return value.isoformat()
    dump = getattr(value, "model_dump", None)
    if callable(dump):
        return dump(mode="json")
    raise TypeError(f"{type(value).__name__} is not JSON-able")


# Made once: json.dumps with options would make an encoder for each value.
_compact = json.JSONEncoder(default=_plain, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode


def _utf8(text: str, what: str, cannot: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(
            f"{what} with half a surrogate pair cannot {cannot}: {error.reason} at {error.start}",
            remedy="give well-formed text, or bytes",
        ) from None


def encoded_key(key: Any) -> bytes | None:
    """A key as bytes. None means that no order is promised."""
    if key is None or isinstance(key, bytes):
        return key
    if isinstance(key, str):
        return _utf8(key, "a key", "be used")
    if isinstance(key, uuid.UUID) or (isinstance(key, int) and not isinstance(key, bool)):
        return str(key).encode()
    raise UsageError(
        f"a key of type {type(key).__name__} cannot be used",
        remedy="give str, bytes, int or UUID, or None for no order",
    )


def headers_json(
    source: str,
    type: str,
    content_type: str,
    traceparent: str | None,
    extra: Mapping[str, HeaderValue] | None,
) -> str:
    """The headers of a row: a JSON object of name to text, or to {"base64": …} for what is not UTF-8."""
    if not traceparent and not extra:
        return _plain_headers(source, type, content_type)
    pairs = _own_pairs(source, type, content_type)
    if traceparent:
        pairs[TRACEPARENT] = traceparent
    for name, value in (extra or {}).items():
        pairs[_checked_name(name)] = _json_header(name, value)
    text = _compact(pairs)
    _utf8(text, "a header", "be sent")
    return text


def _own_pairs(source: str, type: str, content_type: str) -> dict[str, Any]:
    pairs = {CE_SOURCE: source, CE_TYPE: type}
    if content_type:
        pairs[CONTENT_TYPE] = content_type
    return pairs


@lru_cache(maxsize=1024)
def _plain_headers(source: str, type: str, content_type: str) -> str:
    # What most messages of a service carry: a few combinations, over and over.
    return _compact(_own_pairs(source, type, content_type))


def _checked_name(name: Any) -> str:
    if not isinstance(name, str) or not name:
        raise UsageError(f"a header's name must be a non-empty str, not {name!r}")
    if name.lower() in _OURS:
        raise UsageError(
            f"header {name!r} is written by Tallymark itself", remedy="choose another name for it"
        )
    return name


def _json_header(name: str, value: Any) -> Any:
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return {"base64": base64.b64encode(value).decode()}
    raise UsageError(
        f"header {name!r} is {'null' if value is None else 'of type ' + type(value).__name__}",
        remedy="give str or bytes; leave the header out where there is nothing to say",
    )


def kafka_headers(text: str) -> list[tuple[str, bytes]]:
    """A row's headers as Kafka takes them, order and repeated names kept, with the formats' versions.

    Raises `UsageError` for whatever they cannot be: SQL checks no more than that they are JSON.
    """

    def value_of(name: str, value: Any) -> bytes:
        if isinstance(value, str):
            return value.encode()
        if isinstance(value, tuple) and len(value) == 1 and value[0][0] == "base64":
            return base64.b64decode(value[0][1])
        if isinstance(
            value, int | float | bool
        ):  # from SQL, where json_build_object keeps numbers as numbers
            return json.dumps(value).encode()
        raise UsageError(f"header {name!r} is neither text nor {{'base64': …}}")

    ours = [(CE_SPECVERSION, SPECVERSION.encode()), (TM_FORMAT, HEADERS_FORMAT.encode())]
    try:
        pairs = json.loads(text, object_pairs_hook=tuple)
        if not isinstance(pairs, tuple):
            raise UsageError("headers are a JSON object")
        for name, _ in pairs:
            name.encode()  # half a surrogate pair, which json lets through, ends Kafka's client with a crash
        return [*ours, *((name, value_of(name, value)) for name, value in pairs)]
    except (ValueError, TypeError, RecursionError) as error:
        raise UsageError(f"headers cannot be read: {error}") from None
