"""Messages at a steady pace, in a process of its own, with the moment at which each was there to be sent.

    python -m bench.paced writers | transactional | alternating | idempotent TOPIC RATE SECONDS

`writers`: services that add one message per transaction; the moment is that of the commit. `transactional`: the bare
loop (begin, produce all that is due, commit) from memory; `alternating`: the same with two ids in turn; `idempotent`:
each message produced when it is due; the moment is when it was due. Prints one JSON object of id to time.monotonic(),
which all processes of a machine share.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from itertools import cycle

import psycopg
from confluent_kafka import Producer

from bench.backlog import SOURCE, TYPE
from bench.payloads import payloads
from bench.raw import bare_producer
from tallymark.outbox.outbox import Outbox
from tallymark.store.postgres.writer import PostgresWriter

_WRITERS = 8
_LOOK_S = 0.0005

Times = dict[str, float]


def writers(topic: str, rate: float, seconds: float) -> Times:
    """Eight services, each an eighth of the rate, each message a transaction."""
    times: list[Times] = [{} for _ in range(_WRITERS)]
    start = threading.Barrier(_WRITERS)

    def write(number: int) -> None:
        outbox = Outbox(SOURCE, writer=PostgresWriter())
        with psycopg.connect(os.environ["BENCH_DATABASE"]) as connection:
            start.wait()
            due, step = time.monotonic() + number / rate, _WRITERS / rate
            for one in payloads(int(rate * seconds / _WRITERS), seed=number):
                while (wait := due - time.monotonic()) > 0:
                    time.sleep(wait)
                id_ = outbox.add(connection, topic, one.value, key=one.key, type=TYPE)
                connection.commit()
                times[number][str(id_)] = time.monotonic()
                due += step

    team = [threading.Thread(target=write, args=(number,)) for number in range(_WRITERS)]
    for thread in team:
        thread.start()
    for thread in team:
        thread.join()
    return {id_: moment for each in times for id_, moment in each.items()}


def _due(rate: float, seconds: float, times: Times) -> Iterator[list[tuple[str, bytes, bytes]]]:
    """Again and again all messages that have become due since the last look, never none."""
    messages = [(str(uuid.uuid4()), one.key, one.value) for one in payloads(int(rate * seconds))]
    start, taken = time.monotonic(), 0
    while taken < len(messages):
        upto = min(len(messages), int((time.monotonic() - start) * rate))
        if upto == taken:
            time.sleep(_LOOK_S)
            continue
        for number in range(taken, upto):
            times[messages[number][0]] = start + (number + 1) / rate
        yield messages[taken:upto]
        taken = upto


def _produce(producer: Producer, topic: str, messages: list[tuple[str, bytes, bytes]]) -> None:
    for id_, key, value in messages:
        producer.produce(topic, value, key, headers=[("ce_id", id_)])


def _transactions(ids: int, topic: str, rate: float, seconds: float) -> Times:
    """The bare transaction loop, as fast as it can, each transaction by the next producer."""
    producers = [
        bare_producer(**{"transactional.id": f"bench-{uuid.uuid4()}", "linger.ms": 0}) for _ in range(ids)
    ]
    for producer in producers:
        producer.init_transactions(30)
    times: Times = {}
    for messages, producer in zip(_due(rate, seconds, times), cycle(producers)):
        producer.begin_transaction()
        _produce(producer, topic, messages)
        producer.commit_transaction(60)
    return times


def idempotent(topic: str, rate: float, seconds: float) -> Times:
    """Each message when it is due, without waiting for its acknowledgement."""
    producer = bare_producer(**{"linger.ms": 0})
    times: Times = {}
    for messages in _due(rate, seconds, times):
        _produce(producer, topic, messages)
        producer.poll(0)
    producer.flush(60)
    return times


WORKLOADS: dict[str, Callable[[str, float, float], Times]] = {
    "writers": writers,
    "transactional": partial(_transactions, 1),
    "alternating": partial(_transactions, 2),
    "idempotent": idempotent,
}

if __name__ == "__main__":
    print(json.dumps(WORKLOADS[sys.argv[1]](sys.argv[2], float(sys.argv[3]), float(sys.argv[4]))))
