"""What may be asked, as types: parameters of routes, checked before anything is done. No text holds a NUL byte."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Annotated

from fastapi import Header, Path, Query
from pydantic import AfterValidator, AwareDatetime, BeforeValidator, Field

from tallymark.console.problems import Refused

_NO_NUL = r"^[^\x00]+$"
_RFC3339 = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d")
_FIRST, _LAST = datetime(1970, 1, 2, tzinfo=UTC), datetime(2200, 1, 1, tzinfo=UTC)
BIGGEST = 2**63 - 1


def _looks_like_a_moment(value: object) -> object:
    """Pydantic would take a bare number for seconds since 1970; the document says RFC 3339."""
    if isinstance(value, str) and not _RFC3339.match(value):
        raise ValueError("write a time as in 2026-11-15T12:00:00Z")
    return value


def _within_history(moment: datetime) -> datetime:
    """Nothing was added before there were computers: a moment beyond either end means the same as the end."""
    try:
        return min(max(moment, _FIRST), _LAST)
    except OverflowError:
        return _FIRST if moment.year < 2000 else _LAST


Moment = Annotated[AwareDatetime, BeforeValidator(_looks_like_a_moment), AfterValidator(_within_history)]
AtPosition = Annotated[int, Field(ge=0, le=BIGGEST, description="a position")]
MomentOrPosition = Annotated[AtPosition | Moment, Field(union_mode="left_to_right")]

Limit = Annotated[int, Query(ge=1, le=500, description="items at most")]
Cursor = Annotated[
    str | None, Query(pattern=r"^[0-9]{1,39}$", description="`next` of the page before", examples=["1042"])
]
Topic = Annotated[
    str | None,
    Query(pattern=r"^[A-Za-z0-9._-]{1,249}$", description="only this topic", examples=["transfers"]),
]
KeyText = Annotated[
    str | None,
    Query(min_length=1, max_length=1024, pattern=_NO_NUL, description="only this key, as text"),
]
OutboxName = Annotated[
    str,
    Path(min_length=1, max_length=63, pattern=_NO_NUL, description="a database's name", examples=["main"]),
]
OutboxQuery = Annotated[
    str | None,
    Query(min_length=1, max_length=63, pattern=_NO_NUL, description="whose; needed where there are several"),
]
DatabaseQuery = Annotated[
    str | None,
    Query(
        min_length=1,
        max_length=63,
        pattern=_NO_NUL,
        description="whose inbox; needed where several databases have a consumer of this name",
    ),
]
ConsumerName = Annotated[
    str, Path(min_length=1, max_length=255, pattern=_NO_NUL, description="a consumer", examples=["ledger"])
]
LaneNumber = Annotated[int, Path(ge=0, le=255, description="a lane")]
MessageId = Annotated[
    str,
    Path(
        min_length=1,
        max_length=255,
        pattern=_NO_NUL,
        description="a message's id: a UUID, or the name that a foreign producer gave it",
        examples=["01941f29-7c00-7000-8000-0123456789ab"],
    ),
]
IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=128,
        pattern=r"^[\x21-\x7e]+$",
        description="a name of yours for this request: sent again with the same one, it is not done again",
    ),
]


def numbers(cursor: str | None, shape: str, first: tuple[int, ...]) -> tuple[int, ...]:
    """The numbers in a cursor of several parts; `first` where there is none."""
    if cursor is None:
        return first
    if not re.fullmatch(shape, cursor):
        raise Refused(422, "this is not a cursor of ours", remedy="give `next` of the page before")
    return tuple(min(int(part), BIGGEST) for part in cursor.split("."))
