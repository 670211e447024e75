"""Handlers get a SQLAlchemy session, on the connection and in the transaction that are the inbox's.

An engine is made per connection, when it is opened; a session per transaction, when a handler asks for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import psycopg

from tallymark.errors import UsageError
from tallymark.store.postgres.handed import PsycopgHands
from tallymark.store.postgres.handedguard import GuardedConnection, refuse

try:
    from sqlalchemy import create_engine
    from sqlalchemy.engine import Engine
    from sqlalchemy.exc import DBAPIError
    from sqlalchemy.orm import Session
    from sqlalchemy.pool import StaticPool
except ImportError as error:
    raise UsageError(
        'tx="sqlalchemy" needs SQLAlchemy, which is not installed', remedy="pip install 'sqlalchemy>=2.0'"
    ) from error


class HandedSession(Session):
    """A session whose end is not the handler's to decide. begin_nested() is."""

    def commit(self) -> NoReturn:
        refuse("tx.commit()")

    def rollback(self) -> NoReturn:
        refuse("tx.rollback()")

    def close(self) -> NoReturn:
        refuse("tx.close()")

    def reset(self) -> NoReturn:
        refuse("tx.reset()")

    def invalidate(self) -> NoReturn:
        refuse("tx.invalidate()")

    def prepare(self) -> NoReturn:
        refuse("tx.prepare()")


class AlchemyHands(PsycopgHands):
    """As PsycopgHands, with a session around the connection."""

    _engine: Engine | None = None
    _session: HandedSession | None = None

    @property
    def handed(self) -> Any:
        connection: GuardedConnection = super().handed
        if self._session is None:
            if self._engine is None:
                raise AssertionError(f"no engine was made for {connection}")
            # Not autobegun by a begin() of the handler's: it would look like one of its own.
            self._session = HandedSession(self._engine, expire_on_commit=False)
        return self._session

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        # Through the session, so that the objects that it holds go back with the rows.
        with self.handed.begin_nested():
            yield

    def settle(self, *, check: bool = False) -> None:
        if self._session is not None:
            self._session.flush()
        super().settle(check=check)

    def close(self) -> None:
        self._ended()
        super().close()
        self._engine = None

    def _opened(self, connection: GuardedConnection) -> None:
        engine = create_engine(
            "postgresql+psycopg://",
            creator=lambda: connection,
            poolclass=StaticPool,
            # Returning a connection to the pool must not end the transaction that it is in.
            pool_reset_on_return=None,
        )
        # The dialect asks the server about itself at the first connection, and rolls back: now, and not later.
        engine.connect().close()
        connection.rollback()
        connection.forgiving = True
        self._engine = engine

    def _ended(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            try:
                Session.close(session)
            except (DBAPIError, psycopg.Error):  # the connection is gone, and the session with it
                return
