"""The bank: takes orders, moves the money and tells others, all in one transaction.

    tallymark init --database bank --role producer
    tallymark relay run --database bank
    DATABASE_URL=postgresql://…/bank python -m tallymark.lab.bank.bank --until 1000

It sends nothing itself. Kafka may be away, and the bank may be killed at any moment: what it committed is told.
"""

from __future__ import annotations

import argparse
import os
import time
from dataclasses import asdict

import psycopg

from tallymark import Outbox
from tallymark.lab.bank.orders import LIMIT_CENTS, PER_ORDER, Transfer, order

TOPIC = "transfers"

outbox = Outbox("/bank")


class Refused(Exception):
    """The bank does not allow this order."""


def book(tx: psycopg.Connection, transfers: list[Transfer]) -> None:
    """All transfers of an order, or none."""
    for each in transfers:
        # Lock what the key names first: then the order of a payer's messages is the order of their commits.
        tx.execute("update account set cents = cents - %s where name = %s", [each.cents, each.payer])
        tx.execute("update account set cents = cents + %s where name = %s", [each.cents, each.payee])
        tx.execute(
            "insert into transfer values (%s, %s, %s, %s)",
            [each.transfer, each.payer, each.payee, each.cents],
        )
        outbox.add(tx, TOPIC, asdict(each), key=each.payer, type="transfer.made")
    if any(each.cents > LIMIT_CENTS for each in transfers):
        raise Refused  # rows and messages are written already: none of them may ever be seen


def serve(bank: psycopg.Connection, seed: int, until: int, per_second: float) -> None:
    """Take orders, from the next one on, until so many transfers are made."""
    row = bank.execute("select count(*), coalesce(max(number), -1) from transfer").fetchone()
    done, last = row or (0, -1)
    number, began, before = last // PER_ORDER + 1, time.monotonic(), done
    while done < until:
        transfers = order(seed, number)[: until - done]
        try:
            with bank.transaction():
                book(bank, transfers)
            done += len(transfers)
        except Refused:
            pass
        number += 1
        if per_second:
            time.sleep(max(0.0, began + (done - before) / per_second - time.monotonic()))


def main() -> None:
    parser = argparse.ArgumentParser(description="A bank that takes orders.")
    parser.add_argument("--until", type=int, required=True, help="end after so many transfers, all told")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--per-second", type=float, default=0.0)
    asked = parser.parse_args()
    # Not an argument: those are for every user of the machine to read, and it holds a password.
    url = os.environ.get("DATABASE_URL") or parser.error("set DATABASE_URL")
    while True:
        try:
            with psycopg.connect(url, autocommit=True) as bank:
                return serve(bank, asked.seed, asked.until, asked.per_second)
        except psycopg.OperationalError:
            time.sleep(0.2)  # the database is away; what was committed is there when it is back


if __name__ == "__main__":
    main()
