"""The naive twin's ledger: a consumer that commits its offsets by itself, every five seconds, as is the default.

The loop is the one of the client's own examples: poll, handle, and close at the end, whatever ends it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading

import psycopg

from tallymark.broker.kafka import Consumer  # confluent_kafka's own
from tallymark.lab.bank.naive_bank import TOPIC

GROUP = "naive-ledger"
BATCH = 50


def book(ledger: psycopg.Connection, made: dict[str, object]) -> None:
    ledger.execute(
        "insert into entry (transfer, payer, payee, cents) values "
        "(%(transfer)s, %(payer)s, %(payee)s, %(cents)s)",
        made,
    )
    ledger.execute("update account set cents = cents - %(cents)s where name = %(payer)s", made)
    ledger.execute("update account set cents = cents + %(cents)s where name = %(payee)s", made)


def main(servers: str) -> None:
    told_to_stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: told_to_stop.set())
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": GROUP,
            "auto.offset.reset": "earliest",
            "session.timeout.ms": 6000,  # as in ours, so that both wait equally long for the dead
        }
    )
    consumer.subscribe([TOPIC])
    try:
        # A lost database ends it; whoever watches over it starts it again.
        with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as ledger:
            while not told_to_stop.is_set():
                messages = consumer.consume(BATCH, timeout=0.2)
                if messages:
                    with ledger.transaction():
                        for message in messages:
                            if message.error() is None:
                                book(ledger, json.loads(message.value() or b"{}"))
    finally:
        consumer.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
