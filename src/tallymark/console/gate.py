"""Nobody comes in without a token. Stands before everything else: no body is read and no route is known to a stranger.

`/healthz` and `/readyz` are open. The bearer is put into the request's state, where `may` finds it.
"""

from __future__ import annotations

import re
import time
from typing import Annotated

import anyio.to_thread
from fastapi import Depends, Request, Security
from fastapi.security import HTTPBearer
from starlette.types import ASGIApp, Receive, Scope, Send

from tallymark.console.guard import FailedTokens
from tallymark.console.problems import Refused, document, of_error
from tallymark.console.world import World
from tallymark.errors import TallymarkError
from tallymark.lifecycle import TokenRole
from tallymark.observe import names
from tallymark.store.postgres.tokens import Bearer, bearer_of, hashed
from tallymark.store.queries import load

OPEN = frozenset({"/healthz", "/readyz"})
_CHALLENGE = {"WWW-Authenticate": 'Bearer realm="tallymark"'}
# Longer than any of ours; what is longer is not hashed.
_LONGEST = 200
_STATE = "bearer"


class Gate:
    """Middleware: finds out who comes, or sends them away."""

    def __init__(self, app: ASGIApp, world: World, failed: FailedTokens | None = None) -> None:
        self._app = app
        self._world = world
        self._failed = failed or FailedTokens()
        self._query = load("tallymark.store.postgres", "tokens.sql", world.tokens.schema)["bearer"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in OPEN:
            await self._app(scope, receive, send)
            return
        try:
            bearer = await self._bearer(scope)
        except Refused as refused:
            answer = document(refused.status, refused.detail, remedy=refused.remedy, headers=refused.headers)
            await answer(scope, receive, send)
            return
        except TallymarkError as error:
            await of_error(error)(scope, receive, send)
            return
        scope.setdefault("state", {})[_STATE] = bearer
        await self._app(scope, receive, send)

    async def _bearer(self, scope: Scope) -> Bearer:
        token = _token(scope)
        address = (scope.get("client") or ("unknown", 0))[0]
        digest = hashed(token) if token else None
        wait_s = self._failed.wait_s(address, digest, time.monotonic())
        if wait_s > 0:
            self._count("too many")
            raise Refused(
                429,
                "too many wrong tokens from this address",
                remedy="wait, and come with a token that counts",
                headers={"Retry-After": str(int(wait_s) + 1)},
            )
        if token is None or digest is None:
            self._count("no token")
            raise Refused(
                401,
                "come with a token: Authorization: Bearer tmk_…",
                remedy="`tallymark tokens create --role viewer` makes one",
                headers=_CHALLENGE,
            )
        bearer = await anyio.to_thread.run_sync(self._looked_up, token)
        if bearer is None or not bearer.counts:
            self._failed.was_wrong(address, time.monotonic())
            self._count("wrong token")
            what = "is revoked" if bearer and bearer.revoked else "has expired" if bearer else "is not known"
            raise Refused(
                401,
                f"this token {what}",
                remedy="`tallymark tokens create` makes another",
                headers={"WWW-Authenticate": f'{_CHALLENGE["WWW-Authenticate"]}, error="invalid_token"'},
            )
        self._failed.was_right(digest, time.monotonic())
        return bearer

    def _looked_up(self, token: str) -> Bearer | None:
        with self._world.tokens.pool.connection() as connection:
            return bearer_of(connection, self._query, token)

    def _count(self, why: str) -> None:
        self._world.metrics.add(names.API_REFUSED, why=why)


def _token(scope: Scope) -> str | None:
    """The one bearer token of a request; two different ones are none."""
    found = [value for name, value in scope["headers"] if name == b"authorization"]
    if len(found) != 1:
        return None
    scheme, _, token = found[0].decode("latin-1").partition(" ")
    token = token.strip()
    return token if scheme.lower() == "bearer" and 0 < len(token) <= _LONGEST else None


# For the OpenAPI document only: the gate has looked already.
_SCHEME = HTTPBearer(auto_error=False, description="A token of `tallymark tokens create`.")


class May:
    """A dependency: the bearer, if the role may do this."""

    def __init__(self, role: TokenRole) -> None:
        self._role = role

    def __call__(self, request: Request, _credentials: Annotated[object, Security(_SCHEME)] = None) -> Bearer:
        bearer = getattr(request.state, _STATE, None)
        if not isinstance(bearer, Bearer):
            raise Refused(401, "come with a token", headers=_CHALLENGE)
        if not bearer.role.includes(self._role):
            raise Refused(
                403,
                f"a token of role {bearer.role} may not do this",
                remedy=f"it takes one of role {self._role}",
            )
        return bearer


Viewer = Annotated[Bearer, Depends(May(TokenRole.VIEWER))]
Operator = Annotated[Bearer, Depends(May(TokenRole.OPERATOR))]
Admin = Annotated[Bearer, Depends(May(TokenRole.ADMIN))]


# What a handler raised: its class, then its own words.
_RAISED = re.compile(r"([A-Za-z_][\w.]*): .*", re.DOTALL)


def reason_for(bearer: Bearer, reason: str | None) -> str | None:
    """Why something failed, as far as this bearer may know: an exception's words may quote what a message contains."""
    if reason is None or sees_payloads(bearer):
        return reason
    raised = _RAISED.fullmatch(reason)
    return raised[1] if raised else reason


def sees_payloads(bearer: Bearer) -> bool:
    """Whether this bearer may see what messages contain."""
    return bearer.role.includes(TokenRole.OPERATOR)
