"""What every request wears: headers that browsers heed, a limit on bodies, a line in the log, and an end to patience.

Nothing of a request's query, body or headers is logged, nor of an answer's: the route's pattern, who, how long, how it
ended.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tallymark.console.problems import document
from tallymark.observe import names
from tallymark.observe.metrics import Metrics

log = logging.getLogger("tallymark.console")

LARGEST_BODY = 64 * 1024
# A client that takes nothing of what it asked for within this time is left.
STALLED_S = 30.0

_HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
]


class TooLarge(Exception):
    """A body that is larger than any request of ours needs."""


class Stalled(Exception):
    """A client stopped reading."""


class Armour:
    """Middleware around everything."""

    def __init__(self, app: ASGIApp, metrics: Metrics, *, stalled_s: float = STALLED_S) -> None:
        self._app = app
        self._metrics = metrics
        self._stalled_s = stalled_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, passage = time.monotonic(), _Passage(receive, send, self._stalled_s)
        try:
            if not passage.fits(scope):
                raise TooLarge
            await self._app(scope, passage.receive, passage.send)
        except Exception:
            # By what was noted, not by the kind: on its way out an exception may have been wrapped, or eaten. What is
            # not raised again was answered: with a refusal below, or with its own problem document before.
            if passage.stalled:
                log.warning("a client stopped reading", extra={"action": "console.stalled"})
            elif not passage.too_large and passage.status in (0, 200):
                # What was met before the answer began is answered and written down in problems.unforeseen.
                log.exception("an answer was cut off", extra={"action": "console.cut_off"})
                raise
        finally:
            if passage.too_large and not passage.status:
                await passage.refuse(scope)
            self._note(scope, passage.status, time.monotonic() - began)

    def _note(self, scope: Scope, status: int, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", "none")
        if scope["path"] in ("/healthz", "/readyz"):
            return
        method = scope["method"] if scope["method"] in ("GET", "POST") else "other"
        self._metrics.add(names.API_REQUESTS, method=method, route=route, status=str(status))
        self._metrics.observe(names.API_SECONDS, seconds, route=route)
        bearer = scope.get("state", {}).get("bearer")
        log.log(
            logging.INFO if method != "GET" or status >= 400 else logging.DEBUG,
            "%s %s",
            method,
            route,
            extra={
                "action": "console.request",
                "status": status,
                "who": getattr(bearer, "name", "nobody"),
                "client": (scope.get("client") or ("unknown", 0))[0],
                "ms": round(seconds * 1000, 1),
            },
        )


class _Passage:
    """One request's way in and out: counted, limited in size and in patience."""

    def __init__(self, receive: Receive, send: Send, stalled_s: float) -> None:
        self.status = 0
        self.stalled = self.too_large = False
        self._receive = receive
        self._send = send
        self._stalled_s = stalled_s
        self._taken = 0

    def fits(self, scope: Scope) -> bool:
        """Whether the body is as large as it may be, by what the request says: before any of it is read."""
        length = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
        self.too_large = not length.isdigit() or int(length) > LARGEST_BODY
        return not self.too_large

    async def receive(self) -> Message:
        message = await self._receive()
        self._taken += len(message.get("body", b""))
        if self._taken > LARGEST_BODY:
            self.too_large = True
            raise TooLarge
        return message

    async def send(self, message: Message) -> None:
        if self.too_large:
            return  # whatever is said of half a body, the answer is ours
        await self._out(message)

    async def refuse(self, scope: Scope) -> None:
        """Too large. The rest of it is not read: the connection ends with the answer."""
        answer = document(413, f"a body is {LARGEST_BODY:,} bytes at most", headers={"Connection": "close"})
        await answer(scope, self._receive, self._out)

    async def _out(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message = {**message, "headers": [*message["headers"], *_HEADERS]}
        try:
            async with asyncio.timeout(self._stalled_s):
                await self._send(message)
        except TimeoutError:
            self.stalled = True
            # Closing would wait until what is buffered is read, which is never.
            transport: Any = getattr(getattr(self._send, "__self__", None), "transport", None)
            if transport is not None:
                transport.abort()
            raise Stalled from None
