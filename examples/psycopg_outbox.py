"""A transfer and its message in one transaction, with psycopg. Run: python examples/psycopg_outbox.py URL"""

import sys

import psycopg

from tallymark import Outbox

outbox = Outbox("/bank")


def transfer(url: str, name: str, amount: int) -> str:
    with psycopg.connect(url) as tx:  # commits at the end, or rolls back
        # Lock what the key names first: then the order of alice's messages is the order of her commits.
        tx.execute("update accounts set balance = balance - %s where name = %s", [amount, name])
        id_ = outbox.add(tx, "transfers", {"name": name, "amount": amount}, key=name, type="transfer.made")
    return str(id_)


if __name__ == "__main__":
    print(transfer(sys.argv[1], "alice", 5))
