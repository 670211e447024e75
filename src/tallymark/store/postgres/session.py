"""A connection that comes back: named queries over a database that may be restarted under us.

A statement that failed because the connection went away raises `OutcomeUnknown`: it may have committed. The next
statement opens a new connection. Nothing is retried here; whoever asked knows what a second try would mean.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import psycopg

from tallymark.errors import OutcomeUnknown, UsageError
from tallymark.lifecycle import Role
from tallymark.store.postgres.connection import Connection, connect, explain, is_direct, is_gone, place_of
from tallymark.store.postgres.migrations import require_schema
from tallymark.store.queries import load


class Session:
    """Runs the named queries of one .sql file, each as a transaction of its own."""

    def __init__(
        self,
        url: str,
        *,
        schema: str,
        file: str,
        application: str,
        role: Role,
        connect: Callable[..., Connection] = connect,
    ) -> None:
        self._url = url
        self._connect = connect
        self._schema = schema
        self._application = application
        self._role = role
        self._sql = load("tallymark.store.postgres", file, schema)
        self._connection: Connection | None = None

    def rows(
        self, name: str, parameters: Mapping[str, Any] | None = None, *, binary: bool = False
    ) -> list[Any]:
        """Run a query; gives back its rows (none for one that returns nothing)."""
        cursor = self._run(name, parameters, binary=binary)
        return cursor.fetchall() if cursor.description else []

    def count(self, name: str, parameters: Mapping[str, Any] | None = None) -> int:
        """Run a query; gives back how many rows it changed."""
        return self._run(name, parameters).rowcount

    def _run(
        self, name: str, parameters: Mapping[str, Any] | None, *, binary: bool = False
    ) -> psycopg.Cursor[tuple[Any, ...]]:
        connection = self._open()
        try:
            return connection.execute(self._sql[name], parameters, binary=binary)
        except psycopg.Error as error:
            if is_gone(error) or connection.closed:
                self.close()
                raise OutcomeUnknown(f"lost the connection to {place_of(self._url)} during {name}") from error
            raise explain(error, self._url) from error

    def row(self, name: str, parameters: Mapping[str, Any] | None = None) -> Any:
        """The first row, or None."""
        found = self.rows(name, parameters)
        return found[0] if found else None

    def listen(self, name: str, seconds: float) -> bool:
        """Whether someone called within `seconds`. Needs a connection of its own, not a pooled one."""
        fresh = self._connection is None or self._connection.closed
        connection = self._open()
        try:
            if fresh:
                if not is_direct(connection):
                    raise UsageError(
                        f"nobody can be woken through a pooler in transaction mode: {place_of(self._url)}",
                        remedy="give the relay a direct connection, or leave relay.notify out of the settings",
                    )
                connection.execute(self._sql[name])
            return any(True for _ in connection.notifies(timeout=seconds, stop_after=1))
        except psycopg.Error as error:
            self.close()
            raise explain(error, self._url) from error

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _open(self) -> Connection:
        if self._connection is None or self._connection.closed:
            connection = self._connect(self._url, application=self._application)
            try:
                require_schema(connection, self._schema, self._role)
            except psycopg.Error as error:
                connection.close()
                raise explain(error, self._url) from error
            except BaseException:
                connection.close()
                raise
            self._connection = connection
        return self._connection
