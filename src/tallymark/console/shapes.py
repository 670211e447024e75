"""What the query interface says, as types: the OpenAPI document is made of these, and every answer is held to them."""

from __future__ import annotations

import base64
from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field

from tallymark.lifecycle import MessageState, TokenRole, Verdict

_ID = "01941f29-7c00-7000-8000-0123456789ab"
_WHEN = "2026-11-15T12:00:00.000000Z"


class Shape(BaseModel):
    """An answer, or part of one."""

    model_config = ConfigDict(frozen=True, from_attributes=True)


Key = Annotated[
    str | None,
    Field(description="as text; bytes that are not UTF-8 as \\xNN", examples=["account-7"]),
]
Next = Annotated[
    str | None, Field(description="give it as ?cursor= for the next page; null at the end", examples=[None])
]


class Message(Shape):
    """A message of an outbox, without its contents."""

    id: UUID = Field(examples=[_ID])
    state: MessageState = Field(examples=["sent"])
    topic: str = Field(examples=["transfers"])
    key: Key
    partition: int | None = Field(description="where the producer chose one")
    position: int | None = Field(description="its place in the outbox", examples=[1042])
    lane: int | None
    batch: int | None
    added_at: datetime = Field(examples=[_WHEN])
    sent_at: datetime | None
    due_at: datetime | None
    reason: str | None
    value_bytes: int | None


class Messages(Shape):
    """A page of messages, the newest first. It may be short, or empty, while `next` says that there is more."""

    items: list[Message]
    next: Next


class Payload(Shape):
    """What a message contains. Only for roles that may see it."""

    key: str | None = Field(description="base64")
    value: str | None = Field(description="base64")
    text: str | None = Field(description="the value as text, where it is UTF-8", examples=['{"amount":7}'])
    headers: dict[str, Any]


class Event(Shape):
    """Something that happened to a message. What it names beside this depends on the station."""

    model_config = ConfigDict(extra="allow", frozen=True)

    at: str | None = Field(examples=[_WHEN])
    station: str = Field(examples=["relay"])
    what: str = Field(examples=["marked as sent"])


class Traced(Shape):
    """One message from its transaction to its effects, as `tallymark trace` shows it."""

    id: str = Field(examples=[_ID])
    topic: str = Field(examples=["transfers"])
    key: Key
    events: list[Event]
    verdict: Verdict = Field(examples=["delivered"])
    clock: str = Field(
        description="what times of adding mean: commit, or adding in a transaction", examples=["commit"]
    )
    payload: Payload | None = Field(description="null where the role may not see it")


class Because(BaseModel):
    """Why it is done: the audit keeps it."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"reason": "fixed upstream"}]})

    reason: Annotated[str, Field(min_length=1, max_length=500, pattern=r"^[^\x00]+$")]


class Done(Shape):
    """What an action came to."""

    changed: list[str] = Field(description="what it changed: ids, lanes, a consumer", examples=[[_ID]])
    unchanged: dict[str, str] = Field(default_factory=dict, description="and why the rest was not changed")
    repeated: bool = Field(default=False, description="this very request had been done before")


class Audited(Shape):
    """A row of the audit."""

    at: datetime
    who: str
    action: str
    subject: str
    reason: str
    details: dict[str, Any]


class AuditPage(Shape):
    """A page of the audit, the newest first."""

    items: list[Audited]
    next: Next


class TokenInfo(Shape):
    """What is known of a token: everything but itself."""

    number: int
    name: str
    role: TokenRole
    created_at: datetime
    created_by: str
    expires_at: datetime | None
    revoked_at: datetime | None


def text_of(value: bytes | memoryview | None) -> str | None:
    """A key as people can read it."""
    return None if value is None else bytes(value).decode("utf-8", "backslashreplace")


def base64_of(value: bytes | memoryview | None) -> str | None:
    return None if value is None else base64.b64encode(bytes(value)).decode()
