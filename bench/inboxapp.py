"""The consumer that benchmarks run as a child: `tallymark inbox run bench.inboxapp:inbox`. The environment says how.

The handlers' own functions are also what the bare loop calls by hand: the statements are the same by construction.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

from bench.ledger import SLOW
from tallymark import Inbox, Message

OPTIONS: dict[str, Any] = json.loads(os.environ.get("BENCH_OPTIONS", "{}"))
_WAIT_S = 0.001
_SLOW_S = 0.2

ONE = "update account set balance = balance + %s, applied = applied + 1 where id = %s"
EFFECT = "insert into effect (id) values (%s)"
MANY = """
update account a set balance = a.balance + m.cents, applied = a.applied + m.applied
  from (select id, sum(cents) as cents, count(*) as applied from unnest(%s::text[], %s::bigint[]) u(id, cents)
         group by id) m
 where a.id = m.id
"""


def apply_one(value: Any, tx: Any) -> None:
    tx.execute(ONE, [value["cents"], value["account"]])


def apply_list(values: Sequence[Any], tx: Any) -> None:
    tx.execute(MANY, [[value["account"] for value in values], [value["cents"] for value in values]])


def each(message: Message, tx: Any) -> None:
    apply_one(message.value, tx)


def batch(messages: list[Message], tx: Any) -> None:
    apply_list([message.value for message in messages], tx)


def wait(_message: Message, _tx: Any) -> None:
    """A handler that waits for something outside."""
    time.sleep(_WAIT_S)


def slow(message: Message, tx: Any) -> None:
    """One key's messages take two hundred times as long as others do."""
    if message.value["account"] == SLOW:
        time.sleep(_SLOW_S)
    apply_one(message.value, tx)


def insert(message: Message, tx: Any) -> None:
    tx.execute(EFFECT, [str(message.id)])


HANDLERS: dict[str, Callable[[Any, Any], None]] = {
    "each": each,
    "batch": batch,
    "wait": wait,
    "slow": slow,
    "insert": insert,
}

inbox = Inbox(
    OPTIONS.get("name", "bench"), mode=OPTIONS.get("mode", "inline"), workers=OPTIONS.get("workers", 8)
)
for topic in OPTIONS.get("topics", ()):
    inbox.handler(
        topic,
        batch=OPTIONS["handler"] == "batch",
        # The outbox takes bytes as bytes: its messages do not say that they are JSON.
        decode=json.loads if OPTIONS.get("json") else None,
        max_rate=OPTIONS.get("max_rate"),
    )(HANDLERS[OPTIONS["handler"]])
