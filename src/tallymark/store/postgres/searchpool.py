"""A few connections for looking, shared by all requests, that can never do harm to those who write.

Read-only, each statement limited in time, no more than a handful per database: however many ask, relay and inbox go on
as before. Who finds none free within a moment is told so. A lost connection is replaced; reading again is safe.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from tallymark.errors import Problem, Unreachable
from tallymark.store.postgres.connection import Connection, connect, explain, is_direct, is_gone, place_of

_PATIENCE_S = 3.0
# For the transaction, not for the session: behind a pooler the session is somebody else's next.
_BEGIN = b"begin read only; set local statement_timeout = '10s'; set local lock_timeout = '2s'; set local jit = off; "
# What is searched for decides how: each question gets a plan of its own.
_SEARCH = b"set local plan_cache_mode = force_custom_plan"
# One message is looked up by its id in tables of many partitions: to plan that takes longer than to do it, and once per
# connection is enough. By index even where a partition was empty when it was planned.
_LOOKUP = b"set local plan_cache_mode = force_generic_plan; set local enable_seqscan = off"
# The same question for the third time is prepared.
_PREPARED_AFTER = 2


class Busy(Problem):
    """Too many ask at once, or for too much; nothing is wrong, and later it will do."""


class SearchPool:
    """Connections to one database, lent one at a time."""

    def __init__(self, url: str, *, size: int = 8, application: str = "tallymark serve") -> None:
        self.size = size
        self._url = url
        self._application = application
        self._idle: queue.LifoQueue[Connection] = queue.LifoQueue()
        self._places = threading.Semaphore(size)
        self._lent = 0
        self._count = threading.Lock()

    @property
    def lent(self) -> int:
        """How many are in use now."""
        return self._lent

    @property
    def place(self) -> str:
        return place_of(self._url)

    @contextmanager
    def connection(self, *, patience_s: float = _PATIENCE_S, lookup: bool = False) -> Iterator[Connection]:
        """One for the block, in a transaction that can only read. Errors of the database come in our words.

        `lookup`: everything in it is found by an id.
        """
        if not self._places.acquire(timeout=patience_s):
            raise Busy(
                f"all {self.size} connections to this database are in use",
                remedy="try again in a moment, or ask for less at once",
            )
        with self._count:
            self._lent += 1
        connection: Connection | None = None
        try:
            connection = self._begun(_BEGIN + (_LOOKUP if lookup else _SEARCH))
            yield connection
            connection.execute("commit")
        except psycopg.errors.QueryCanceled as error:
            raise Busy(
                "this takes too long", remedy="ask for less: a shorter time, a topic, a page"
            ) from error
        except psycopg.Error as error:
            raise explain(error, self._url) from error
        finally:
            if connection is not None:
                self._given_back(connection)
            with self._count:
                self._lent -= 1
            self._places.release()

    def answers(self) -> bool:
        """Whether the database can be asked now."""
        try:
            with self.connection(patience_s=1.0) as connection:
                connection.execute("select 1")
        except Busy:
            return True  # it is asked all the time
        except (Unreachable, Problem):
            return False
        return True

    def close(self) -> None:
        while True:
            try:
                self._idle.get_nowait().close()
            except queue.Empty:
                return

    def _begun(self, begin: bytes) -> Connection:
        """One in a transaction. The server may have closed those that lay idle: the beginning tells, each is let go."""
        while True:
            try:
                connection = self._idle.get_nowait()
            except queue.Empty:
                break
            try:
                connection.execute(begin)
            except psycopg.Error as error:
                connection.close()
                if not is_gone(error):
                    raise
            else:
                return connection
        connection = connect(self._url, application=self._application)
        try:
            if is_direct(connection):
                connection.prepare_threshold = _PREPARED_AFTER
            connection.execute(begin)
        except psycopg.Error:
            connection.close()
            raise
        return connection

    def _given_back(self, connection: Connection) -> None:
        try:
            if connection.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
                connection.execute("rollback")
        except psycopg.Error:
            connection.close()
        if not connection.closed:
            self._idle.put(connection)
