"""Messages by their ids: what somebody wrote down, as it may stand in the log, and as the inbox would save it. Pure.

Spark looks for all that may be meant, by native expressions; whether it is meant, `identity.received` decides, as in the
service. An id is written as the inbox shows it: a UUIDv7 in any case, another one to the letter, bytes that are no UTF-8
as \\xNN, and that of a message without an id as its place in the log.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Sequence
from datetime import timedelta

from tallymark.inbox.identity import is_named, received
from tallymark.inbox.ports import Received
from tallymark.message import CE_ID

_SKEW = timedelta(days=1)
_ESCAPED = re.compile(rb"\\x([0-9a-f]{2})")
# What may be a UUID, however it is written, is compared by its digits.
_DIGITS = re.compile(rb"[0-9a-fA-F-]{36}")
_LONGEST, _LENGTH = 36, 32

# As identity.received: the last ce_id counts; a message without one is named by its place.
_GIVEN = (
    f"coalesce(nullif(try_element_at(filter(headers, h -> h.key = '{CE_ID}'), -1).value, X''), "
    "cast(concat(topic, '/', partition, '/', offset, '@', unix_millis(timestamp)) as binary))"
)
# As `sought_as`, of what is in the log.
NAME = (
    f"transform(array({_GIVEN}), b -> case when cast(b as string) rlike '^{_DIGITS.pattern.decode()}$' then cast("
    f"right(lpad(lower(replace(cast(b as string), '-', '')), {_LONGEST}, '0'), {_LENGTH}) as binary) else b end)[0]"
)


class Sought:
    """Those that were asked for, and which of them were found."""

    def __init__(self, ids: Iterable[str]) -> None:
        self._wished: dict[str, set[str]] = {}
        for each in ids:
            self._wished.setdefault(_shown(_named(each.encode())), set()).add(each)
        # As they were written.
        self.found: set[str] = set()

    def names(self) -> list[bytes]:
        """What the log is searched for."""
        wished = (each for all_ in self._wished.values() for each in all_)
        return sorted({sought_as(raw) for each in wished for raw in _spelled(each)})

    def takes(self, message: Received) -> bool:
        """Whether this one was asked for."""
        meant = self._wished.get(_shown(message), set())
        self.found |= meant
        return bool(meant)


def sought_as(raw: bytes) -> bytes:
    """An id of the log as it is compared."""
    if not _DIGITS.fullmatch(raw):
        return raw
    return raw.replace(b"-", b"").lower().rjust(_LONGEST, b"0")[-_LENGTH:]


def since_of(ids: Sequence[str]) -> int:
    """The earliest time, in milliseconds, at which any of these can have been logged; 0 where an id says nothing."""
    earliest = None
    for each in ids:
        try:
            found = uuid.UUID(each)
        except ValueError:
            return 0
        if found.version != 7 or is_named(found):
            return 0
        moment = found.int >> 80
        earliest = moment if earliest is None else min(moment, earliest)
    return max(0, (earliest or 0) - int(_SKEW.total_seconds() * 1000))


def _spelled(shown: str) -> set[bytes]:
    """The bytes that are shown so."""
    text = shown.encode()
    plain = text.replace("␀".encode(), b"\0")
    return {text, plain, _ESCAPED.sub(lambda found: bytes.fromhex(found[1].decode()), plain)}


def _named(name: bytes) -> Received:
    return received("", 0, 0, None, None, [(CE_ID, name)], 0)


def _shown(message: Received) -> str:
    return str(message.id) if message.named is None else message.named
