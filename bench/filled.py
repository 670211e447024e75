"""A topic filled with what the relay sends: the same headers, UUIDv7 ids, Kafka transactions of 10,000 messages.

    python -m bench.filled TOPIC COUNT

Values are JSON with random contents, keys are 1,000 in turn, so that every key (and every partition) has as many messages
as any other: where processes share partitions, none has more to do.
"""

from __future__ import annotations

import sys
import uuid
from collections.abc import Iterator

from confluent_kafka import Producer

from bench.backlog import SOURCE, TYPE
from bench.child import measure_child
from bench.payloads import KEYS, Payload, payloads
from bench.raw import bare_producer
from tallymark.message import new_id

BATCH = 10_000
# Made one by one; a larger log repeats them under other ids, at a distance that no compression sees.
_DISTINCT = 100_000
_SERVE_EVERY = 2_000


def fill(bootstrap_servers: str, topic: str, count: int) -> None:
    """Fill a topic, in a process of its own."""
    measure_child(
        [sys.executable, "-m", "bench.filled", topic, str(count)],
        env={"BENCH_BOOTSTRAP": bootstrap_servers},
        timeout=900,
    )


def key_of(number: int) -> bytes:
    return b"account-%04d" % (number % KEYS)


# What the relay puts on every message, in its order.
_FIXED: list[tuple[str, str | bytes | None]] = [
    ("ce_specversion", b"1.0"),
    ("tm_format", b"1"),
    ("ce_source", SOURCE.encode()),
    ("ce_type", TYPE.encode()),
    ("content-type", b"application/json"),
]


def send(producer: Producer, topic: str, partitions: int, numbered: Iterator[tuple[int, Payload]]) -> None:
    for number, one in numbered:
        key = key_of(number)
        value = one.value.replace(one.key, key, 1)
        where = number % KEYS % partitions
        headers = [*_FIXED, ("ce_id", str(new_id()).encode()), ("tm_position", b"%d" % (number + 1))]
        while True:
            try:
                producer.produce(topic, value, key, where, headers=headers)
                break
            except BufferError:
                producer.poll(0.05)
        if number % _SERVE_EVERY == 0:
            producer.poll(0)


def main(topic: str, count: int) -> None:
    producer = bare_producer(**{"transactional.id": f"bench-{uuid.uuid4()}"})
    partitions = len(producer.list_topics(topic, 10).topics[topic].partitions)
    distinct = list(payloads(min(count, _DISTINCT)))
    producer.init_transactions(30)
    for start in range(0, count, BATCH):
        numbers = range(start, min(start + BATCH, count))
        producer.begin_transaction()
        send(producer, topic, partitions, ((n, distinct[n % len(distinct)]) for n in numbers))
        producer.commit_transaction(60)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
