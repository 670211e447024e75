"""How `tallymark relay status` looks to people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tallymark.cli.output import table

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tallymark.store.postgres.operators import LaneStatus, OutboxStatus


def shown(status: OutboxStatus, option: str = "") -> list[RenderableType]:
    """Headline, lanes, relays, and whatever needs someone's attention. `option` ends the commands that it names."""
    parts: list[RenderableType] = [
        f"outbox {status.outbox_id}: {_count(status.backlog)} waiting"
        + (f", {sum(held.messages for held in status.held_topics):,} held" if status.held_topics else "")
        + (f", the oldest for {_age(status.oldest_pending_s)}" if status.backlog else "")
        + f", {status.rate:,.0f}/s over the last minute",
        table(
            (
                "lane",
                "owner",
                "epoch",
                "state",
                "backlog",
                "oldest",
                "msg/s",
                "sent",
                "batch",
                "resolved",
                "fenced",
            ),
            [_lane(lane) for lane in status.lanes],
        ),
    ]
    for relay in status.relays:
        risks = f", accepted risks: {', '.join(relay.accepted_risks)}" if relay.accepted_risks else ""
        parts.append(
            f"relay {relay.owner}: {relay.mode}, up {_age(relay.up_s)}, Tallymark {relay.version}{risks}"
        )
    if not status.relays:
        parts.append(f"no relay is running: `tallymark relay run{option}`")
    if status.delayed:
        parts.append(f"{_count(status.delayed)} delayed, the next one due at {status.next_due}")
    if status.parked:
        parts.append(
            f"{_count(status.parked)} parked, {_count(status.waiting)} waiting behind: "
            f"`tallymark failed list{option}`"
        )
    parts += [
        f"topic {held.topic} is {held.state}, {held.messages:,}{' or more' if held.at_least else ''} of its messages "
        f"wait: {held.reason}; once it is put right (`tallymark topics check {held.topic}`) they are sent"
        for held in status.held_topics
    ]
    parts += [f"lane {lane.lane} is halted: {lane.halted}" for lane in status.lanes if lane.halted]
    for floor in status.floors[:1]:
        who = f"pid {floor.pid} ({floor.application or 'unnamed'})" if floor.pid else "a prepared transaction"
        parts.append(f"oldest floor: position {floor.floor}, held by {who} for {_age(floor.age_s)}")
    return parts


def _lane(lane: LaneStatus) -> list[object]:
    state = "halted" if lane.halted else "paused" if lane.paused else "owned" if lane.alive else "free"
    return [
        lane.lane,
        lane.owner if lane.alive else "",
        lane.epoch,
        state,
        _count(lane.backlog),
        _age(lane.oldest_pending_s) if lane.backlog else "",
        round(lane.rate),
        lane.sent,
        lane.last_batch if lane.last_batch >= 0 else None,
        lane.in_doubt_resolved,
        lane.fenced,
    ]


def _count(number: int) -> str:
    return f"{number:,}" if number % 100_000 or not number else f"{number:,} or more"


def _age(seconds: float | None) -> str:
    if seconds is None:
        return "an unknown time"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
