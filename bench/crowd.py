"""Sixteen writers at once, each a transaction with one `add`: `python -m bench.crowd SECONDS TOPIC`.

Beside them a feeder moves the twin outbox's sequence (BENCH_TWIN) along with the one written to (BENCH_DATABASE): a
relay on the twin then does the very work, at the very pace, that a relay on the writers' own outbox would do. The feeder
runs in both cases, so that it favours neither. Prints {"count", "seconds", "cpu_seconds"}.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time

import psycopg

from bench.backlog import SOURCE, TYPE
from bench.payloads import payloads
from tallymark.outbox.outbox import Outbox
from tallymark.store.postgres.writer import PostgresWriter

WRITERS = 16
_FEED_S = 0.01


def write(
    topic: str, number: int, stop: threading.Event, counts: list[int], start: threading.Barrier
) -> None:
    outbox = Outbox(SOURCE, writer=PostgresWriter())
    messages = list(payloads(1_000, seed=number))
    with psycopg.connect(os.environ["BENCH_DATABASE"]) as connection:
        start.wait()
        done = 0
        while not stop.is_set():
            one = messages[done % len(messages)]
            outbox.add(connection, topic, one.value, key=one.key, type=TYPE)
            connection.commit()
            done += 1
        counts[number] = done


def feed(stop: threading.Event) -> None:
    """The twin's sequence follows the one written to."""
    look = "select last_value - (not is_called)::int from tallymark.outbox_position"
    with (
        psycopg.connect(os.environ["BENCH_DATABASE"], autocommit=True) as written,
        psycopg.connect(os.environ["BENCH_TWIN"], autocommit=True) as twin,
    ):
        first = _value(written, look)
        while not stop.wait(_FEED_S):
            drawn = _value(written, look) - first
            if drawn:
                twin.execute("select setval('tallymark.outbox_position', %s)", [drawn])


def _value(connection: psycopg.Connection, query: str) -> int:
    row = connection.execute(query).fetchone()
    assert row is not None
    return int(row[0])


def main(seconds: float, topic: str) -> None:
    stop, counts = threading.Event(), [0] * WRITERS
    start = threading.Barrier(WRITERS + 1)
    team = [threading.Thread(target=write, args=(topic, n, stop, counts, start)) for n in range(WRITERS)]
    team.append(threading.Thread(target=feed, args=(stop,)))
    for thread in team:
        thread.start()
    start.wait()
    began, cpu = time.perf_counter(), time.process_time()
    time.sleep(seconds)
    stop.set()
    for thread in team:
        thread.join()
    took = time.perf_counter() - began
    print(json.dumps({"count": sum(counts), "seconds": took, "cpu_seconds": time.process_time() - cpu}))


if __name__ == "__main__":
    main(float(sys.argv[1]), sys.argv[2])
