"""A small typed client of the query interface, on httpx.

    with Client("https://tallymark.internal:8321", token) as client:
        trace = client.message("0199…")
        for message in client.sent_to("ledger", since=yesterday):
            ...

Errors are those of errors.py: AccessDenied for a token that does not count or may not, Unreachable where nobody answers,
UsageError for wrong input, Problem for the rest. A stream that was cut off raises OutcomeUnknown: what came is good, and
it was not all. Needs httpx alone, none of the server's packages.
"""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import TracebackType
from typing import Any, Self

import httpx

from tallymark.errors import AccessDenied, OutcomeUnknown, Problem, TallymarkError, Unreachable, UsageError
from tallymark.lifecycle import MessageState

_PAGE = 500


@dataclass(frozen=True, slots=True)
class SentMessage:
    """A message as it was sent to a consumer."""

    position: int
    id: uuid.UUID
    topic: str
    partition: int | None
    key: bytes | None
    # None for a tombstone, and where the token may not see payloads: then `value_bytes` says how large it is.
    value: bytes | None
    headers: Mapping[str, Any]
    added_at: datetime
    value_bytes: int | None


@dataclass(frozen=True, slots=True)
class FoundMessage:
    """A message of an outbox, without its contents."""

    id: uuid.UUID
    state: MessageState
    topic: str
    key: str | None
    position: int | None
    added_at: datetime
    sent_at: datetime | None
    reason: str | None


@dataclass(frozen=True, slots=True)
class ActionDone:
    """What an action changed, and why it did not change the rest."""

    changed: tuple[str, ...]
    unchanged: Mapping[str, str]
    # Whether this very request had been done before.
    repeated: bool


class Client:
    """One service, with one token."""

    def __init__(self, url: str, token: str, *, timeout_s: float = 30.0, verify: bool | str = True) -> None:
        if not url.startswith(("http://", "https://")):
            raise UsageError(
                "the service's URL starts with http:// or https://", remedy="as in https://host:8321"
            )
        self._url = url
        self._http = httpx.Client(
            base_url=url.rstrip("/"),
            headers={"Authorization": f"Bearer {token}"},
            timeout=httpx.Timeout(timeout_s, connect=5.0),
            verify=verify,
        )

    def message(self, id: str | uuid.UUID) -> dict[str, Any] | None:
        """A message with its whole trace; None where nobody knows it."""
        try:
            found = self._get(f"/v1/messages/{_segment(str(id))}")
        except _NotFound:
            return None
        assert isinstance(found, dict)  # noqa: S101 - as the document says
        return found

    def messages(
        self,
        *,
        topic: str | None = None,
        key: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        state: MessageState | None = None,
        outbox: str | None = None,
    ) -> Iterator[FoundMessage]:
        """Messages of an outbox, the newest first, page by page as they are taken."""
        asked: dict[str, Any] = {
            "topic": topic,
            "key": key,
            "from": _time(since),
            "to": _time(until),
            "state": str(state) if state else None,
            "outbox": outbox,
            "limit": _PAGE,
        }
        while True:
            page = self._get("/v1/messages", asked)
            for item in page["items"]:
                yield FoundMessage(
                    uuid.UUID(item["id"]),
                    MessageState(item["state"]),
                    item["topic"],
                    item["key"],
                    item["position"],
                    datetime.fromisoformat(item["added_at"]),
                    datetime.fromisoformat(item["sent_at"]) if item["sent_at"] else None,
                    item["reason"],
                )
            if page["next"] is None:
                return
            asked["cursor"] = page["next"]

    def sent_to(
        self,
        consumer: str,
        *,
        since: datetime | int | None = None,
        until: datetime | int | None = None,
        topics: Sequence[str] = (),
        outbox: str | None = None,
        database: str | None = None,
    ) -> Iterator[SentMessage]:
        """What was sent to a consumer between two times or positions, by position, in fixed memory.

        `database`, here and below: which one, where two of them have a consumer of this name.
        """
        asked = {"from": _time(since), "to": _time(until), "topic": list(topics) or None}
        asked |= {"outbox": outbox, "database": database}
        # Plain: packing costs more than a network between two services does.
        request = self._http.build_request(
            "GET",
            f"/v1/consumers/{_segment(consumer)}/messages",
            params=_given(asked),
            headers={"Accept-Encoding": "identity"},
        )
        count = 0
        try:
            answer = self._http.send(request, stream=True)
            try:
                if answer.status_code != 200:
                    answer.read()
                    raise _error(answer)
                for line in _lines(answer.iter_bytes()):
                    row = json.loads(line)
                    if row.get("end"):
                        if row["messages"] != count:
                            raise OutcomeUnknown(f"{count} messages came of {row['messages']}")
                        return
                    count += 1
                    yield _sent(row)
            finally:
                answer.close()
        except httpx.HTTPError as error:
            if count == 0:
                raise self._unreachable(error) from error
            raise OutcomeUnknown(f"the stream was cut off after {count} messages") from error
        raise OutcomeUnknown(f"the stream ended without its last line, after {count} messages")

    def outboxes(self) -> list[dict[str, Any]]:
        """Every outbox at a glance."""
        return list(self._get("/v1/outboxes"))

    def consumers(self) -> list[dict[str, Any]]:
        """Every consumer at a glance."""
        return list(self._get("/v1/consumers"))

    def pause_consumer(
        self, name: str, *, reason: str, database: str | None = None, key: str | None = None
    ) -> ActionDone:
        return self._act(f"/v1/consumers/{_segment(name)}/pause", reason, key, database=database)

    def resume_consumer(
        self, name: str, *, reason: str, database: str | None = None, key: str | None = None
    ) -> ActionDone:
        return self._act(f"/v1/consumers/{_segment(name)}/resume", reason, key, database=database)

    def pause_lane(self, outbox: str, lane: int, *, reason: str, key: str | None = None) -> ActionDone:
        return self._act(f"/v1/outboxes/{_segment(outbox)}/lanes/{lane}/pause", reason, key)

    def resume_lane(self, outbox: str, lane: int, *, reason: str, key: str | None = None) -> ActionDone:
        return self._act(f"/v1/outboxes/{_segment(outbox)}/lanes/{lane}/resume", reason, key)

    def retry_parked(self, outbox: str, id: str, *, reason: str, key: str | None = None) -> ActionDone:
        return self._act(f"/v1/outboxes/{_segment(outbox)}/parked/{_segment(id)}/retry", reason, key)

    def discard_parked(self, outbox: str, id: str, *, reason: str, key: str | None = None) -> ActionDone:
        return self._act(f"/v1/outboxes/{_segment(outbox)}/parked/{_segment(id)}/discard", reason, key)

    def retry_dead(
        self, consumer: str, id: str, *, reason: str, database: str | None = None, key: str | None = None
    ) -> ActionDone:
        path = f"/v1/consumers/{_segment(consumer)}/dead-letters/{_segment(id)}/retry"
        return self._act(path, reason, key, database=database)

    def discard_dead(
        self, consumer: str, id: str, *, reason: str, database: str | None = None, key: str | None = None
    ) -> ActionDone:
        path = f"/v1/consumers/{_segment(consumer)}/dead-letters/{_segment(id)}/discard"
        return self._act(path, reason, key, database=database)

    def resend(
        self, id: str, *, reason: str, outbox: str | None = None, key: str | None = None
    ) -> ActionDone:
        return self._act(f"/v1/messages/{_segment(id)}/resend", reason, key, outbox=outbox)

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _act(self, path: str, reason: str, key: str | None, **asked: str | None) -> ActionDone:
        """With a key of its own where none is given: sent again after a lost answer, it is not done again."""
        headers = {"Idempotency-Key": key or uuid.uuid4().hex}
        for attempt in (1, 2):
            try:
                answer = self._http.post(path, json={"reason": reason}, headers=headers, params=_given(asked))
                break
            except httpx.ConnectError as error:
                raise self._unreachable(error) from error
            except httpx.HTTPError as error:
                if attempt == 2:
                    raise OutcomeUnknown(
                        f"no answer came from {self._url}",
                        remedy=f"ask again with key {headers['Idempotency-Key']}",
                    ) from error
        if answer.status_code != 200:
            raise _error(answer)
        done = answer.json()
        return ActionDone(tuple(done["changed"]), done["unchanged"], done["repeated"])

    def _get(self, path: str, asked: Mapping[str, Any] | None = None) -> Any:
        try:
            answer = self._http.get(path, params=_given(asked or {}))
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error
        if answer.status_code != 200:
            raise _error(answer)
        return answer.json()

    def _unreachable(self, error: httpx.HTTPError) -> Unreachable:
        return Unreachable(
            f"the query interface does not answer: {self._url} ({type(error).__name__})",
            remedy="check the URL, and that `tallymark serve` runs there",
        )


class _NotFound(Problem):
    """404."""


def _error(answer: httpx.Response) -> TallymarkError:
    """A problem document in our words."""
    try:
        told = answer.json()
        what, remedy = str(told.get("detail") or told.get("title")), str(told.get("remedy", ""))
        if wrong := told.get("errors"):
            what += ": " + ", ".join(f"{each['where']}: {each['what']}" for each in wrong)
    except (ValueError, AttributeError, KeyError):
        what, remedy = f"HTTP {answer.status_code}", "is this a `tallymark serve`?"
    kind: dict[int, type[TallymarkError]] = {
        401: AccessDenied,
        403: AccessDenied,
        404: _NotFound,
        422: UsageError,
        429: AccessDenied,
        503: Unreachable,
    }
    return kind.get(answer.status_code, Problem)(what, remedy=remedy)


def _sent(row: Mapping[str, Any]) -> SentMessage:
    value = row.get("value")
    decoded = None if value is None else base64.b64decode(value)
    size = row.get("value_bytes")
    return SentMessage(
        row["position"],
        uuid.UUID(row["id"]),
        row["topic"],
        row["partition"],
        None if row["key"] is None else base64.b64decode(row["key"]),
        decoded,
        row.get("headers", {}),
        datetime.fromisoformat(row["added_at"]),
        size if decoded is None else len(decoded),
    )


def _lines(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Lines end with a line feed alone: JSON may hold every other sign that Unicode ends lines with."""
    rest = b""
    for piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        yield from lines


def _time(moment: datetime | int | None) -> str | None:
    if isinstance(moment, datetime):
        if moment.tzinfo is None:
            raise UsageError(
                "a time without a zone can be any", remedy="give one with tzinfo, as in datetime.now(UTC)"
            )
        return moment.isoformat()
    return None if moment is None else str(moment)


def _given(asked: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in asked.items() if value is not None}


def _segment(text: str) -> str:
    from urllib.parse import quote

    return quote(text, safe="")
