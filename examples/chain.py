"""A consumer that is also a producer: what it makes of a message joins the same transaction.

tallymark init --database ledger          (an inbox and an outbox)
tallymark inbox run examples.chain:inbox
tallymark relay run --database ledger

Effect, saved id, position and the new message commit together or not at all: the chain stays exactly-once from end
to end, however often either service is killed.
"""

import psycopg

from tallymark import Inbox, Message, Outbox

TABLES = "create table if not exists account (name text primary key, balance integer not null default 0)"

inbox = Inbox("notices", database="ledger")
outbox = Outbox("/ledger")


@inbox.handler("transfers")
def notify(message: Message, tx: psycopg.Connection) -> None:
    made = message.value
    row = tx.execute(
        "update account set balance = balance + %s where name = %s returning balance",
        [made["amount"], made["payee"]],
    ).fetchone()
    balance = row[0] if row else None
    outbox.add(
        tx, "notices", {"to": made["payee"], "balance": balance}, key=made["payee"], type="notice.made"
    )
