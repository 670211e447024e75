"""The caller's own transaction, whatever it is: psycopg, SQLAlchemy or Django; asynchronous psycopg, SQLAlchemy, asyncpg.

`caller_of(tx)` and `async_caller_of(tx)` recognise the object and give a `Caller`: one statement with parameters in,
its first row out. Each refuses a connection that is not in a transaction, where a message could not share the fate
of the business data. Nothing but psycopg is imported: the others are known by their module's name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import psycopg
from psycopg.pq import TransactionStatus

from tallymark.errors import NotInTransaction, UsageError

Row = Sequence[Any] | None


class Caller(Protocol):
    """A transaction that somebody else began. `sql` writes its parameters as %s."""

    def run(self, sql: str, parameters: Sequence[Any]) -> None: ...

    def fetch(self, sql: str, parameters: Sequence[Any]) -> Row: ...

    def psycopg(self) -> psycopg.Connection[Any] | None:
        """The psycopg 3 connection beneath, for COPY; None where there is none.

        Only after a `run` or a `fetch`: what is done beneath its owner begins no transaction that the owner knows of,
        and so commits with none.
        """


class AsyncCaller(Protocol):
    async def fetch(self, sql: str, parameters: Sequence[Any]) -> Row: ...


def caller_of(tx: Any, *, reading: bool = False) -> Caller:
    """Recognise a synchronous transaction. `reading` needs none: a look in autocommit is as good as any."""
    if isinstance(tx, psycopg.Cursor):
        tx = tx.connection
    if isinstance(tx, psycopg.Connection):
        return _Psycopg(tx, reading)
    home = type(tx).__module__.partition(".")[0]
    if home == "sqlalchemy" or hasattr(tx, "sync_session") or _looks_like_session(tx):
        if _is_async_sqlalchemy(tx):
            raise _wrong_colour(tx)
        return _SqlAlchemy(tx, reading)
    if home == "django" or hasattr(tx, "in_atomic_block"):
        return _Django(tx, reading)
    if isinstance(tx, psycopg.AsyncConnection | psycopg.AsyncCursor) or home == "asyncpg":
        raise _wrong_colour(tx)
    raise _unknown(tx)


def async_caller_of(tx: Any) -> AsyncCaller:
    """Recognise an asynchronous transaction."""
    if isinstance(tx, psycopg.AsyncCursor):
        tx = tx.connection
    if isinstance(tx, psycopg.AsyncConnection):
        return _AsyncPsycopg(tx)
    home = type(tx).__module__.partition(".")[0]
    if home == "asyncpg":
        return _Asyncpg(tx)
    if _is_async_sqlalchemy(tx):
        return _AsyncSqlAlchemy(tx)
    raise _unknown(tx)


class _Psycopg:
    def __init__(self, connection: psycopg.Connection[Any], reading: bool) -> None:
        if not reading:
            _refuse_autocommit(connection)
        self._connection = connection

    def run(self, sql: str, parameters: Sequence[Any]) -> None:
        self._connection.execute(sql, parameters)

    def fetch(self, sql: str, parameters: Sequence[Any]) -> Row:
        with self._connection.cursor(row_factory=psycopg.rows.tuple_row) as cursor:
            return cursor.execute(sql, parameters).fetchone()

    def psycopg(self) -> psycopg.Connection[Any]:
        return self._connection


class _SqlAlchemy:
    def __init__(self, tx: Any, reading: bool) -> None:
        # A Session's pending UPDATE must take its row locks before the message draws its position (pitfall 5).
        if hasattr(tx, "flush"):
            tx.flush()
            tx = tx.connection()
        self._connection = tx
        if not reading:
            _refuse_sqlalchemy_autocommit(tx)

    def fetch(self, sql: str, parameters: Sequence[Any]) -> Row:
        from sqlalchemy import text

        named, values = _named(sql, parameters)
        row: Row = self._connection.execute(text(named), values).fetchone()
        return row

    def run(self, sql: str, parameters: Sequence[Any]) -> None:
        from sqlalchemy import text

        named, values = _named(sql, parameters)
        self._connection.execute(text(named), values)

    def psycopg(self) -> psycopg.Connection[Any] | None:
        raw = self._connection.connection.dbapi_connection
        return raw if isinstance(raw, psycopg.Connection) else None


class _Django:
    def __init__(self, connection: Any, reading: bool) -> None:
        if not reading and not connection.in_atomic_block and connection.get_autocommit():
            raise _not_in_transaction("Django's connection is not in an atomic block")
        self._connection = connection

    def fetch(self, sql: str, parameters: Sequence[Any]) -> Row:
        with self._connection.cursor() as cursor:
            cursor.execute(sql, parameters)
            row: Row = cursor.fetchone()
            return row

    def run(self, sql: str, parameters: Sequence[Any]) -> None:
        with self._connection.cursor() as cursor:
            cursor.execute(sql, parameters)

    def psycopg(self) -> psycopg.Connection[Any] | None:
        raw = self._connection.connection
        return raw if isinstance(raw, psycopg.Connection) else None


class _AsyncPsycopg:
    def __init__(self, connection: psycopg.AsyncConnection[Any]) -> None:
        _refuse_autocommit(connection)
        self._connection = connection

    async def fetch(self, sql: str, parameters: Sequence[Any]) -> Row:
        async with self._connection.cursor(row_factory=psycopg.rows.tuple_row) as cursor:
            await cursor.execute(sql, parameters)
            return await cursor.fetchone()


class _AsyncSqlAlchemy:
    def __init__(self, tx: Any) -> None:
        self._tx = tx

    async def fetch(self, sql: str, parameters: Sequence[Any]) -> Row:
        from sqlalchemy import text

        tx = self._tx
        if hasattr(tx, "flush"):
            await tx.flush()
            tx = await tx.connection()
        _refuse_sqlalchemy_autocommit(tx.sync_connection)
        named, values = _named(sql, parameters)
        row: Row = (await tx.execute(text(named), values)).fetchone()
        return row


class _Asyncpg:
    def __init__(self, connection: Any) -> None:
        if not connection.is_in_transaction():
            raise _not_in_transaction("the asyncpg connection is not in a transaction")
        self._connection = connection

    async def fetch(self, sql: str, parameters: Sequence[Any]) -> Row:
        pieces = sql.split("%s")
        numbered = pieces[0] + "".join(f"${number}{piece}" for number, piece in enumerate(pieces[1:], 1))
        row: Row = await self._connection.fetchrow(numbered, *parameters)
        return row


def _named(sql: str, parameters: Sequence[Any]) -> tuple[str, dict[str, Any]]:
    pieces = sql.split("%s")
    named = pieces[0] + "".join(f":p{number}{piece}" for number, piece in enumerate(pieces[1:]))
    return named, {f"p{number}": value for number, value in enumerate(parameters)}


def _refuse_autocommit(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
    if connection.autocommit and connection.pgconn.transaction_status == TransactionStatus.IDLE:
        raise _not_in_transaction("the psycopg connection is in autocommit and no transaction is open")


def _refuse_sqlalchemy_autocommit(connection: Any) -> None:
    """Whether it was set for this connection or for its whole engine: the driver's own connection knows."""
    raw = connection.connection.dbapi_connection
    if (
        connection.get_execution_options().get("isolation_level") == "AUTOCOMMIT"
        or getattr(raw, "autocommit", False) is True
    ):
        raise _not_in_transaction("the SQLAlchemy connection is in AUTOCOMMIT")


def _looks_like_session(tx: Any) -> bool:
    return any(base.__module__.startswith("sqlalchemy.") for base in type(tx).__mro__)


def _is_async_sqlalchemy(tx: Any) -> bool:
    return any(base.__module__.startswith("sqlalchemy.ext.asyncio") for base in type(tx).__mro__)


def _not_in_transaction(what: str) -> NotInTransaction:
    return NotInTransaction(
        f"a message can only be added inside a transaction: {what}",
        remedy="begin one, so that the message commits or rolls back with the business data",
    )


def _wrong_colour(tx: Any) -> UsageError:
    return UsageError(f"{type(tx).__name__} is asynchronous", remedy="use `await outbox.add_async(…)`")


def _unknown(tx: Any) -> UsageError:
    return UsageError(
        f"{type(tx).__module__}.{type(tx).__name__} is not a transaction that the outbox knows",
        remedy="pass a psycopg connection or cursor, a SQLAlchemy connection or session, Django's connection, "
        "or with add_async their asynchronous forms or asyncpg's",
    )
