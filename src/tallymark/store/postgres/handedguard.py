"""What a handler may not do with the transaction that it works in: commit, roll back, close, begin, change its role.

Each attempt raises a UsageError that names it, because effect, mark and position would no longer share one fate. What
got past that is noticed afterwards, as TransactionEnded. Savepoints are the handler's own affair.
"""

from __future__ import annotations

from typing import Any, NoReturn

import psycopg
from psycopg.abc import PQGen
from psycopg.pq import TransactionStatus
from psycopg.sql import Composable

from tallymark.errors import TransactionEnded, UsageError
from tallymark.store.postgres.connection import Connection
from tallymark.store.postgres.controlword import control_word

_REMEDY = "leave it out; raise an error to undo what the handler did, or use a savepoint for a part of it"


def refuse(what: str) -> NoReturn:
    """The handler tried to end the transaction that it works in."""
    raise UsageError(
        f"handler called {what}: the transaction is the inbox's, which commits effect and position together",
        remedy=_REMEDY,
    )


def refuse_control(query: object, prefix: str) -> None:
    """Refuse a statement that begins or ends a transaction, or sets its role or its kind."""
    if isinstance(query, bytes):
        query = query.decode("utf-8", "replace")
    elif isinstance(query, Composable):
        query = query.as_string()
    if isinstance(query, str) and (word := control_word(query)):
        if word.startswith(("SET", "RESET")):
            raise UsageError(
                f'handler called {prefix}("{word}"): it holds for what the inbox writes in the same transaction, too',
                remedy="let a function with SECURITY DEFINER, owned by the other role, do what needs that role",
            )
        refuse(f'{prefix}("{word}")')


def has_ended(connection: Connection, *, begun: bool) -> bool:
    """Whether the server is no longer in the transaction that was begun. Asks nothing of it."""
    return begun and not connection.closed and connection.pgconn.transaction_status == TransactionStatus.IDLE


def refuse_ended(connection: Connection, *, begun: bool) -> None:
    """Refuse to go on where the transaction is over."""
    if has_ended(connection, begun=begun):
        raise TransactionEnded(
            "handler called something that ended its transaction: what it had written until then stands or falls "
            "without its mark",
            remedy=_REMEDY,
        )


class GuardedCursor(psycopg.Cursor[Any]):
    """A cursor that does not end its connection's transaction."""

    def execute(self, query: Any, *args: Any, **kwargs: Any) -> Any:
        refuse_control(query, "tx.execute")
        return super().execute(query, *args, **kwargs)

    def executemany(self, query: Any, *args: Any, **kwargs: Any) -> None:
        refuse_control(query, "tx.executemany")
        super().executemany(query, *args, **kwargs)

    def stream(self, query: Any, *args: Any, **kwargs: Any) -> Any:
        refuse_control(query, "tx.stream")
        return super().stream(query, *args, **kwargs)

    def copy(self, statement: Any, *args: Any, **kwargs: Any) -> Any:
        refuse_control(statement, "tx.copy")
        return super().copy(statement, *args, **kwargs)


class GuardedConnection(psycopg.Connection[Any]):
    """psycopg's connection as handlers get it. `guarded` is on exactly while a transaction of ours is open."""

    guarded = False
    # Whether the next statement may begin a transaction: only our own first one.
    fresh = False
    # A SQLAlchemy session rolls back by itself when a flush failed: nothing happens then, for ours comes after it.
    forgiving = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.cursor_factory = GuardedCursor

    def commit(self) -> None:
        self._refuse("tx.commit()")
        super().commit()

    def rollback(self) -> None:
        if self.guarded and self.forgiving and self.pgconn.transaction_status == TransactionStatus.INERROR:
            return
        self._refuse("tx.rollback()")
        super().rollback()

    def close(self) -> None:
        self._refuse("tx.close()")
        super().close()

    def set_autocommit(self, value: bool) -> None:
        self._refuse("tx.set_autocommit()")
        super().set_autocommit(value)

    def _refuse(self, what: str) -> None:
        if self.guarded:
            refuse(what)

    def _start_query(self) -> PQGen[None]:
        # psycopg begins a transaction here where none is open. While ours is, that would be one which the handler
        # left behind by some way round the guard: what follows would no longer commit with it.
        if self.guarded:
            refuse_ended(self, begun=not self.fresh)
        self.fresh = False
        return super()._start_query()


def settled(connection: Connection, *, begun: bool) -> None:
    """Refuse to go on where the server is no longer in the transaction that was begun, or can only roll it back."""
    refuse_ended(connection, begun=begun)
    if connection.pgconn.transaction_status == TransactionStatus.INERROR:
        # Its COMMIT would be answered with a ROLLBACK, and no error.
        raise UsageError(
            "handler went on after a database error: the transaction can only be rolled back",
            remedy="let the error through, or put a savepoint around the statement that may fail",
        )
