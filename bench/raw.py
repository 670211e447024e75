"""The bare clients at work, each in a process of its own: `python -m bench.raw WORKLOAD TOPIC COUNT`.

They are the ceilings: nothing that we build on the same clients can be faster. Payloads are made in memory
before the clock starts. Prints one line of JSON: {"count", "seconds", "cpu_seconds"}. Addresses come by
environment (BENCH_BOOTSTRAP, BENCH_DATABASE), as the database's URL holds a password.
"""

from __future__ import annotations

import json
import os
import sys
import time
import uuid
from collections.abc import Callable, Iterable
from typing import Any

import psycopg
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from bench.payloads import Payload, payloads

BATCH = 10_000
SERVE_EVERY = 1_000  # callbacks are served in bunches, as a client in a hurry does


def bare_producer(**more: Any) -> Producer:
    """A producer as fast as its settings can make it, with the guarantees that we ask of ours."""
    return Producer(
        {
            "bootstrap.servers": os.environ["BENCH_BOOTSTRAP"],
            "enable.idempotence": True,
            "acks": "all",
            "compression.type": "lz4",
            # A ceiling must be high: with 5 ms the batches stay small and the rate is a quarter of this.
            "linger.ms": 50,
            "partitioner": "murmur2_random",
            "queue.buffering.max.messages": 500_000,
            "retry.backoff.ms": 10,
            **more,
        }
    )


def _warm(producer: Producer, topic: str) -> None:
    """One message to each partition: connections and producer ids are not what is measured."""
    for partition in producer.list_topics(topic, 10).topics[topic].partitions:
        producer.produce(topic, b"warm", partition=partition)


def _produce(producer: Producer, topic: str, messages: Iterable[Payload], acked: Callable[..., None]) -> None:
    """Hand all to the client; where its queue is full, serve its callbacks and go on."""
    for number, message in enumerate(messages):
        while True:
            try:
                producer.produce(topic, message.value, message.key, on_delivery=acked)
                break
            except BufferError:
                producer.poll(0.05)
        if number % SERVE_EVERY == 0:
            producer.poll(0)


class _Acked:
    """Counts acknowledgements; the first refusal ends the benchmark."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            raise SystemExit(f"not delivered: {error}")
        self.count += 1


def idempotent(topic: str, count: int) -> Callable[[], int]:
    """Produce with idempotence, acks=all and a delivery callback for each message."""
    producer, messages, acked = bare_producer(), list(payloads(count)), _Acked()
    _warm(producer, topic)
    producer.flush(30)

    def work() -> int:
        _produce(producer, topic, messages, acked)
        producer.flush(120)
        return acked.count

    return work


def transactional(topic: str, count: int) -> Callable[[], int]:
    """Produce in transactions of 10,000 messages, one after the other."""
    producer = bare_producer(**{"transactional.id": f"bench-{uuid.uuid4()}"})
    messages, acked = list(payloads(count)), _Acked()
    producer.init_transactions(30)
    producer.begin_transaction()
    _warm(producer, topic)
    producer.commit_transaction(30)

    def work() -> int:
        for start in range(0, count, BATCH):
            producer.begin_transaction()
            _produce(producer, topic, messages[start : start + BATCH], acked)
            producer.commit_transaction(60)
        return acked.count

    return work


def consume(topic: str, count: int) -> Callable[[], int]:
    """Read `count` committed messages from the beginning of every partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": os.environ["BENCH_BOOTSTRAP"],
            "group.id": f"bench-{uuid.uuid4()}",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "check.crcs": True,
        }
    )
    partitions = consumer.list_topics(topic, 10).topics[topic].partitions
    deadline = time.monotonic() + 300

    def work() -> int:
        consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
        seen = 0
        while seen < count and time.monotonic() < deadline:
            seen += sum(1 for message in consumer.consume(BATCH, 0.5) if message.error() is None)
        return seen

    return work


def copy_in(_topic: str, count: int) -> Callable[[], int]:
    """COPY rows into a table with an identity, a uuid primary key, key and value; one transaction."""
    connection = psycopg.connect(os.environ["BENCH_DATABASE"])
    connection.execute("DROP TABLE IF EXISTS ceiling")
    connection.execute(
        "CREATE TABLE ceiling (position bigint GENERATED ALWAYS AS IDENTITY, id uuid PRIMARY KEY, "
        "key bytea NOT NULL, value bytea NOT NULL, created_at timestamptz NOT NULL DEFAULT now())"
    )
    connection.commit()
    # Ascending ids, as UUIDv7 are: random ones would measure the index's page splits.
    rows = [(uuid.UUID(int=number), one.key, one.value) for number, one in enumerate(payloads(count))]

    def work() -> int:
        with connection.cursor() as cursor:
            with cursor.copy("COPY ceiling (id, key, value) FROM STDIN (FORMAT BINARY)") as copy:
                copy.set_types(["uuid", "bytea", "bytea"])
                for row in rows:
                    copy.write_row(row)
            copied = cursor.rowcount
        connection.commit()
        return copied

    return work


def copy_out(_topic: str, _count: int) -> Callable[[], int]:
    """COPY the rows that copy_in left out again, into Python values."""
    connection = psycopg.connect(os.environ["BENCH_DATABASE"])

    def work() -> int:
        query = (
            "COPY (SELECT position, id, key, value FROM ceiling ORDER BY position) TO STDOUT (FORMAT BINARY)"
        )
        with connection.cursor() as cursor, cursor.copy(query) as copy:
            copy.set_types(["bigint", "uuid", "bytea", "bytea"])
            return sum(1 for _row in copy.rows())

    return work


WORKLOADS: dict[str, Callable[[str, int], Callable[[], int]]] = {
    "idempotent": idempotent,
    "transactional": transactional,
    "consume": consume,
    "copy-in": copy_in,
    "copy-out": copy_out,
}


def main(name: str, topic: str, expected: int) -> None:
    work = WORKLOADS[name](topic, expected)
    started, cpu = time.perf_counter(), time.process_time()
    count = work()
    figures = {
        "count": count,
        "seconds": time.perf_counter() - started,
        "cpu_seconds": time.process_time() - cpu,
    }
    if count < expected:
        raise SystemExit(f"{name}: {count} of {expected} messages")
    print(json.dumps(figures))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
