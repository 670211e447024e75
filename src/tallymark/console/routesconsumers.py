"""Consumers: positions and lag, parked keys, dead letters; and runs of the pipeline."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

from fastapi import APIRouter, Query

from tallymark.console import asked
from tallymark.console.gate import Viewer, reason_for
from tallymark.console.lag import Ends, Lag
from tallymark.console.problems import documented
from tallymark.console.shapes import text_of
from tallymark.console.stationshapes import (
    Consumer,
    DeadLetter,
    DeadLetters,
    ParkedKey,
    ParkedKeys,
    Position,
    Process,
    Run,
)
from tallymark.console.world import World
from tallymark.lifecycle import DeadState
from tallymark.store.postgres.inboxoperators import ConsumerStatus

_LOWEST = -(2**63)
KeyCursor = Annotated[str | None, Query(pattern=r"^[0-9]{1,20}$", description="`next` of the page before")]


def router(world: World, lag: Lag) -> APIRouter:
    """The routes of consumers."""
    routes = APIRouter(tags=["consumers"])

    @routes.get("/consumers", responses=documented())
    def consumers(bearer: Viewer) -> list[Consumer]:  # noqa: ARG001 - for who may
        """Every consumer: positions with owner and epoch, lag in messages and seconds, what failed."""
        found = [(served.name, each) for served in world.inboxes() for each in served.inbox.status()]
        ends = lag.of(each for _, each in found)
        return [shown(database, each, ends) for database, each in found]

    @routes.get("/consumers/{name}", responses=documented(404))
    def one(bearer: Viewer, name: asked.ConsumerName) -> Consumer:  # noqa: ARG001 - for who may
        """One consumer."""
        served = world.consumer(name)
        status = served.inbox.status(name)[0]
        return shown(served.name, status, lag.of([status]))

    @routes.get("/consumers/{name}/dead-letters", responses=documented(404))
    def dead_letters(
        bearer: Viewer,
        name: asked.ConsumerName,
        state: Annotated[DeadState | None, Query(description="default: dead and retrying")] = None,
        topic: asked.Topic = None,
        database: asked.DatabaseQuery = None,
        cursor: asked.Cursor = None,
        limit: asked.Limit = 50,
    ) -> DeadLetters:
        """Messages that failed at the inbox for good, the oldest first."""
        served = world.consumer(name, database)
        states = [state] if state else [DeadState.DEAD, DeadState.RETRYING]
        parameters = {
            "consumer": name,
            "after": min(int(cursor), asked.BIGGEST) if cursor else 0,
            "states": [str(each) for each in states],
            "topic": topic,
            "limit": limit + 1,
        }
        with served.pool.connection() as connection:
            rows = connection.execute(served.queries["dead_letters"], parameters).fetchall()
        fields = list(DeadLetter.model_fields)
        said = [dict(zip(fields, row, strict=True)) for row in rows]
        items = [
            DeadLetter(**{**row, "key": text_of(row["key"]), "reason": reason_for(bearer, row["reason"])})
            for row in said
        ]
        return DeadLetters(
            items=items[:limit], next=str(items[limit - 1].number) if len(items) > limit else None
        )

    @routes.get("/consumers/{name}/parked-keys", responses=documented(404))
    def parked_keys(
        bearer: Viewer,
        name: asked.ConsumerName,
        database: asked.DatabaseQuery = None,
        cursor: KeyCursor = None,
        limit: asked.Limit = 50,
    ) -> ParkedKeys:
        """Keys that wait behind a message that failed."""
        served = world.consumer(name, database)
        # Hashes go from minus to plus; a cursor is a plain number.
        after = min(int(cursor) + _LOWEST, asked.BIGGEST) if cursor else _LOWEST
        parameters = {"consumer": name, "after": after, "limit": limit + 1}
        with served.pool.connection() as connection:
            rows = connection.execute(served.queries["parked_keys"], parameters).fetchall()
        said = [dict(zip(ParkedKey.model_fields, row[2:], strict=True)) for row in rows]
        items = [ParkedKey(**{**row, "reason": reason_for(bearer, row["reason"])}) for row in said]
        more = str(rows[limit - 1][0] - _LOWEST) if len(rows) > limit else None
        return ParkedKeys(items=items[:limit], next=more)

    @routes.get("/pipeline/runs", responses=documented())
    def runs(bearer: Viewer, limit: asked.Limit = 20) -> list[Run]:  # noqa: ARG001 - for who may
        """Runs of the pipeline, the newest first, and how far each has come."""
        found = []
        for served in world.databases.values():
            if not served.rooms().runs:
                continue
            with served.pool.connection() as connection:
                rows = connection.execute(served.queries["runs"], {"limit": limit}).fetchall()
            found += [
                Run(
                    database=served.name,
                    **dict(zip([f for f in Run.model_fields if f != "database"], row, strict=True)),
                )
                for row in rows
            ]
        return sorted(found, key=lambda run: run.started_at, reverse=True)[:limit]

    return routes


def shown(database: str, status: ConsumerStatus, ends: Ends) -> Consumer:
    """A consumer with what Kafka adds to it."""
    now = datetime.now(UTC)
    lags = [ends.lag(each) for each in status.positions]
    ages = [ends.lag_s(each, now) for each in status.positions]
    # Without a position nobody knows: it has not begun, or keeps them in Kafka.
    known = bool(lags) and not status.in_kafka and bool(ends.ends) and None not in lags
    return Consumer(
        name=status.consumer,
        database=database,
        topics=status.topics,
        mode=status.mode,
        paused=status.paused,
        healthy=status.healthy,
        lag=sum(each for each in lags if each is not None) if known else None,
        lag_s=max((each for each in ages if each is not None), default=0.0) if known else None,
        queued=status.queued,
        parked_keys=status.parked_keys,
        dead=status.dead,
        retrying=status.retrying,
        applied_late=status.applied_late,
        discarded=status.discarded,
        rate=status.rate,
        positions=[
            Position(
                topic=each.topic,
                partition=each.partition,
                next_offset=each.next_offset,
                log_end=ends.ends.get(each.place),
                lag=ends.lag(each),
                lag_s=ends.lag_s(each, now),
                epoch=each.epoch,
                owner=each.owner,
                owner_kind=each.owner_kind,
                alive=each.alive,
                halted=each.halted,
                kept=each.kept,
                fenced=each.fenced,
                logged_at=each.logged_at,
                changed_at=each.changed_at,
            )
            for each in status.positions
        ],
        processes=[Process.model_validate(each) for each in status.instances],
    )
