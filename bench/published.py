"""The bare client sending what the relay sends: same bytes, same headers, an explicit partition, batches of one size.

    python -m bench.published transactional | alternating | idempotent TOPIC COUNT BATCH

Everything is made in memory before the clock starts. As with the relay, the rate counts from the end of the first batch
to the end of the last. Prints {"count", "seconds", "cpu_seconds"}.
"""

from __future__ import annotations

import json
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import cycle, islice

from confluent_kafka import KafkaError, Message, Producer

from bench.backlog import SOURCE, TYPE
from bench.payloads import payloads
from bench.raw import bare_producer
from tallymark.broker.partition import partition_of

_DISTINCT = 100_000
_SERVE_EVERY = 2_000

# value, key, partition, headers
Ready = tuple[bytes, bytes, int, list[tuple[str, str | bytes | None]]]
Report = Callable[[KafkaError | None, Message], None]


def ready(count: int, partitions: int) -> list[Ready]:
    """The relay's messages, as the client takes them."""
    fixed: list[tuple[str, str | bytes | None]] = [
        ("ce_specversion", b"1.0"),
        ("tm_format", b"1"),
        ("ce_source", SOURCE.encode()),
        ("ce_type", TYPE.encode()),
        ("content-type", b"application/octet-stream"),
    ]
    return [
        (
            one.value,
            one.key,
            partition_of(one.key, partitions),
            [*fixed, ("ce_id", str(uuid.uuid4())), ("tm_position", str(number))],
        )
        for number, one in enumerate(payloads(count))
    ]


def send(producer: Producer, topic: str, messages: Iterator[Ready], report: Report | None = None) -> None:
    for number, (value, key, partition, headers) in enumerate(messages):
        while True:
            try:
                producer.produce(topic, value, key, partition, report, headers=headers)
                break
            except BufferError:
                producer.poll(0.05)
        if number % _SERVE_EVERY == 0:
            producer.poll(0)


def transactional(topic: str, messages: Iterator[Ready], batches: int, batch: int) -> list[float]:
    """The times at which each transaction was committed."""
    producer = bare_producer(**{"transactional.id": f"bench-{uuid.uuid4()}"})
    producer.init_transactions(30)
    ends = []
    for _ in range(batches):
        producer.begin_transaction()
        send(producer, topic, islice(messages, batch))
        producer.commit_transaction(60)
        ends.append(time.perf_counter())
    return ends


def alternating(topic: str, messages: Iterator[Ready], batches: int, batch: int) -> list[float]:
    """As `transactional`, with two transactional ids in turn: one batch is produced while the one before commits.

    Order is kept: a batch is produced when the one before is in the log, and committed when that one is committed.
    """
    producers = [bare_producer(**{"transactional.id": f"bench-{uuid.uuid4()}"}) for _ in range(2)]
    for producer in producers:
        producer.init_transactions(30)
    ends: list[float] = []

    def commit(producer: Producer) -> None:
        producer.commit_transaction(60)
        ends.append(time.perf_counter())

    with ThreadPoolExecutor(1) as committing:
        before: Future[None] | None = None
        for producer in islice(cycle(producers), batches):
            producer.begin_transaction()
            send(producer, topic, islice(messages, batch))
            producer.flush(60)
            if before is not None:
                before.result()
            before = committing.submit(commit, producer)
    return ends


def idempotent(topic: str, messages: Iterator[Ready], batches: int, batch: int) -> list[float]:
    """The times at which the first batch and all others were acknowledged, a callback for each message."""
    producer = bare_producer()
    acked, first = 0, 0.0

    def report(error: KafkaError | None, _message: Message) -> None:
        nonlocal acked, first
        if error is not None:
            raise SystemExit(f"not delivered: {error}")
        acked += 1
        if acked == batch:
            first = time.perf_counter()

    send(producer, topic, islice(messages, batches * batch), report)
    producer.flush(120)
    if acked < batches * batch:
        raise SystemExit(f"{acked} of {batches * batch} messages were acknowledged")
    return [first, time.perf_counter()]


WORKLOADS = {"transactional": transactional, "alternating": alternating, "idempotent": idempotent}


def main(name: str, topic: str, count: int, batch: int) -> None:
    partitions = len(bare_producer().list_topics(topic, 10).topics[topic].partitions)
    messages = cycle(ready(min(count, _DISTINCT), partitions))
    batches = max(2, count // batch)
    cpu = time.process_time()
    ends = WORKLOADS[name](topic, messages, batches, batch)
    share = (batches - 1) / batches
    print(
        json.dumps(
            {
                "count": (batches - 1) * batch,
                "seconds": ends[-1] - ends[0],
                "cpu_seconds": (time.process_time() - cpu) * share,
            }
        )
    )


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
