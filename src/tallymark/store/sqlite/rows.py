"""How rows of the outbox's file become the relay's values, and those become parameters. Lists are kept as JSON. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from tallymark.lifecycle import BatchKind, Mode
from tallymark.relay.ports import Batch, Lane, Receipt


def owner_values(lane: Lane) -> dict[str, Any]:
    return {"lane": lane.lane, "owner": lane.owner, "epoch": lane.epoch}


def range_values(after: int, upto: int, topic: str | None, without: Sequence[str]) -> dict[str, Any]:
    return {"after": after, "upto": upto, "topic": topic, "without": json.dumps(list(without))}


def fitting(weighed: Sequence[tuple[int, int]], size: int) -> list[int]:
    """Of (position, bytes), the first positions that fit; one giant alone still does."""
    chosen: list[int] = []
    total = 0
    for position, weight in weighed:
        if total >= size:
            break
        chosen.append(position)
        total += weight
    return chosen


def lane_of(row: Sequence[Any]) -> Lane:
    lane, owner, epoch, covered, last_number, number, token, offset, paused, halted = row
    receipt = None if number is None else Receipt(number, token, offset or 0, lane=lane)
    return Lane(lane, owner, epoch, covered, last_number, receipt, bool(paused), halted)


def batch_of(row: Sequence[Any]) -> Batch:
    lane, number, token, kind, after, upto, covered, mode, messages, version, topic, without, age_s = row
    return Batch(
        lane=lane,
        number=number,
        token=token,
        kind=BatchKind(kind),
        after=after,
        upto=upto,
        covered=covered,
        mode=Mode(mode),
        messages=messages,
        version=version,
        topic=topic,
        without_topics=tuple(json.loads(without)),
        age_s=age_s,
    )


def claim_values(batch: Batch | None) -> dict[str, Any]:
    return {
        "claim_covered": batch and batch.covered,
        "claim_number": batch and batch.number,
        "claim_token": batch and batch.token,
        "claim_kind": batch and str(batch.kind),
        "claim_after": batch and batch.after,
        "claim_upto": batch and batch.upto,
        "claim_topic": batch and batch.topic,
        "claim_without": json.dumps(list(batch.without_topics)) if batch else "[]",
        "claim_messages": batch and batch.messages,
        "claim_mode": batch and str(batch.mode),
    }
