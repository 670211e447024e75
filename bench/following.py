"""The consuming end of a journey by hand: read what is there, insert each, move the positions, commit.

    python -m bench.following TOPIC

Prints "ready" when it reads, and goes on until SIGTERM.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import Any

import psycopg

from bench.bareinbox import consumer_of, move
from bench.inboxapp import EFFECT

_MOST = 10_000


def main(topic: str) -> None:
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    consumer = consumer_of(topic)
    with psycopg.connect(os.environ["BENCH_DATABASE"]) as connection:
        print("ready", flush=True)
        while not stop.is_set():
            # The first as soon as it is there, then whatever else is there by now.
            first = consumer.poll(0.1)
            if first is None:
                continue
            found: list[Any] = [first, *consumer.consume(_MOST - 1, 0)]
            messages = [each for each in found if each.error() is None]
            for message in messages:
                connection.execute(EFFECT, [dict(message.headers())["ce_id"].decode()])
            move(connection, messages)
            connection.commit()
    consumer.close()


if __name__ == "__main__":
    main(sys.argv[1])
