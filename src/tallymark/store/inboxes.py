"""Inbox stores by the database's URL and the kind of transaction that handlers want."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from tallymark.errors import UsageError
from tallymark.inbox.ports import InboxStore
from tallymark.store.postgres.inboxstore import PostgresInboxStore, application_of
from tallymark.store.sqlite.schema import is_sqlite

TxKind = Literal["psycopg", "sqlalchemy", "django"]


def inbox_stores(
    url: str,
    *,
    schema: str,
    consumer: str,
    owner: str,
    tx: TxKind = "psycopg",
    using: str = "default",
    dead_letter_topic: str | None = None,
) -> Callable[[str], InboxStore]:
    """How an inbox opens its stores, each by the name of the thread that it is for."""
    if is_sqlite(url):
        raise UsageError(
            "an inbox needs PostgreSQL: SQLite holds an outbox only",
            remedy="give a postgresql:// URL, or the name of such a database",
        )

    def opened(name: str) -> InboxStore:
        # The owner's name first: whoever takes over from it finds its sessions by that.
        return PostgresInboxStore(
            url,
            consumer,
            schema=schema,
            tx=tx,
            alias=using,
            application=f"{application_of(owner)}, {consumer} {name}"[:63],
            dead_letter_topic=dead_letter_topic,
            prompt=name == "control",  # the thread that polls uses it, and Kafka waits for that thread
        )

    return opened
