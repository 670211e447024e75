"""A connection of the relay's own to the outbox's file: named queries, and transactions that say how they ended.

What could not begin (another writer has the file) changed nothing and raises `Unreachable`. A commit that failed for
another reason than that raises `OutcomeUnknown`. Nothing is retried here.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tallymark.errors import OutcomeUnknown
from tallymark.store.sqlite.schema import connect, create, explain, queries


class SqliteSession:
    """Runs the named queries of one .sql file. Used by one thread at a time."""

    def __init__(self, path: str, *, schema: str, file: str) -> None:
        self.path = path
        self._schema = schema
        self._sql = queries(file, schema)
        self._connection: sqlite3.Connection | None = None

    def rows(self, name: str, parameters: Mapping[str, Any] | None = None) -> list[Any]:
        """Run a query; gives back its rows. Outside a transaction it is one of its own."""
        try:
            return self._open().execute(self._sql[name], parameters or {}).fetchall()
        except sqlite3.Error as error:
            raise explain(error, self.path) from error

    def row(self, name: str, parameters: Mapping[str, Any] | None = None) -> Any:
        """The first row, or None."""
        found = self.rows(name, parameters)
        return found[0] if found else None

    def count(self, name: str, parameters: Mapping[str, Any] | None = None) -> int:
        """Run a query; gives back how many rows it changed."""
        try:
            return self._open().execute(self._sql[name], parameters or {}).rowcount
        except sqlite3.Error as error:
            raise explain(error, self.path) from error

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """One writing transaction: all of it or nothing."""
        connection = self._open()
        try:
            connection.execute("begin immediate")
        except sqlite3.Error as error:
            raise explain(error, self.path) from error
        try:
            yield
            self._commit(connection)
        except BaseException:
            if connection.in_transaction:
                connection.execute("rollback")
            raise

    def _commit(self, connection: sqlite3.Connection) -> None:
        try:
            connection.execute("commit")
        except sqlite3.Error as error:
            if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_BUSY:
                raise explain(error, self.path) from error
            raise OutcomeUnknown(f"a commit to {self.path} failed: {error}") from error

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            create(self.path, self._schema)
            self._connection = connect(self.path)
        return self._connection
