"""A handler's part in a transaction, whatever it is given of it: psycopg's connection, a session, Django's connection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import text

from tallymark.store.postgres.inboxstore import PostgresInboxStore
from tests.inbox_store.conftest import message, query

PAY = "update account set balance = balance - 5 where name = 'alice'"
Use = Callable[[Any], Any]


def run(tx: Any, statement: str) -> Any:
    """One statement, in the way of whatever `tx` is."""
    if hasattr(tx, "execute_wrapper"):
        with tx.cursor() as cursor:
            cursor.execute(statement)
            return cursor.fetchall() if cursor.description else None
    found = tx.execute(text(statement) if hasattr(tx, "begin_nested") else statement)
    return [tuple(row) for row in found.fetchall()] if statement.startswith("select") else None


def handle(store: PostgresInboxStore, *uses: Use) -> None:
    """A batch as the inbox runs it: keep, hand over, settle, commit."""
    with store.begin() as tx:
        tx.keep([message(0)])
        for use in uses:
            use(tx.handed)
            tx.settle_handed()


def state(ledger: str) -> tuple[int, int]:
    """What was kept, and alice's balance."""
    ((kept, balance),) = query(
        ledger, "select (select count(*) from tallymark.inbox), balance from account where name = 'alice'"
    )
    return kept, balance


def pay(tx: Any) -> None:
    run(tx, PAY)


def nested(tx: Any) -> Any:
    if hasattr(tx, "execute_wrapper"):
        from django.db import transaction

        return transaction.atomic()
    return tx.begin_nested() if hasattr(tx, "begin_nested") else tx.transaction()
