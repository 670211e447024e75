"""How `tallymark inbox status` looks: what the database says of each position, and the log's end beside it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from tallymark.cli.output import counted, plain, table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import RenderableType

    from tallymark.store.postgres.inboxoperators import ConsumerStatus, PositionStatus

Place = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Ends:
    """What Kafka says of the partitions: their ends, and when the first message not yet kept was logged."""

    ends: Mapping[Place, int]
    # None where nothing lies ahead; not there where Kafka did not say.
    oldest: Mapping[Place, datetime | None]
    # Why Kafka said nothing, where it did not.
    silence: str = ""


def as_data(consumers: Sequence[ConsumerStatus], ends: Ends) -> list[dict[str, Any]]:
    """Everything, for --json."""
    return [
        {
            **{k: v for k, v in _fields(consumer).items() if k != "positions"},
            "healthy": consumer.healthy,
            "lag": _total(consumer, ends),
            "kafka": ends.silence or None,
            "positions": [
                {
                    **_fields(position),
                    "log_end": ends.ends.get(position.place),
                    "lag": _lag(position, ends),
                    "lag_s": _lag_s(position, ends),
                }
                for position in consumer.positions
            ],
        }
        for consumer in consumers
    ]


def shown(
    consumers: Sequence[ConsumerStatus], ends: Ends, option: str = "", retired: Sequence[str] = ()
) -> list[RenderableType]:
    """For people: a headline and a table per consumer, then whatever needs someone's attention.

    `option` ends the commands that it names; `retired` are those that were stopped for good.
    """
    if not consumers and not retired:
        return ["no consumer has run here yet: `tallymark inbox run APP:INBOX`"]
    parts: list[RenderableType] = [f"retired: {', '.join(retired)}"] if retired else []
    for consumer in consumers:
        parts += _one(consumer, ends, option)
    if ends.silence:
        parts.append(f"no lag: {ends.silence}")
    return parts


def _one(consumer: ConsumerStatus, ends: Ends, option: str) -> list[RenderableType]:
    total = _total(consumer, ends)
    parts: list[RenderableType] = [
        f"{consumer.consumer}: {consumer.mode}{', paused' if consumer.paused else ''}, "
        f"{'lag unknown' if total is None else f'{total:,} behind'}, {consumer.rate:,.0f} effects/s over the last "
        f"minute",
        table(
            ("topic", "partition", "position", "log end", "lag", "lag s", "epoch", "owner", "state"),
            [
                (
                    each.topic,
                    each.partition,
                    each.next_offset,
                    ends.ends.get(each.place),
                    _lag(each, ends),
                    _lag_s(each, ends),
                    each.epoch,
                    each.owner,
                    "halted" if each.halted else "owned" if each.alive else "free",
                )
                for each in consumer.positions
            ],
        ),
    ]
    for instance in consumer.instances:
        parts.append(
            f"process {instance.owner}: {instance.mode}, up {instance.up_s:,.0f} s, {instance.version}"
        )
    if not consumer.instances:
        parts.append("no process of it is running: `tallymark inbox run APP:INBOX`")
    if consumer.queued:
        parts.append(
            f"{consumer.queued:,} kept and not yet applied, {counted(consumer.parked_keys, 'key')} held up"
        )
    if consumer.dead or consumer.retrying:
        parts.append(
            f"{counted(consumer.dead, 'dead letter')}, {consumer.retrying:,} being tried again: "
            f"`tallymark failed list --at inbox{option}`"
        )
    fenced = sum(each.fenced for each in consumer.positions)
    if fenced:
        parts.append(f"writes of former owners that were refused: {fenced:,}")
    parts += [f"halted: {each.halted}" for each in consumer.positions if each.halted]
    return parts


def _fields(value: object) -> dict[str, Any]:
    found = plain(value)
    assert isinstance(found, dict)  # noqa: S101 - a dataclass becomes one
    return found


def _lag(position: PositionStatus, ends: Ends) -> int | None:
    end = ends.ends.get(position.place)
    return None if end is None else max(0, end - position.next_offset)


def _lag_s(position: PositionStatus, ends: Ends) -> float | None:
    """The age of the first message that is not kept yet; 0 where only markers, or nothing, lie ahead."""
    if position.place not in ends.ends or position.place not in ends.oldest:
        return None
    oldest = ends.oldest[position.place]
    return 0.0 if oldest is None else max(0.0, round((datetime.now(UTC) - oldest).total_seconds(), 1))


def _total(consumer: ConsumerStatus, ends: Ends) -> int | None:
    lags = [_lag(each, ends) for each in consumer.positions]
    return None if None in lags else sum(lag for lag in lags if lag is not None)
