"""Repair without Kafka: a consumer asks the producer's side what was sent to it, and takes what it lacks. Pure.

`SentSource` is what the two sides share: the query interface's client is one, and so is anything else that can say what
was sent. What is taken is kept and queued like a message from the log, without an offset; the same message from Kafka
later changes nothing. Asked from some point on, a consumer that lags is not given what it has yet to read: earlier ones
of the same key may be on their way to it, and were not asked for.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol


class Sent(Protocol):
    """A message as it was sent to a consumer."""

    @property
    def position(self) -> int: ...
    @property
    def id(self) -> uuid.UUID: ...
    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int | None: ...
    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def value_bytes(self) -> int | None:
        """How large the value is, shown or not; None for a tombstone."""
        ...

    @property
    def headers(self) -> Mapping[str, Any]: ...
    @property
    def added_at(self) -> datetime: ...


class SentSource(Protocol):
    """Who can say what was sent."""

    def sent_to(
        self,
        consumer: str,
        *,
        since: datetime | int | None = None,
        until: datetime | int | None = None,
        topics: Sequence[str] = (),
    ) -> Iterator[Sent]:
        """By position, in fixed memory."""
        ...


@dataclass(slots=True)
class Repaired:
    """What a repair came to."""

    asked: int = 0
    lacking: int = 0
    kept: int = 0
    # Lacking, and left to Kafka: the consumer has not come to them, nor perhaps to earlier ones of their keys.
    unread: int = 0
    # Not in the inbox, and older than what it remembers: applied long ago, or not; nobody knows. Too many to name.
    forgotten: int = 0
    # What was kept (or would be).
    missing: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        return {
            "asked": self.asked,
            "lacking": self.lacking,
            "kept": self.kept,
            "unread": self.unread,
            "forgotten": self.forgotten,
            "missing": self.missing,
            "refused": self.refused,
        }
