"""The consumer that tests run as a child: `tallymark inbox run tests.inbox.app:inbox`. The environment says how.

Each message moves money and leaves a trace: `effect` has no unique key, so that a second application shows.
"""

from __future__ import annotations

import dataclasses
import json
import os
import threading
from collections.abc import Sequence
from typing import Any

import psycopg

from tallymark import Inbox, Message, Outbox, SavedId, UniqueConstraint, Version

OPTIONS: dict[str, Any] = json.loads(os.environ.get("APP_OPTIONS", "{}"))
SCHEMES: dict[str, Any] = {
    "saved-id": SavedId(),
    "unique-constraint": UniqueConstraint("ledger_entry_pkey"),
    "version": Version(of=lambda message: message.value["n"]),
}

inbox = Inbox(
    OPTIONS.get("name", "ledger"),
    database=os.environ.get("APP_DATABASE"),
    mode=OPTIONS.get("mode", "inline"),
    tx=OPTIONS.get("tx", "psycopg"),
    positions=OPTIONS.get("positions", "database"),
    assign=[(topic, partition) for topic, partition in OPTIONS["assign"]] if "assign" in OPTIONS else None,
    start=OPTIONS.get("start", "beginning"),
    workers=OPTIONS.get("workers", 4),
    attempts=OPTIONS.get("attempts", 3),
    backoff=tuple(OPTIONS.get("backoff", (0.05, 0.2))),
    on_dead=OPTIONS.get("on_dead", "hold-key"),
    handler_timeout=OPTIONS.get("handler_timeout", 60),
    dead_letter_topic=OPTIONS.get("dead_letter_topic"),
)


class Plain:
    """A session or Django's connection, as the handlers here use psycopg's."""

    def __init__(self, tx: Any) -> None:
        self._tx = tx

    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> Any:
        if OPTIONS["tx"] == "sqlalchemy":
            return self._tx.connection().exec_driver_sql(statement, tuple(parameters))
        with self._tx.cursor() as cursor:
            return cursor.execute(statement, parameters)


if OPTIONS.get("tx") == "django":
    import django
    from django.conf import settings
    from psycopg.conninfo import conninfo_to_dict

    named = conninfo_to_dict(OPTIONS["url"])
    settings.configure(
        DATABASES={
            "default": {
                "ENGINE": "django.db.backends.postgresql",
                "NAME": named["dbname"],
                **{name.upper(): str(named[name]) for name in ("user", "password", "host", "port")},
            }
        }
    )
    django.setup()


class NoSuchAccount(Exception):
    """Said by a test's message to be permanent."""


def misbehave(message: Message, tx: Any) -> None:
    """What a message asks for, to try the inbox."""
    do = message.value.get("do")
    if do == "raise":
        raise RuntimeError("the handler was told to fail")
    if do == "raise-once" and message.attempt == 1:
        raise RuntimeError("the handler was told to fail once")
    if do == "raise-until-fixed" and not tx.execute("select fixed from switch").fetchone()[0]:
        raise RuntimeError("the handler was told to fail until it is fixed")
    if do == "permanent":
        raise NoSuchAccount(message.value["account"])
    if do == "hang" and message.attempt == 1:
        threading.Event().wait(OPTIONS["hangs"])  # then it goes on, in a session that was ended
    if do == "lock":
        tx.execute("select pg_sleep(0.05)")
        tx.execute("update account set balance = balance + 0 where id = %s", [message.value["other"]])
    if do == "deferred-violation":  # noticed at the commit, unless someone looks before
        tx.execute("insert into child (parent) values (-1)")
    if do == "serialization":  # another database's, or a trigger's: it looks like one of ours for ever
        raise RuntimeError("somebody else's") from psycopg.errors.SerializationFailure("not ours")
    if do == "commit":
        tx.commit()
    if do == "rollback":
        tx.rollback()
    if do == "close":
        tx.close()
    if do == "sql-commit":
        tx.execute("commit")


outbox = Outbox("/ledger")


def write(message: Message, tx: Any) -> None:
    value = message.value
    if OPTIONS.get("tx", "psycopg") != "psycopg":
        tx = Plain(tx)
    if "chain" in OPTIONS:
        outbox.add(tx, OPTIONS["chain"], {"of": str(message.id), "n": value["n"]}, key=value["account"])
    if OPTIONS.get("scheme") == "unique-constraint":
        tx.execute("insert into ledger_entry (id) values (%s)", [value["n"]])
    tx.execute("update account set balance = balance + %s where id = %s", [value["amount"], value["account"]])
    misbehave(message, tx)
    if seconds := OPTIONS.get("takes"):
        tx.execute("select pg_sleep(%s)", [seconds])
    tx.execute(
        "insert into effect (message_id, account, n, amount) values (%s, %s, %s, %s)",
        [str(message.id), value["account"], value["n"], value["amount"]],
    )


def declare(topic: str) -> None:
    if OPTIONS.get("batch"):

        @inbox.handler(topic, batch=True, once=SCHEMES[OPTIONS.get("scheme", "saved-id")])
        def apply_list(messages: list[Message], tx: Any) -> None:
            for message in messages:
                write(message, tx)

    else:

        @inbox.handler(
            topic,
            once=SCHEMES[OPTIONS.get("scheme", "saved-id")],
            permanent=NoSuchAccount,
            order=OPTIONS.get("order", "key"),
        )
        def apply_one(message: Message, tx: Any) -> None:
            write(message, tx)


for each in OPTIONS.get("topics", []):
    declare(each)


@dataclasses.dataclass
class Transfer:
    """What a message of a modelled topic must fit."""

    n: int
    account: str
    amount: int


def declare_modelled(topic: str) -> None:
    @inbox.handler(topic, model=Transfer)
    def apply_model(message: Message, tx: Any) -> None:
        tx.execute(
            "insert into effect (message_id, account, n, amount) values (%s, %s, %s, %s)",
            [str(message.id), message.value.account, message.value.n, message.value.amount],
        )


for each in OPTIONS.get("modelled", []):
    declare_modelled(each)
