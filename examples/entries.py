"""A unique constraint: the effect has a name of its own, and the database refuses it a second time.

tallymark init --database ledger --role consumer
tallymark inbox run examples.entries:inbox

This stops the same transfer under two message ids too: a producer that retried without an outbox, a manual resend.
"""

import psycopg

from tallymark import Inbox, Message, UniqueConstraint

TABLES = """create table if not exists ledger_entry (
    id text constraint ledger_entry_pkey primary key,
    payer text not null, payee text not null, amount integer not null)"""

inbox = Inbox("entries", database="ledger")


@inbox.handler("transfers", once=UniqueConstraint("ledger_entry_pkey"))
def enter(message: Message, tx: psycopg.Connection) -> None:
    tx.execute(
        "insert into ledger_entry values (%(entry)s, %(payer)s, %(payee)s, %(amount)s)",
        message.value,
    )
