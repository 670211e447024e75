"""The ledger: follows the bank's transfers into books of its own, each once.

tallymark init --database ledger --role consumer
tallymark inbox run tallymark.lab.bank.ledger:inbox
"""

from __future__ import annotations

import psycopg

from tallymark import Inbox, Message
from tallymark.lab.bank.orders import Transfer

inbox = Inbox("ledger", database="ledger")


@inbox.handler("transfers", model=Transfer)
def book(message: Message, tx: psycopg.Connection) -> None:
    made: Transfer = message.value
    tx.execute(
        "insert into entry (transfer, payer, payee, cents) values (%s, %s, %s, %s)",
        [made.transfer, made.payer, made.payee, made.cents],
    )
    # Nothing in these statements would stop a second booking. The id that the inbox saves with them does.
    tx.execute("update account set cents = cents - %s where name = %s", [made.cents, made.payer])
    tx.execute("update account set cents = cents + %s where name = %s", [made.cents, made.payee])
