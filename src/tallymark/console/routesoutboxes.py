"""Outboxes: lanes, relays, batches, and what is parked."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from tallymark.console import asked
from tallymark.console.gate import Viewer
from tallymark.console.problems import documented
from tallymark.console.shapes import text_of
from tallymark.console.stationshapes import (
    Batch,
    Batches,
    HeldTopic,
    Lane,
    Outbox,
    Parked,
    ParkedMessages,
    Relay,
)
from tallymark.console.world import Served, World
from tallymark.lifecycle import BatchState, ParkedState

_BATCH_CURSOR = r"[0-9]{1,18}\.[0-9]{1,4}\.[0-9]{1,18}"
BatchCursor = Annotated[
    str | None, Query(pattern=f"^{_BATCH_CURSOR}$", description="`next` of the page before")
]
LaneQuery = Annotated[int | None, Query(ge=0, le=255, description="only this lane")]


def router(world: World) -> APIRouter:
    """The routes of outboxes."""
    routes = APIRouter(tags=["outboxes"])

    @routes.get("/outboxes", responses=documented())
    def outboxes(bearer: Viewer) -> list[Outbox]:  # noqa: ARG001 - for who may
        """Every outbox at a glance: backlog, lanes and their owners, relays, what is parked or held."""
        return [_outbox(each) for each in world.outboxes()]

    @routes.get("/outboxes/{outbox}", responses=documented(404))
    def one(bearer: Viewer, outbox: asked.OutboxName) -> Outbox:  # noqa: ARG001 - for who may
        """One outbox at a glance."""
        return _outbox(world.outbox(outbox))

    @routes.get("/outboxes/{outbox}/batches", responses=documented(404))
    def batches(
        bearer: Viewer,  # noqa: ARG001 - for who may
        outbox: asked.OutboxName,
        lane: LaneQuery = None,
        state: Annotated[BatchState | None, Query(description="only in this state")] = None,
        cursor: BatchCursor = None,
        limit: asked.Limit = 50,
    ) -> Batches:
        """Batches, the newest first."""
        served = world.outbox(outbox)
        covered, before, number = asked.numbers(cursor, _BATCH_CURSOR, (asked.BIGGEST, 9999, asked.BIGGEST))
        parameters = {
            "covered": covered,
            "lane_before": min(before, 9999),
            "number": number,
            "lane": lane,
            "state": str(state) if state else None,
            "limit": limit + 1,
        }
        with served.pool.connection() as connection:
            rows = connection.execute(served.queries["batches"], parameters).fetchall()
        items = [Batch(**dict(zip(Batch.model_fields, row, strict=True))) for row in rows]
        last = items[limit - 1] if len(items) > limit else None
        cursor_after = f"{last.covered}.{last.lane}.{last.number}" if last else None
        return Batches(items=items[:limit], next=cursor_after)

    @routes.get("/outboxes/{outbox}/parked", responses=documented(404))
    def parked(
        bearer: Viewer,  # noqa: ARG001 - for who may
        outbox: asked.OutboxName,
        state: Annotated[ParkedState | None, Query(description="default: those not finished")] = None,
        topic: asked.Topic = None,
        cursor: asked.Cursor = None,
        limit: asked.Limit = 50,
    ) -> ParkedMessages:
        """Messages that failed at the relay, and those that wait behind them, by position."""
        served = world.outbox(outbox)
        states = [state] if state else [ParkedState.FAILED, ParkedState.WAITING, ParkedState.RETRYING]
        parameters = {
            "after": min(int(cursor), asked.BIGGEST) if cursor else -1,
            "states": [str(each) for each in states],
            "topic": topic,
            "limit": limit + 1,
        }
        with served.pool.connection() as connection:
            rows = connection.execute(served.queries["parked_messages"], parameters).fetchall()
        items = [
            Parked(**{**dict(zip(Parked.model_fields, row, strict=True)), "key": text_of(row[3])})
            for row in rows
        ]
        return ParkedMessages(
            items=items[:limit], next=str(items[limit - 1].position) if len(items) > limit else None
        )

    return routes


def _outbox(served: Served) -> Outbox:
    status = served.operators.status()
    return Outbox(
        name=served.name,
        outbox_id=status.outbox_id,
        last_position=status.last_position,
        backlog=status.backlog,
        oldest_pending_s=status.oldest_pending_s,
        rate=status.rate,
        delayed=status.delayed,
        parked=status.parked,
        waiting=status.waiting,
        in_doubt_resolved=status.in_doubt_resolved,
        fenced=status.fenced,
        healthy=status.healthy,
        lanes=[Lane.model_validate(each) for each in status.lanes],
        relays=[Relay.model_validate(each) for each in status.relays],
        held_topics=[HeldTopic.model_validate(each) for each in status.held_topics],
    )
