"""The consuming side, with the default scheme: the id is saved in the transaction that makes the effect.

tallymark init --database ledger --role consumer
tallymark inbox run examples.ledger:inbox
"""

from dataclasses import dataclass

import psycopg

from tallymark import Inbox, Message

TABLES = "create table if not exists account (name text primary key, balance integer not null default 0)"

inbox = Inbox("ledger", database="ledger")


@dataclass
class Transfer:
    entry: str
    payer: str
    payee: str
    amount: int


@inbox.handler("transfers", model=Transfer)
def book(message: Message, tx: psycopg.Connection) -> None:
    made: Transfer = message.value
    # Adding to a balance twice is wrong: nothing in these statements would stop it. The saved id does.
    tx.execute("update account set balance = balance - %s where name = %s", [made.amount, made.payer])
    tx.execute("update account set balance = balance + %s where name = %s", [made.amount, made.payee])
