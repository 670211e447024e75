"""The tally: what it found, what it certified, and when it ran."""

from __future__ import annotations

import json
from typing import Annotated

from fastapi import APIRouter, Query

from tallymark.console import asked
from tallymark.console.gate import Viewer
from tallymark.console.problems import Refused, documented
from tallymark.console.shapes import text_of
from tallymark.console.stationshapes import Certificate, Certificates, Finding, Findings, TallyRun
from tallymark.console.world import Served, World
from tallymark.lifecycle import Verdict

# Any hex is a cursor: where to go on is a name, and whatever it is, some names stand behind it.
HexCursor = Annotated[
    str | None, Query(pattern=r"^([0-9a-f]{2}){1,600}$", description="`next` of the page before")
]
ConsumerQuery = Annotated[
    str | None,
    Query(min_length=1, max_length=255, pattern=r"^[^\x00]+$", description="only of this consumer"),
]


def router(world: World) -> APIRouter:
    """The routes of the tally."""
    routes = APIRouter(tags=["tally"])

    @routes.get("/findings", responses=documented(404))
    def findings(
        bearer: Viewer,  # noqa: ARG001 - for who may
        outbox: asked.OutboxQuery = None,
        verdict: Annotated[Verdict | None, Query(description="only of this verdict")] = None,
        consumer: ConsumerQuery = None,
        over: Annotated[bool, Query(description="also those that are over")] = False,
        cursor: HexCursor = None,
        limit: asked.Limit = 50,
    ) -> Findings:
        """Messages that are out of step between outbox, log and inbox, each with the stage where it went wrong."""
        served = _with_tally(world, outbox)
        after = (bytes.fromhex(cursor).decode("utf-8", "replace") if cursor else "").split("\x00")[:3]
        id_, verdict_after, consumer_after = [*after, "", "", ""][:3]
        parameters = {
            "id": id_,
            "verdict_after": verdict_after,
            "consumer_after": consumer_after,
            "over": over,
            "verdict": str(verdict) if verdict else None,
            "consumer": consumer,
            "limit": limit + 1,
        }
        with served.pool.connection() as connection:
            rows = connection.execute(served.queries["findings"], parameters).fetchall()
        items = [
            Finding(**{**dict(zip(Finding.model_fields, row, strict=True)), "key": text_of(row[5])})
            for row in rows[:limit]
        ]
        more = "\x00".join(rows[limit - 1][:3]).encode().hex() if len(rows) > limit else None
        return Findings(items=items, next=more)

    @routes.get("/certificates", responses=documented(404))
    def certificates(
        bearer: Viewer,  # noqa: ARG001 - for who may
        outbox: asked.OutboxQuery = None,
        cursor: asked.Cursor = None,
        limit: asked.Limit = 50,
    ) -> Certificates:
        """Windows in which everything was accounted for: a chain, the newest first. `tally verify` checks it."""
        served = _with_tally(world, outbox)
        before = min(int(cursor), asked.BIGGEST) if cursor else asked.BIGGEST
        with served.pool.connection() as connection:
            rows = connection.execute(
                served.queries["certificates"], {"before": before, "limit": limit + 1}
            ).fetchall()
        items = [Certificate(**dict(zip(Certificate.model_fields, row, strict=True))) for row in rows]
        return Certificates(
            items=items[:limit], next=str(items[limit - 1].number) if len(items) > limit else None
        )

    @routes.get("/tallies", responses=documented(404))
    def tallies(
        bearer: Viewer,  # noqa: ARG001 - for who may
        outbox: asked.OutboxQuery = None,
        limit: asked.Limit = 20,
    ) -> list[TallyRun]:
        """Runs of the tally, the newest first, with what each came to."""
        served = _with_tally(world, outbox)
        with served.pool.connection() as connection:
            rows = connection.execute(served.queries["tallies"], {"limit": limit}).fetchall()
        return [
            TallyRun(**{**dict(zip(TallyRun.model_fields, row, strict=True)), "summary": json.loads(row[6])})
            for row in rows
        ]

    return routes


def _with_tally(world: World, outbox: str | None) -> Served:
    served = world.outbox(outbox)
    if not served.rooms().findings:
        raise Refused(404, "this outbox has no tally yet", remedy="run `tallymark init` on its database")
    return served
