"""A look at what lies at an offset: when it was logged, for a lag in seconds; and whether Kafka reads on there."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime

from tallymark.broker import faults, profiles
from tallymark.broker.kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from tallymark.broker.look import Look
from tallymark.errors import Unreachable

Place = tuple[str, int]

_CUT = frozenset({KafkaError._LOG_TRUNCATION, KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE})


def refused(
    client: profiles.Client, positions: Mapping[Place, tuple[int, int]], *, within_s: float = 10.0
) -> dict[Place, str]:
    """Where Kafka does not read on at an offset beside the epoch of the leader that it was read under, and what it says.

    So a log is known that was cut back and has grown since: its end says nothing of that.
    """
    if not positions:
        return {}
    found: dict[Place, str] = {}
    waiting = set(positions)
    reader = Consumer({**profiles.reader(client), "auto.offset.reset": "error"})
    try:
        reader.assign(
            [
                TopicPartition(*place, offset, leader_epoch=epoch)
                for place, (offset, epoch) in positions.items()
            ]
        )
        deadline = time.monotonic() + within_s
        while waiting:
            if time.monotonic() > deadline:
                raise Unreachable("Kafka does not say whether it reads on at {}/{}".format(*min(waiting)))
            message = reader.poll(0.2)
            if message is None:
                continue
            place = (message.topic() or "", message.partition() or 0)
            error = message.error()
            if error is not None and error.code() in _CUT:
                found[place] = error.str()
            elif error is not None and error.code() != KafkaError._PARTITION_EOF:
                continue
            if place in waiting:
                waiting.discard(place)
                reader.incremental_unassign([TopicPartition(*place)])
    except KafkaException as error:
        raise faults.explain(error, doing="asking whether a log was cut") from error
    finally:
        reader.close()
    return found


def oldest_left(
    client: profiles.Client, bounds: Mapping[Place, tuple[int, int]], upto: Mapping[Place, int]
) -> dict[Place, datetime | None]:
    """Kafka's time of the first message that whoever came so far has not got, None where there is none; places of which
    Kafka says nothing are left out.

    What its log has lost counts for nothing: of that nobody knows how old it was.
    """
    left = {place: max(offset, bounds[place][0]) for place, offset in upto.items() if place in bounds}
    ahead = {place: offset for place, offset in left.items() if offset < bounds[place][1]}
    return dict.fromkeys(left.keys() - ahead.keys()) | logged_at(client, ahead)


def logged_at(
    client: profiles.Client, offsets: Mapping[Place, int], *, within_s: float = 5.0
) -> dict[Place, datetime | None]:
    """Kafka's time of the first message at or after each offset, None where only markers lie there; places of which it
    says nothing in time, or that may not be read, are left out: nobody knows how old what is there is.
    """
    found = _firsts(client, offsets, within_s, doing="reading the oldest message not yet kept")
    return {
        place: None if first is None else datetime.fromtimestamp(first.timestamp()[1] / 1000, UTC)
        for place, first in found.items()
    }


def claims(
    client: profiles.Client, offsets: Mapping[Place, int], *, within_s: float = 10.0
) -> dict[Place, int | None]:
    """Which position the message at each offset claims; None where none lies there, or it claims none."""
    found = _firsts(client, offsets, within_s, doing="looking for what was certified")
    if silent := offsets.keys() - found.keys():
        raise Unreachable("Kafka does not say what lies at {}/{}".format(*min(silent)))
    there = Look()
    there.add([first for first in found.values() if first is not None])
    return dict.fromkeys(offsets) | {
        (each.topic, each.partition): each.position
        for each in there.polled().messages
        if each.offset == offsets[each.topic, each.partition]
    }


def _firsts(
    client: profiles.Client, offsets: Mapping[Place, int], within_s: float, *, doing: str
) -> dict[Place, Message | None]:
    """The first message at or after each offset; None where only markers lie there. What Kafka does not say in time is
    left out."""
    if not offsets:
        return {}
    found: dict[Place, Message | None] = {}
    waiting = set(offsets)
    reader = Consumer({**profiles.reader(client), "auto.offset.reset": "earliest"})
    try:
        reader.assign([TopicPartition(*place, offset) for place, offset in offsets.items()])
        deadline = time.monotonic() + within_s
        while waiting and time.monotonic() < deadline:
            message = reader.poll(0.2)
            if message is None:
                continue
            place = (message.topic() or "", message.partition() or 0)
            error = message.error()
            if error is not None and error.code() != KafkaError._PARTITION_EOF:
                continue
            if place in waiting:
                waiting.discard(place)
                reader.incremental_unassign([TopicPartition(*place)])
                found[place] = None if error is not None else message
    except KafkaException as error:
        raise faults.explain(error, doing=doing) from error
    finally:
        reader.close()
    return found
