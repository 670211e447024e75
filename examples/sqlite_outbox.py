"""A durable local queue with no PostgreSQL: SQLite. Run: python examples/sqlite_outbox.py edge.db
Then: tallymark relay run --database sqlite:///edge.db --bootstrap-servers HOST:PORT
"""

import sqlite3
import sys

from tallymark import Outbox

outbox = Outbox("/edge/box-7")


def sell(path: str, item: str) -> str:
    with sqlite3.connect(path) as tx:  # commits at the end, or rolls back
        tx.execute("create table if not exists sales (item text)")
        tx.execute("insert into sales values (?)", [item])
        id_ = outbox.add(tx, "sales", {"item": item}, key=item, type="sale.made")
    return str(id_)


if __name__ == "__main__":
    print(sell(sys.argv[1], "apple"))
