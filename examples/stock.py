"""A version: the newest state wins, whatever comes late, again or out of order.

tallymark init --database shop --role consumer
tallymark inbox run examples.stock:inbox
"""

import psycopg

from tallymark import Inbox, Message, Version

TABLES = """create table if not exists stock (
    sku text primary key, level integer not null, version bigint not null)"""

inbox = Inbox("stock", database="shop")

# The row of stock that the message's key names is locked; older and equal versions are passed over.
newest = Version(table="stock", key="sku", column="version", of=lambda message: message.value["version"])


@inbox.handler("stock-levels", once=newest, batch=True)
def set_level(messages: list[Message], tx: psycopg.Connection) -> None:
    tx.cursor().executemany(
        "insert into stock values (%s, %s, %s) on conflict (sku) do update "
        "set level = excluded.level, version = excluded.version",
        [(message.key_text, message.value["level"], message.value["version"]) for message in messages],
    )
