"""The inbox's work by hand, in one thread: consume, COPY, the effect, the position, commit.

    python -m bench.bareinbox keep | each | batch TOPIC COUNT

Written the plain good way with confluent-kafka and psycopg: no checks, no epochs, no queue, nothing for what goes wrong.
Ends after COUNT messages. Its times are in its tables (ledger.py); prints {"cpu_seconds"} of the loop.
"""

from __future__ import annotations

import json
import os
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import psycopg
from confluent_kafka import Consumer, TopicPartition

from bench.inboxapp import apply_list, apply_one

BATCH = 10_000
_CONSUMER = "bench"
_COPY = (
    'copy bare.inbox (id, source, topic, partition, "offset", position, key, value, headers, logged_at, consumer) '
    "from stdin"
)
_MOVE = (
    "insert into bare.positions (consumer, topic, partition, next_offset) values (%s, %s, %s, %s) "
    "on conflict (consumer, topic, partition) do update "
    "set next_offset = excluded.next_offset, changed_at = clock_timestamp()"
)
_OWN = ("ce_id", "ce_source", "tm_position")


def consumer_of(topic: str, **more: Any) -> Consumer:
    """All partitions of a topic, from the beginning, committed messages only."""
    consumer = Consumer(
        {
            "bootstrap.servers": os.environ["BENCH_BOOTSTRAP"],
            "group.id": f"bench-{uuid.uuid4()}",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "check.crcs": True,
            **more,
        }
    )
    partitions = consumer.list_topics(topic, 10).topics[topic].partitions
    consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
    return consumer


def batches(consumer: Consumer, count: int) -> Iterator[list[Any]]:
    """Full batches, and the rest."""
    left = count
    while left:
        found = [each for each in consumer.consume(min(BATCH, left), 1.0) if each.error() is None]
        left -= len(found)
        if found:
            yield found


def keep(connection: psycopg.Connection, messages: Sequence[Any]) -> None:
    with connection.cursor() as cursor, cursor.copy(_COPY) as copy:
        for message in messages:
            headers = {name: value.decode() for name, value in message.headers()}
            copy.write_row(
                (
                    headers["ce_id"],
                    headers["ce_source"],
                    message.topic(),
                    message.partition(),
                    message.offset(),
                    headers["tm_position"],
                    message.key(),
                    message.value(),
                    json.dumps({name: value for name, value in headers.items() if name not in _OWN}),
                    datetime.fromtimestamp(message.timestamp()[1] / 1000, UTC),
                    _CONSUMER,
                )
            )


def each(connection: psycopg.Connection, messages: Sequence[Any]) -> None:
    for message in messages:
        apply_one(json.loads(message.value()), connection)


def batch(connection: psycopg.Connection, messages: Sequence[Any]) -> None:
    apply_list([json.loads(message.value()) for message in messages], connection)


def move(connection: psycopg.Connection, messages: Sequence[Any]) -> None:
    ends = {(message.topic(), message.partition()): message.offset() + 1 for message in messages}
    with connection.cursor() as cursor:
        cursor.executemany(_MOVE, [(_CONSUMER, *place, end) for place, end in ends.items()])


EFFECTS: dict[str, Callable[[psycopg.Connection, Sequence[Any]], None] | None] = {
    "keep": None,
    "each": each,
    "batch": batch,
}


def main(name: str, topic: str, count: int) -> None:
    effect = EFFECTS[name]
    consumer = consumer_of(topic)
    with psycopg.connect(os.environ["BENCH_DATABASE"]) as connection:
        cpu = time.process_time()
        for messages in batches(consumer, count):
            keep(connection, messages)
            if effect is not None:
                effect(connection, messages)
            move(connection, messages)
            connection.commit()
    print(json.dumps({"cpu_seconds": time.process_time() - cpu}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
