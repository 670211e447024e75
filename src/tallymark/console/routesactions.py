"""What operators do: retry, discard, resend, pause, resume. Each with a reason, safe to repeat, leaving an audit row.

Safe by nature: pausing what is paused and retrying what has not failed change nothing. With an Idempotency-Key a request
that is sent again is answered as it was the first time, also where the first answer was lost on its way.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from fastapi import APIRouter, Depends

from tallymark.console import asked
from tallymark.console.gate import Operator
from tallymark.console.problems import Refused, documented
from tallymark.console.shapes import Because, Done
from tallymark.console.world import Served, World
from tallymark.errors import UsageError
from tallymark.store.postgres.audit import (
    AuditedFailed,
    AuditedInbox,
    AuditedOperators,
    DoneBefore,
    Request,
    done_before,
)
from tallymark.store.postgres.auditresend import AuditedResending
from tallymark.store.postgres.searchpool import Busy
from tallymark.tally.resending import Wanted

_NOT_FAILED = "it has not failed"
Pausing = Literal["pause", "resume"]
Settling = Literal["retry", "discard"]
_FAILS = documented(404, 409, 413)


@dataclass(frozen=True, slots=True)
class Order:
    """Who wants it, why, and under which name of theirs: what every action is asked with."""

    who: str
    reason: str
    key: str | None


def order(bearer: Operator, body: Because, key: asked.IdempotencyKey = None) -> Order:
    return Order(f"token {bearer.name}", body.reason, key)


Ordered = Annotated[Order, Depends(order)]


def router(world: World) -> APIRouter:
    """The routes of actions. Each action has a path of its own: what is none is not mistaken for one."""
    routes = APIRouter(tags=["actions"])
    pausing: tuple[Pausing, ...] = ("pause", "resume")
    settling: tuple[Settling, ...] = ("retry", "discard")
    for each in pausing:
        _pausing(routes, world, each)
    for other in settling:
        _settling(routes, world, other)
    _resending(routes, world)
    return routes


def _pausing(routes: APIRouter, world: World, action: Pausing) -> None:
    """Let a lane or a consumer stand still, or go on."""
    paused = action == "pause"
    means = "stands still: what was begun is finished, nothing new is" if paused else "goes on: more is"
    already = f"it is {action}d already"

    @routes.post(
        f"/outboxes/{{outbox}}/lanes/{{lane}}/{action}",
        responses=_FAILS,
        summary=f"{action.capitalize()} a lane",
        description=f"A lane {means} sent.",
    )
    def lane_of(order: Ordered, outbox: asked.OutboxName, lane: asked.LaneNumber) -> Done:
        served = world.outbox(outbox)
        if lane >= served.operators.status().lane_count:
            raise Refused(404, f"there is no lane {lane}", remedy="GET /v1/outboxes shows the lanes")

        def act(request: Request) -> Done:
            operators = AuditedOperators(served.url, schema=served.schema, request=request)
            lanes = operators.pause([lane], who=order.who, reason=order.reason, paused=paused)
            return _done([f"lane {each}" for each in lanes], {f"lane {lane}": already})

        return _once(world, served, order, f"{action} {outbox} lane {lane}", act)

    @routes.post(
        f"/consumers/{{name}}/{action}",
        responses=_FAILS,
        summary=f"{action.capitalize()} a consumer",
        description=f"A consumer {means} read. It stays in its group.",
    )
    def consumer(order: Ordered, name: asked.ConsumerName, database: asked.DatabaseQuery = None) -> Done:
        served = world.consumer(name, database)

        def act(request: Request) -> Done:
            operators = AuditedInbox(served.url, schema=served.schema, request=request)
            changed = operators.pause(name, who=order.who, reason=order.reason, paused=paused)
            return _done([name] if changed else [], {name: already})

        return _once(world, served, order, f"{action} {_named(name, database)}", act)


def _settling(routes: APIRouter, world: World, action: Settling) -> None:
    """Try what failed again, or give it up."""
    means = "Try again" if action == "retry" else "Give up for good"

    @routes.post(
        f"/outboxes/{{outbox}}/parked/{{id}}/{action}",
        responses=_FAILS,
        summary=f"{action.capitalize()} a parked message",
        description=f"{means} a message that failed at the relay; those that wait behind it follow.",
    )
    def parked(order: Ordered, outbox: asked.OutboxName, id: uuid.UUID) -> Done:
        served = world.outbox(outbox)

        def act(request: Request) -> Done:
            operators = AuditedOperators(served.url, schema=served.schema, request=request)
            settle = operators.retry if action == "retry" else operators.discard
            return _done(settle([str(id)], who=order.who, reason=order.reason), {str(id): _NOT_FAILED})

        return _once(world, served, order, f"{action} {outbox} {id}", act)

    # An id may hold slashes: a foreign producer names its messages as it likes.
    @routes.post(
        f"/consumers/{{name}}/dead-letters/{{id:path}}/{action}",
        responses=_FAILS,
        summary=f"{action.capitalize()} a dead letter",
        description=f"{means} a message that failed at the inbox; its key goes on behind it.",
    )
    def dead_letter(
        order: Ordered, name: asked.ConsumerName, id: asked.MessageId, database: asked.DatabaseQuery = None
    ) -> Done:
        served = world.consumer(name, database)

        def act(request: Request) -> Done:
            failed = AuditedFailed(served.url, schema=served.schema, request=request)
            settle = failed.retry if action == "retry" else failed.discard
            done = settle(who=order.who, reason=order.reason, ids=[id], consumer=name)
            return _done(done.changed, done.refused or {id: _NOT_FAILED})

        return _once(world, served, order, f"{action} {_named(name, database)} {id}", act)


def _resending(routes: APIRouter, world: World) -> None:
    """Send again what was lost on its way."""

    @routes.post("/messages/{id}/resend", responses=_FAILS)
    def resend(order: Ordered, id: uuid.UUID, outbox: asked.OutboxQuery = None) -> Done:
        """Send a message again that was lost on its way. Who has it changes nothing; who has not applies it once."""
        served = world.outbox(outbox)
        consumers = {each.name: each.url for each in world.inboxes()}

        def act(request: Request) -> Done:
            sending = AuditedResending(
                served.url, consumers, schema=served.schema, who=order.who, request=request
            )
            wanted = [Wanted(str(id), "", "", None)]
            try:
                done = sending.resend(
                    wanted, who=order.who, reason=order.reason, any_order=False, dry_run=False
                )
            except UsageError as error:
                raise Refused(404, str(error), remedy="GET /v1/messages/{id} says where it is") from error
            return _done([str(each["id"]) for each in done.resent], done.refused)

        return _once(world, served, order, f"resend {served.name} {id}", act)


def _named(consumer: str, database: str | None) -> str:
    return consumer if database is None else f"{database}/{consumer}"


def _done(changed: Sequence[str], otherwise: Mapping[str, str]) -> Done:
    """What was changed; or, where nothing was, why not."""
    return Done(changed=list(changed), unchanged={} if changed else dict(otherwise))


def _once(world: World, served: Served, order: Order, words: str, act: Callable[[Request], Done]) -> Done:
    """Do it, or say what it came to when it was done before."""
    request = Request(words, order.key)
    earlier = done_before(served.pool, served.schema, order.who, request)
    if earlier is not None:
        return Done(changed=earlier, repeated=True)
    if not world.acting.acquire(timeout=5.0):
        raise Busy("too many actions at once", remedy="try again in a moment")
    try:
        return act(request)
    except DoneBefore as before:
        return Done(changed=before.changed, repeated=True)
    finally:
        world.acting.release()
