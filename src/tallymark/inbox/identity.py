"""Which message this is: its id, source and key as the inbox saves them. Pure.

Ids are unique per source (CloudEvents). A UUIDv7 is saved as it is: it rises with time, so that saved ids can be
dropped by the day. Any other id is hashed into a UUID whose first 16 bits are zero, which no UUIDv7 of our century
has, and kept as text beside it. A message without an id (a foreign producer) gets one from where it stands in the log.

Headers are kept as a JSON object of name to text, to {"base64": …} for what is not UTF-8, or to null; order and
repeated names are kept. What has a column of its own (ce_id, ce_source, tm_position) is left out.
"""

from __future__ import annotations

import base64
import json
import uuid
from binascii import unhexlify
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from hashlib import blake2b

from tallymark.inbox.ports import Received
from tallymark.message import CE_ID, CE_SOURCE, TM_POSITION, TRACEPARENT

Headers = Sequence[tuple[str, bytes | None]]

_NAMED_BITS = 112
# In bytes, as an index counts.
_LONGEST_SOURCE = 1000
_UUID_BITS = 128
_UUID_TEXT = 36
_SEVEN = ord("7")
_UNKNOWN = uuid.SafeUUID.unknown
_new_uuid = object.__new__
# Its slots, past the __setattr__ that keeps others from them.
_set_int, _set_is_safe = (vars(uuid.UUID)[slot].__set__ for slot in ("int", "is_safe"))
# Not asked for where there is a key.
_NO_ID = uuid.UUID(int=0)
_KNOWN_KEYS = 65_536
_KNOWN_HEADERS = 1_024
# In bytes: what is larger is worked out each time, for so many of them would be gigabytes.
_LARGE = 1_024
# A number of so many digits does not fit a bigint: it is no position of ours.
_TOO_LONG = 19
# More headers than these are not what all messages of a producer share, and not worth remembering.
_MANY = 20
_OWN = frozenset({CE_ID, CE_SOURCE, TM_POSITION})
# As no UUIDv7 is, whatever time it claims: its version would be 15.
_NO_HEADERS = (0xFFFF << _NAMED_BITS) | (0xF << 76)
# An id that claims to be from further ahead than this was made by a clock that is wrong.
FUTURE_MARGIN = timedelta(days=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_quoted = json.JSONEncoder(ensure_ascii=False).encode


def received(
    topic: str,
    partition: int,
    offset: int,
    key: bytes | None,
    value: bytes | None,
    headers: Headers | None,
    logged_ms: int,
) -> Received:
    """A record of the log as the row that will be kept."""
    # As the relay sends: our own two last, and before them what most messages of a producer share, no trace of their own.
    if (
        headers
        and len(headers) > 2
        and headers[-1][0] == TM_POSITION
        and headers[-2][0] == CE_ID
        and headers[-3][0] != TRACEPARENT
    ):
        given, number = headers[-2][1], headers[-1][1]
        shared = headers[:-2]
        known = _last[0]
        if shared == known[0]:  # as a rule: to compare is a third of what it takes to look up
            source, carried = known[1], known[2]
        else:
            source, carried = _usual[tuple(shared)] if len(headers) < _MANY else _shared(shared)
            _last[0] = (shared, source, carried)
    else:
        given, number, source, carried = _looked_through(headers or ())
    id_ = _uuid7(given) if given else None
    named = None
    if id_ is None:
        # Kafka's time of the record too: in a topic that was made anew, the same place holds another message.
        name = given or f"{topic}/{partition}/{offset}@{logged_ms}".encode()
        id_, named = named_id(name), _text(name)
    return Received._make(
        (
            id_,
            f"kafka:{topic}" if source is None else source,
            named,
            topic,
            partition,
            offset,
            int(number) if number and number.isdigit() and len(number) < _TOO_LONG else None,
            key,
            value,
            carried,
            _moment(logged_ms) if logged_ms >= 0 else None,
        )
    )


def _looked_through(headers: Headers) -> tuple[bytes | None, bytes | None, str | None, str]:
    """Id, position, source and the other headers' JSON; of a name that is repeated the last one counts."""
    own: dict[str, bytes | None] = {}
    rest = []
    for pair in headers:
        if pair[0] in _OWN:
            own[pair[0]] = pair[1]
        else:
            rest.append(pair)
    source = own.get(CE_SOURCE)
    return (
        own.get(CE_ID),
        own.get(TM_POSITION),
        None if source is None else saved_source(source),
        headers_json(rest),
    )


def _shared(headers: Headers) -> tuple[str | None, str]:
    _, _, source, carried = _looked_through(headers)
    return source, carried


class UsualHeaders(dict[tuple[tuple[str, bytes | None], ...], tuple[str | None, str]]):
    """What the headers that a producer's messages share come to: source, and JSON. Large ones are not remembered."""

    def __missing__(self, headers: tuple[tuple[str, bytes | None], ...]) -> tuple[str | None, str]:
        found = _shared(headers)
        if sum(len(name) + len(value or b"") for name, value in headers) <= _LARGE:
            if len(self) >= _KNOWN_HEADERS:
                self.clear()
            self[headers] = found
        return found


_usual = UsualHeaders()
# Those of the last message, in one piece: other threads may be looking.
_last: list[tuple[Headers, str | None, str]] = [((), None, "{}")]


@lru_cache(maxsize=4096)
def _moment(logged_ms: int) -> datetime | None:
    try:
        return _EPOCH + timedelta(milliseconds=logged_ms)
    except OverflowError:  # a producer that counts in microseconds
        return None


def _uuid7(given: bytes) -> uuid.UUID | None:
    if len(given) != _UUID_TEXT or given[14] != _SEVEN:
        return None
    try:
        number = int.from_bytes(unhexlify(given.replace(b"-", b"")))
    except ValueError:
        return None
    if not number >> _NAMED_BITS or number >> _UUID_BITS:
        return None
    # What UUID's own constructor does at the end of its checks, at a fifth of the time.
    id_ = _new_uuid(uuid.UUID)
    _set_int(id_, number)
    _set_is_safe(id_, _UNKNOWN)
    return id_


def saved_id(name: str) -> uuid.UUID:
    """Under which id a message of this name is saved: a UUIDv7 as it is, whatever else by its hash."""
    given = name.encode()
    return _uuid7(given) or named_id(given)


def named_id(name: bytes) -> uuid.UUID:
    """The id under which a name is saved that is no UUIDv7."""
    return uuid.UUID(bytes=b"\0\0" + blake2b(name, digest_size=14).digest())


def is_named(id: uuid.UUID) -> bool:
    """Whether this id was derived from a name: it then says nothing of time."""
    return not id.int >> _NAMED_BITS


def without_headers(message: Received) -> Received:
    """One whose headers nobody can read, and so not its id either: marked, until it is set apart."""
    return message._replace(id=uuid.UUID(int=message.id.int | _NO_HEADERS))


def lacks_headers(id: uuid.UUID) -> bool:
    """Whether it bears that mark."""
    return id.int & _NO_HEADERS == _NO_HEADERS


def id_floor(moment: datetime) -> int:
    """The lowest UUIDv7 of a moment, as a number."""
    milliseconds = int((moment - _EPOCH).total_seconds() * 1000)
    return max(0, milliseconds) << 80


def key_hash(topic: str, key: bytes | None, id: uuid.UUID) -> int:
    """What messages of one key share; each one without a key stands alone. Fits a bigint."""
    if key is None:
        return int.from_bytes(id.bytes[8:], signed=True)
    digest = _keyed(topic).copy()
    digest.update(key)
    return int.from_bytes(digest.digest(), signed=True)


class KeyHashes(dict[bytes, int]):
    """`key_hash` of a topic's keys, which come again and again: each is worked out once."""

    def __init__(self, topic: str) -> None:
        super().__init__()
        self._topic = topic

    def __missing__(self, key: bytes) -> int:
        found = key_hash(self._topic, key, _NO_ID)
        if len(key) <= _LARGE:
            if len(self) >= _KNOWN_KEYS:
                self.clear()
            self[key] = found
        return found


@lru_cache(maxsize=1024)
def _keyed(topic: str) -> blake2b:
    """Ready to take in a key of this topic."""
    salt = blake2b(topic.encode(), digest_size=16).digest()
    return blake2b(digest_size=8, person=b"tallymark", salt=salt)


def headers_json(pairs: Headers) -> str:
    """Headers as the inbox keeps them."""
    return "{" + ",".join(f"{_quoted(name)}:{_header(value)}" for name, value in pairs) + "}"


def _header(value: bytes | None) -> str:
    if value is None:
        return "null"
    try:
        return _quoted(value.decode())
    except UnicodeDecodeError:
        return json.dumps({"base64": base64.b64encode(value).decode()})


def saved_source(value: bytes) -> str:
    """A source as the key of a table can hold it: one that is longer than any name is told by its digest."""
    text = _text(value)
    if len(text.encode()) <= _LONGEST_SOURCE:
        return text
    return f"blake2b:{blake2b(value, digest_size=32).hexdigest()}"


def _text(value: bytes) -> str:
    """Text that PostgreSQL can hold, whatever a foreign producer wrote."""
    return value.decode("utf-8", "backslashreplace").replace("\0", "␀")
