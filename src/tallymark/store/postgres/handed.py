"""The transaction that a handler works in: ours, whatever the handler is given of it.

`Hands` begins and ends transactions on one database session, and comes back after it was lost. What a handler gets is
guarded (handedguard.py): it can read, write and set savepoints, and not end the transaction.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime
from typing import Any, Protocol, cast

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from tallymark.errors import OutcomeUnknown
from tallymark.lifecycle import Role
from tallymark.store.postgres.connection import Connection, commit, connect, place_of
from tallymark.store.postgres.handedchecks import DeferredChecks
from tallymark.store.postgres.handedguard import GuardedConnection, GuardedCursor, has_ended, settled
from tallymark.store.postgres.migrations import require_schema

# A handler may think for long between two statements: the minute that other connections of ours have would end it.
# Not without any end: a process that is stopped (SIGSTOP) in mid-handler must not hold its key for ever.
IDLE_LIMIT_S = 900.0

_SESSION = (
    "select pg_backend_pid(), (select backend_start from pg_stat_activity where pid = pg_backend_pid())"
)
# By the moment it began, too: its number may belong to someone else by now.
_END = "select pg_terminate_backend(pid, 5000) from pg_stat_activity where pid = %s and backend_start = %s"


class Hands(Protocol):
    """One database session: a transaction at a time, and what a handler gets of it."""

    def transaction(self) -> AbstractContextManager[Connection]:
        """Commits at the end of the block, rolls back where it raises; OutcomeUnknown where the session was lost."""

    def restart(self) -> None:
        """Roll back and begin again: nothing was written that is still wanted."""

    @property
    def handed(self) -> Any: ...

    @property
    def lost(self) -> bool: ...

    @property
    def over(self) -> bool: ...

    def savepoint(self) -> AbstractContextManager[None]: ...

    def settle(self, *, check: bool = False) -> None: ...

    def abort(self) -> None:
        """From another thread: end the session at the server."""

    def close(self) -> None: ...


def ours(connection: Connection, *, binary: bool = False) -> psycopg.Cursor[tuple[Any, ...]]:
    """A cursor for our own statements, whatever row factory or cursor class the handler has set."""
    cursor = psycopg.Cursor(connection, row_factory=tuple_row)
    if binary:
        cursor.format = psycopg.pq.Format.BINARY
    return cursor


class PsycopgHands:
    """Handlers get the psycopg connection itself."""

    def __init__(
        self,
        url: str,
        *,
        schema: str,
        application: str,
        prepare_threshold: int | None = 5,
        idle_limit_s: float = IDLE_LIMIT_S,
    ) -> None:
        self._url = url
        self._schema = schema
        self._application = application
        self._prepare_threshold = prepare_threshold
        self._idle_limit_s = idle_limit_s
        self._connection: GuardedConnection | None = None
        self._ender = SessionEnder(url)
        self._checks = DeferredChecks()

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        connection = self._open()
        connection.row_factory, connection.cursor_factory = tuple_row, GuardedCursor
        connection.guarded = connection.fresh = True
        self._checks = DeferredChecks()
        try:
            try:
                yield connection
                self.settle()
            finally:
                connection.guarded = False
        except BaseException as error:
            try:
                undo(connection, error, self._url)
            finally:
                self._ended()
            raise
        try:
            commit(connection, connection.commit, self._url)
        finally:
            self._ended()

    def restart(self) -> None:
        connection = self._current()
        connection.guarded = False
        connection.rollback()
        connection.guarded = connection.fresh = True

    @property
    def handed(self) -> Any:
        connection = self._current()
        if connection.pgconn.transaction_status == TransactionStatus.IDLE and connection.fresh:
            ours(connection).execute(
                "select", prepare=False
            )  # it begins: a savepoint needs something to be in
        return connection

    @property
    def lost(self) -> bool:
        return self._connection is None or self._connection.closed

    @property
    def over(self) -> bool:
        connection = self._current()
        return has_ended(connection, begun=not connection.fresh)

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        connection: GuardedConnection = self.handed
        with connection.transaction():
            yield

    def settle(self, *, check: bool = False) -> None:
        connection = self._current()
        settled(connection, begun=not connection.fresh)
        if check:
            self._checks.run(ours(connection))

    def abort(self) -> None:
        self._ender.end()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.guarded = False
            self._connection.close()
            self._connection = None

    def _ended(self) -> None:
        """The transaction has ended, one way or the other. For what is built on it."""

    def _opened(self, connection: GuardedConnection) -> None:
        """A new connection, before its first transaction."""

    def _current(self) -> GuardedConnection:
        if self._connection is None:
            raise AssertionError("no transaction is open")
        return self._connection

    def _open(self) -> GuardedConnection:
        if self._connection is not None and (self._connection.closed or self._ender.ended):
            self.close()
        if self._connection is None:
            connection = cast(
                GuardedConnection,
                connect(
                    self._url,
                    application=self._application,
                    kind=GuardedConnection,
                    prepare_threshold=self._prepare_threshold,
                ),
            )
            try:
                require_schema(connection, self._schema, Role.CONSUMER)
                connection.execute(
                    f"set idle_in_transaction_session_timeout = {int(self._idle_limit_s * 1000)}"
                )
                self._ender.succeed(connection)
                connection.autocommit = False
                self._opened(connection)
            except BaseException:
                connection.close()
                raise
            self._connection = connection
        return self._connection


class SessionEnder:
    """Ends one session at the server, by its process and the moment it began, from any thread."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._lock = threading.Lock()
        self._session: tuple[int, datetime] | None = None
        self.ended = False

    def succeed(self, connection: Connection) -> None:
        """This is our session now. The one before it may live on at the server, cut off from us and with our locks."""
        with self._lock:
            before = self._session
        if before is not None:
            # Of our name still: behind a pooler it may be another's by now.
            named = f"{_END} and application_name = current_setting('application_name')"
            ours(connection).execute(named, before, prepare=False)
        row = ours(connection).execute(_SESSION, prepare=False).fetchone()
        with self._lock:
            self._session = cast("tuple[int, datetime] | None", row)
            self.ended = False

    def end(self) -> None:
        with self._lock:
            session, self.ended = self._session, True
        if session is None:
            return
        with connect(self._url, application="tallymark inbox") as connection:
            connection.execute(_END, session)


def undo(connection: Connection, error: BaseException, url: str) -> None:
    """Roll back; where that cannot be said, because the session is gone, OutcomeUnknown takes the error's place."""
    gone: BaseException | None = error if connection.closed else None
    if gone is None:
        try:
            connection.rollback()
        except psycopg.Error as failure:
            connection.close()
            gone = failure
    ours_already = isinstance(error, OutcomeUnknown) or not isinstance(error, Exception)
    if gone is not None and not ours_already:
        raise OutcomeUnknown(f"lost the connection to {place_of(url)} in mid-transaction") from error
