"""What Kafka says of a demo's topics: who leads, how far the twin's group has committed, and every id in the log."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, cast

from tallymark.broker import offsets, profiles
from tallymark.broker.kafka import (
    AdminClient,
    Consumer,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from tallymark.errors import Problem, TallymarkError
from tallymark.message import CE_ID, TM_POSITION

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from tallymark.broker.kafka import Message

_PATIENCE_S = 60.0
_ANSWER_S = 5.0


def leader(admin: AdminClient, topics: Collection[str]) -> int:
    """The broker that leads most partitions of these topics."""
    found = admin.list_topics(timeout=10).topics
    led = Counter(
        partition.leader
        for topic in topics
        for partition in found[topic].partitions.values()
        if partition.leader > 0
    )
    if not led:
        raise Problem(f"no partition of {', '.join(topics)} has a leader")
    return int(led.most_common(1)[0][0])


class GroupLook:
    """How far a group has committed. By a consumer that never joins it: an admin client that asks for a group's offsets
    while its coordinator moves takes the whole process down (librdkafka#5040)."""

    def __init__(self, client: Mapping[str, str], group: str, topic: str, partitions: int) -> None:
        self._consumer = Consumer({**profiles.reader(client), "group.id": group})
        self._places = [TopicPartition(topic, number) for number in range(partitions)]

    def committed(self) -> int | None:
        """The sum of its committed offsets; None when nobody can say now."""
        try:
            found = self._consumer.committed(self._places, timeout=_ANSWER_S)
        except KafkaException:
            return None
        return sum(int(each.offset) for each in found if each.offset > 0)

    def close(self) -> None:
        self._consumer.close()


def ends(admin: AdminClient, topic: str) -> int | None:
    """The sum of a topic's end offsets; None when nobody can say now."""
    try:
        places = offsets.partitions(admin, [topic])
        found = offsets.bounds(admin, places)
    except TallymarkError:
        return None
    return sum(end for _, end in found.values()) if len(found) == len(places) else None


def read(client: Mapping[str, str], topic: str, partitions: int) -> list[tuple[str, bytes, int]]:
    """Id, key and outbox position of every committed message, partition by partition, in order; a plain consumer."""
    consumer = Consumer(profiles.reader(client))
    found: dict[int, list[tuple[str, bytes, int]]] = {number: [] for number in range(partitions)}
    ended: set[int] = set()
    try:
        consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
        deadline = time.monotonic() + _PATIENCE_S
        while len(ended) < partitions and time.monotonic() < deadline:
            for message in consumer.consume(5000, timeout=0.5):
                error, number = message.error(), message.partition() or 0
                if error is None:
                    headers = _headers(message)
                    id_, position = headers[CE_ID].decode(), int(headers[TM_POSITION])
                    found[number].append((id_, bytes(message.key() or b""), position))
                elif error.code() == KafkaError._PARTITION_EOF:
                    ended.add(number)
    finally:
        consumer.close()
    if len(ended) < partitions:
        raise Problem(f"topic {topic} could not be read to its end within {_PATIENCE_S:g} s")
    return [each for number in range(partitions) for each in found[number]]


def _headers(message: Message) -> dict[str, bytes]:
    # The client's types know of a dictionary too, which it never gives.
    return {name: bytes(value) for name, value in cast("list[tuple[str, bytes]]", message.headers() or [])}
