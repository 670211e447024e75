"""The producing side: a transfer and its message in one transaction.

tallymark init --database bank --role producer
tallymark relay run --database bank
python examples/transfers.py postgresql://…/bank
"""

import sys
import uuid

import psycopg

from tallymark import Outbox

TABLES = "create table if not exists account (name text primary key, balance integer not null default 0)"

outbox = Outbox("/bank")


def transfer(tx: psycopg.Connection, payer: str, payee: str, amount: int) -> uuid.UUID:
    # Lock what the key names first: then the order of alice's messages is the order of her commits.
    tx.execute("update account set balance = balance - %s where name = %s", [amount, payer])
    made = {"entry": str(uuid.uuid4()), "payer": payer, "payee": payee, "amount": amount}
    return outbox.add(tx, "transfers", made, key=payer, type="transfer.made")


if __name__ == "__main__":
    with psycopg.connect(sys.argv[1]) as tx:  # commits at the end, or rolls back
        tx.execute(TABLES)
        tx.execute("insert into account values ('alice', 100) on conflict do nothing")
        print(transfer(tx, "alice", "bob", 5))
