"""The naive twin's bank: commits, then sends. As many services are written today, with safe settings of the client.

Between the commit and the broker's answer a message lives in this process's memory and nowhere else.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import threading
import time
from dataclasses import asdict

import psycopg

from tallymark.broker.kafka import Producer  # confluent_kafka's own
from tallymark.lab.bank.bank import Refused
from tallymark.lab.bank.orders import LIMIT_CENTS, PER_ORDER, Transfer, order

TOPIC = "naive-transfers"

told_to_stop = threading.Event()


def book(bank: psycopg.Connection, producer: Producer, transfers: list[Transfer]) -> None:
    with bank.transaction():
        for each in transfers:
            bank.execute("update account set cents = cents - %s where name = %s", [each.cents, each.payer])
            bank.execute("update account set cents = cents + %s where name = %s", [each.cents, each.payee])
            bank.execute(
                "insert into transfer values (%s, %s, %s, %s)",
                [each.transfer, each.payer, each.payee, each.cents],
            )
        if any(each.cents > LIMIT_CENTS for each in transfers):
            raise Refused
    for each in transfers:  # it is committed: tell the others
        producer.produce(TOPIC, json.dumps(asdict(each)).encode(), key=each.payer.encode())
    producer.poll(0)


def serve(bank: psycopg.Connection, producer: Producer, seed: int, until: int, per_second: float) -> None:
    row = bank.execute("select count(*), coalesce(max(number), -1) from transfer").fetchone()
    done, last = row or (0, -1)
    number, began, before = last // PER_ORDER + 1, time.monotonic(), done
    while done < until and not told_to_stop.is_set():
        transfers = order(seed, number)[: until - done]
        try:
            book(bank, producer, transfers)
            done += len(transfers)
        except Refused:
            pass
        number += 1
        if per_second:
            time.sleep(max(0.0, began + (done - before) / per_second - time.monotonic()))


def main() -> None:
    parser = argparse.ArgumentParser(description="The same bank, which sends by itself.")
    parser.add_argument("servers")
    parser.add_argument("--until", type=int, required=True, help="end after so many transfers, all told")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--per-second", type=float, default=0.0)
    asked = parser.parse_args()
    url = os.environ.get("DATABASE_URL") or parser.error("set DATABASE_URL")
    signal.signal(signal.SIGTERM, lambda *_: told_to_stop.set())
    # Acknowledged by all replicas, no duplicates by retries: what Java's client has by default.
    producer = Producer({"bootstrap.servers": asked.servers, "acks": "all", "enable.idempotence": True})
    try:
        # A lost database ends it; whoever watches over it starts it again.
        with psycopg.connect(url, autocommit=True) as bank:
            serve(bank, producer, asked.seed, asked.until, asked.per_second)
    finally:
        producer.flush()


if __name__ == "__main__":
    main()
