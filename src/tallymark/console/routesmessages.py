"""Messages: where one is and how it got there; which there are; what was sent to a consumer."""

from __future__ import annotations

import json
import uuid
import weakref
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query
from fastapi.responses import StreamingResponse

from tallymark.console import asked
from tallymark.console.gate import Viewer, reason_for, sees_payloads
from tallymark.console.problems import Refused, documented
from tallymark.console.shapes import Message, Messages, Payload, Traced, base64_of, text_of
from tallymark.console.world import Served, World
from tallymark.inbox.identity import named_id
from tallymark.lifecycle import MessageState
from tallymark.observe import names
from tallymark.store.postgres.search import Found, Question
from tallymark.store.postgres.searchpool import Busy
from tallymark.store.postgres.streaming import Span

NDJSON = "application/x-ndjson"
_LINE = {
    "position": 1042,
    "id": "01941f29-7c00-7000-8000-0123456789ab",
    "topic": "transfers",
    "partition": None,
    "added_at": "2026-11-15T12:00:00+00:00",
    "key": "YWNjb3VudC03",
    "value": "eyJhbW91bnQiOjd9",
    "headers": {"ce_source": "/bank"},
}
_STREAMED: dict[int | str, dict[str, Any]] = {
    200: {
        "description": (
            'One JSON object a line; the last one is {"end": true, "messages": n, …}: without it the stream was cut '
            "off. Keys and values in base64; a viewer gets value_bytes in place of value and headers."
        ),
        "content": {NDJSON: {"schema": {"type": "string"}, "example": json.dumps(_LINE)}},
    }
}


def router(world: World) -> APIRouter:
    """The routes of messages."""
    routes = APIRouter(tags=["messages"])

    @routes.get("/messages", responses=documented(404))
    def messages(
        bearer: Viewer,  # noqa: ARG001 - for who may
        topic: asked.Topic = None,
        key: asked.KeyText = None,
        since: Annotated[asked.Moment | None, Query(alias="from", description="added at or after")] = None,
        until: Annotated[asked.Moment | None, Query(alias="to", description="added before")] = None,
        state: Annotated[MessageState | None, Query(description="only in this state")] = None,
        outbox: asked.OutboxQuery = None,
        cursor: asked.Cursor = None,
        limit: asked.Limit = 50,
    ) -> Messages:
        """Messages of an outbox, the newest first: by topic, key, time and state."""
        question = Question(topic, None if key is None else key.encode(), since, until, state)
        found = world.outbox(outbox).search.page(question, cursor=_cursor(cursor, state), limit=limit)
        return Messages(items=[_message(each) for each in found.messages], next=_shown(found.next))

    @routes.get("/messages/{id:path}", responses=documented(404))
    def message(bearer: Viewer, id: asked.MessageId) -> Traced:
        """One message with its whole trace, over all databases: the same as `tallymark trace`."""
        found = _traced(world, id)
        if found is None:
            raise Refused(
                404,
                "nobody has recorded anything of this message",
                remedy="it may be of a database not served",
            )
        payload = _payload(world, id) if sees_payloads(bearer) else None
        for event in found["events"]:
            if event["station"] == "apply" and "reason" in event:
                event["reason"] = reason_for(bearer, event["reason"])
        return Traced.model_validate({**found, "payload": payload})

    @routes.get(
        "/consumers/{name}/messages", responses=documented(404) | _STREAMED, response_class=StreamingResponse
    )
    def sent_to(
        bearer: Viewer,
        name: asked.ConsumerName,
        first: Annotated[
            asked.MomentOrPosition | None, Query(alias="from", description="from this time or position on")
        ] = None,
        end: Annotated[
            asked.MomentOrPosition | None, Query(alias="to", description="before this time or position")
        ] = None,
        topic: Annotated[
            list[Annotated[str, Query(pattern=r"^[A-Za-z0-9._-]{1,249}$")]] | None,
            Query(max_length=100, description="these topics; needed where the consumer is not known here"),
        ] = None,
        outbox: asked.OutboxQuery = None,
        database: asked.DatabaseQuery = None,
    ) -> StreamingResponse:
        """What was sent to a consumer between two times or positions, by position: what `tally repair` reads."""
        topics = topic or _topics_of(world, name, database)
        served, span = world.outbox(outbox), _span(first, end)
        if not world.streaming.acquire(blocking=False):
            raise Busy("too many streams at once", remedy="try again in a moment")
        try:
            lines = served.streaming.lines(topics, span, payload=sees_payloads(bearer))
        except BaseException:
            world.streaming.release()
            raise
        return StreamingResponse(_Counted(world, lines), media_type=NDJSON)

    return routes


def _traced(world: World, id: str) -> dict[str, Any] | None:
    found = world.tracer.trace(id)
    return None if found is None else found.as_json()


def _payload(world: World, id: str) -> Payload | None:
    for served in world.databases.values():
        row = _contents(served, id)
        if row is not None:
            key, value, headers = row
            return Payload(
                key=base64_of(key), value=base64_of(value), text=_utf8(value), headers=json.loads(headers)
            )
    return None


def _contents(served: Served, id: str) -> tuple[bytes | None, bytes | None, str] | None:
    rooms = served.rooms()
    saved = _saved_under(id)
    with served.pool.connection(lookup=True) as connection:
        for query in (*(("payload",) if rooms.outbox else ()), *(("kept_payload",) if rooms.inbox else ())):
            for each in saved:
                row = connection.execute(served.queries[query], {"id": each}).fetchone()
                if row is not None:
                    return row[0], row[1], row[2]
    return None


def _saved_under(id: str) -> list[uuid.UUID]:
    """An id may be a UUID, or a producer's own name, saved under what is derived from it."""
    try:
        return [uuid.UUID(id), named_id(id.encode())]
    except ValueError:
        return [named_id(id.encode())]


def _utf8(value: bytes | None) -> str | None:
    try:
        return None if value is None else bytes(value).decode()
    except UnicodeDecodeError:
        return None


def _message(found: Found) -> Message:
    return Message(
        id=found.id,
        state=found.state,
        topic=found.topic,
        key=text_of(found.key),
        partition=found.partition,
        position=found.position,
        lane=found.lane,
        batch=found.batch,
        added_at=found.added_at,
        sent_at=found.sent_at,
        due_at=found.due_at,
        reason=found.reason,
        value_bytes=found.value_bytes,
    )


def _cursor(given: str | None, state: MessageState | None) -> str | None:
    """Cursors are numbers: positions, or ids as such."""
    if given is None:
        return None
    if state is MessageState.DELAYED:
        return str(uuid.UUID(int=min(int(given), 2**128 - 1)))
    return str(min(int(given), asked.BIGGEST))


def _shown(cursor: str | None) -> str | None:
    return str(uuid.UUID(cursor).int) if cursor and "-" in cursor else cursor


def _topics_of(world: World, consumer: str, database: str | None) -> Sequence[str]:
    served = world.consumer(consumer, database)
    with served.pool.connection() as connection:
        row = connection.execute(served.queries["consumer_topics"], {"consumer": consumer}).fetchone()
    return list(row[0]) if row else []


def _span(first: datetime | int | None, end: datetime | int | None) -> Span:
    return Span(
        since=first if isinstance(first, datetime) else None,
        until=end if isinstance(end, datetime) else None,
        first=first if isinstance(first, int) else None,
        end=end if isinstance(end, int) else None,
    )


class _Counted:
    """Counts what is streamed, and gives the stream's place back, also where nobody took a single line."""

    def __init__(self, world: World, lines: Iterator[bytes]) -> None:
        self._world = world
        self._lines = lines
        self._freed = weakref.finalize(self, world.streaming.release)

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        try:
            piece = next(self._lines)
        except BaseException:
            self._freed()
            raise
        self._world.metrics.add(names.API_STREAMED, len(piece))
        return piece
