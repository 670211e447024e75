"""For admins: who did what and why, and whose tokens there are."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Annotated

from fastapi import APIRouter, Path, Query

from tallymark.console import asked
from tallymark.console.gate import Admin
from tallymark.console.problems import Refused, documented
from tallymark.console.shapes import Audited, AuditPage, Because, Done, TokenInfo
from tallymark.console.world import World
from tallymark.store.postgres.tokens import Tokens

_CURSOR = r"[0-9]{1,16}\.[0-9]{1,18}"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
AuditCursor = Annotated[str | None, Query(pattern=f"^{_CURSOR}$", description="`next` of the page before")]
DatabaseName = Annotated[
    str | None,
    Query(min_length=1, max_length=63, pattern=r"^[^\x00]+$", description="default: the one with the tokens"),
]
TokenName = Annotated[
    str,
    Path(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._@-]{0,62}$", description="its name or number", examples=["grafana"]
    ),
]


def router(world: World) -> APIRouter:
    """The routes of admins."""
    routes = APIRouter(tags=["admin"])

    @routes.get("/audit", responses=documented(404))
    def audit(
        bearer: Admin,  # noqa: ARG001 - for who may
        database: DatabaseName = None,
        cursor: AuditCursor = None,
        limit: asked.Limit = 50,
    ) -> AuditPage:
        """Who did what, to what and why, the newest first. Each database has an audit of its own."""
        served = world.tokens if database is None else world.databases.get(database)
        if served is None:
            raise Refused(404, "there is no such database", remedy=f"there are: {', '.join(world.databases)}")
        moment, seq = asked.numbers(cursor, _CURSOR, (10**16 - 1, asked.BIGGEST))
        parameters = {"at": _EPOCH + moment * _MICROSECOND, "seq": seq, "limit": limit + 1}
        with served.pool.connection() as connection:
            rows = connection.execute(served.queries["audit_page"], parameters).fetchall()
        items = [
            Audited(at=at, who=who, action=action, subject=subject, reason=reason, details=_object(details))
            for at, _, who, action, subject, reason, details in rows[:limit]
        ]
        more = len(rows) > limit
        return AuditPage(
            items=items,
            next=f"{(rows[limit - 1][0] - _EPOCH) // _MICROSECOND}.{rows[limit - 1][1]}" if more else None,
        )

    @routes.get("/tokens", responses=documented())
    def tokens(bearer: Admin) -> list[TokenInfo]:  # noqa: ARG001 - for who may
        """All tokens, also those that no longer count; none of them is shown."""
        found = Tokens(world.tokens.url, schema=world.tokens.schema).all()
        return [TokenInfo.model_validate(each) for each in found]

    @routes.post("/tokens/{token}/revoke", responses=documented(413))
    def revoke(bearer: Admin, token: TokenName, body: Because) -> Done:
        """End a token. Safe to repeat."""
        store = Tokens(world.tokens.url, schema=world.tokens.schema)
        done = store.revoke(token, who=f"token {bearer.name}", reason=body.reason)
        if done is None:
            return Done(changed=[], unchanged={token: "no such token is in use"})
        return Done(changed=[done.name])

    return routes


def _object(text: str) -> dict[str, object]:
    found = json.loads(text)
    return found if isinstance(found, dict) else {"value": found}
