"""The consumer under torture. Its effects have no unique key: a second application shows.

One message in twenty fails at its first attempt, so that its key waits, in order, while others go on.
"""

from __future__ import annotations

import os
import zlib
from typing import Any

from tallymark import Inbox, Message

TABLES = """
create table effect (seq bigserial, message_id text not null, key text, n bigint not null);
create table total (key text primary key, n bigint not null, sum bigint not null);
"""

inbox = Inbox(
    "torture",
    mode="deferred" if os.environ.get("TORTURE_MODE") == "deferred" else "inline",
    workers=3,
    attempts=1000,
    backoff=(0.05, 0.5),
)


@inbox.handler(os.environ.get("TORTURE_TOPIC", "torture"))
def apply(message: Message, tx: Any) -> None:
    number = message.value["seq"]
    tx.execute(
        "insert into effect (message_id, key, n) values (%s, %s, %s)",
        [str(message.id), message.key_text, number],
    )
    if message.attempt == 1 and zlib.crc32(str(message.id).encode()) % 20 == 0:
        raise RuntimeError("the first attempt fails")
    if message.key is not None:
        tx.execute(
            "insert into total values (%s, 1, %s) on conflict (key) do update "
            "set n = total.n + 1, sum = total.sum + excluded.sum",
            [message.key_text, number],
        )
