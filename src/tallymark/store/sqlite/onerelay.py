"""One relay per file: a lock that the operating system takes back when its process dies, whatever it died of.

The lock is a write transaction left open on an empty database beside the file (`PATH-relay`). Its holder knows that
whoever had the lane before has ended, so it need not wait for a lease: a cold start sends at once.
"""

from __future__ import annotations

import sqlite3

from tallymark.errors import Problem
from tallymark.store.sqlite.schema import explain
from tallymark.store.sqlite.session import SqliteSession


class OneRelay:
    """Held for as long as the relay runs."""

    def __init__(self, path: str, *, schema: str = "tallymark") -> None:
        self._path = path
        self._schema = schema
        self._lock: sqlite3.Connection | None = None

    def hold(self) -> None:
        """Take the file, or say who has it. Held already, nothing changes."""
        if self._lock is not None:
            return
        lock = sqlite3.connect(
            f"{self._path}-relay", timeout=0, isolation_level=None, check_same_thread=False
        )
        session = SqliteSession(self._path, schema=self._schema, file="relay.sql")
        try:
            try:
                lock.execute("begin exclusive")
            except sqlite3.OperationalError as error:
                if getattr(error, "sqlite_errorcode", None) != sqlite3.SQLITE_BUSY:
                    raise explain(error, self._path) from error
                raise self._held(session) from error
            with session.transaction():
                session.rows("release_dead")
                session.rows("forget_dead")
        except BaseException:
            lock.close()
            raise
        finally:
            session.close()
        self._lock = lock

    def let_go(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _held(self, session: SqliteSession) -> Problem:
        row = session.row("holder")
        who = f"relay {row[0]} (pid {row[2]} on {row[1]})" if row else "another relay"
        return Problem(
            f"{self._path} is served by {who}",
            remedy="an outbox on SQLite has one relay: stop that one first",
        )
