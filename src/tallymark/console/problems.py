"""What went wrong, as a problem document (RFC 9457). One place turns errors into answers; none says more than it may.

Wrong input is a 4xx and names the part that was wrong, never its value: a value may be a secret. What we did not foresee
is a 500 with nothing but a number to look for in the log.
"""

from __future__ import annotations

import http
import logging
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException

from tallymark.errors import AccessDenied, SchemaMismatch, TallymarkError, Unreachable, UsageError
from tallymark.observe.masking import mask
from tallymark.store.postgres.searchpool import Busy

log = logging.getLogger("tallymark.console")

MEDIA_TYPE = "application/problem+json"
RETRY_AFTER_S = 2


class Wrong(BaseModel):
    """One part of a request that was wrong."""

    where: str = Field(description="the part: query.limit, body.reason, path.lane", examples=["query.limit"])
    what: str = Field(
        description="what is wrong with it", examples=["Input should be less than or equal to 500"]
    )


class Problem(BaseModel):
    """RFC 9457: what went wrong, and what to do."""

    type: str = Field(examples=["urn:tallymark:problem:not-found"])
    title: str = Field(examples=["Not Found"])
    status: int = Field(examples=[404])
    detail: str = Field(default="", examples=["nobody has recorded anything of this message"])
    remedy: str = Field(default="", description="what to do", examples=["check the id"])
    errors: list[Wrong] = Field(default_factory=list)


class Refused(Exception):
    """An answer other than 2xx, decided by us."""

    def __init__(
        self, status: int, detail: str, *, remedy: str = "", headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.remedy = remedy
        self.headers = dict(headers or {})


def document(
    status: int,
    detail: str = "",
    *,
    remedy: str = "",
    errors: Sequence[Wrong] = (),
    headers: Mapping[str, str] | None = None,
) -> Response:
    """A problem document as an answer."""
    title = http.HTTPStatus(status).phrase
    problem = Problem(
        type=f"urn:tallymark:problem:{title.lower().replace(' ', '-')}",
        title=title,
        status=status,
        detail=mask(detail),
        remedy=mask(remedy),
        errors=list(errors),
    )
    return Response(problem.model_dump_json(), status, dict(headers or {}), MEDIA_TYPE)


def of_error(error: TallymarkError) -> Response:
    """One of our own errors as an answer."""
    said: dict[str, Any] = {"detail": str(error), "remedy": error.remedy}
    if isinstance(error, Busy):
        return document(503, **said, headers={"Retry-After": str(RETRY_AFTER_S)})
    if isinstance(error, UsageError):
        return document(422, **said)
    if isinstance(error, AccessDenied | SchemaMismatch | Unreachable):
        # Where our own databases are, and how we get in, is nobody's business.
        log.warning("%s", error.sentence, extra={"action": "console.unavailable"})
        return document(
            503, "a database or Kafka cannot be asked now", headers={"Retry-After": str(RETRY_AFTER_S)}
        )
    # What is there stands in the way: somebody was quicker, a key was used before.
    return document(409, **said)


async def refused(_request: Request, error: Exception) -> Response:
    assert isinstance(error, Refused)  # noqa: S101 - registered for it
    return document(error.status, error.detail, remedy=error.remedy, headers=error.headers)


async def ours(_request: Request, error: Exception) -> Response:
    assert isinstance(error, TallymarkError)  # noqa: S101 - registered for it
    return of_error(error)


async def http_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101 - registered for it
    if error.status_code == 400:  # a body that is not even text
        return document(422, "the body cannot be read", remedy="send JSON in UTF-8")
    detail = "" if error.detail == http.HTTPStatus(error.status_code).phrase else str(error.detail)
    return document(error.status_code, detail, headers=error.headers)


async def invalid(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)  # noqa: S101 - registered for it
    wrong = [
        Wrong(where=".".join(str(part) for part in each["loc"]), what=str(each["msg"]))
        for each in error.errors()[:20]
    ]
    return document(422, "the request is not as the document says", errors=wrong)


async def unforeseen(request: Request, error: Exception) -> Response:
    number = uuid.uuid4().hex[:12]
    log.error(
        "unforeseen error",
        exc_info=error,
        extra={"action": "console.bug", "number": number, "method": request.method},
    )
    return document(500, f"this is a bug of ours; the log has it under {number}")


_DESCRIBED = {
    401: "No token, or one that does not count.",
    403: "The token's role may not do this.",
    404: "There is no such thing.",
    409: "It cannot be done as things stand.",
    413: "The body is too large.",
    422: "The request is not as this document says.",
    429: "Too many wrong tokens from this address.",
    503: "A database cannot be asked now, or too many ask at once.",
}


def documented(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The problem answers of a route, for its OpenAPI document."""
    schema = {"$ref": "#/components/schemas/Problem"}
    return {
        status: {"description": _DESCRIBED[status], "content": {MEDIA_TYPE: {"schema": schema}}}
        for status in sorted({401, 403, 422, 429, 503, *statuses})
    }
