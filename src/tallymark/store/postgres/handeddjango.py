"""Handlers get Django's connection; the inbox's transaction is Django's atomic block on it.

Django's connections are per thread, and so is this. The block is durable: it refuses to be a part of another one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus

from tallymark.errors import OutcomeUnknown, UsageError
from tallymark.lifecycle import Role
from tallymark.store.postgres.connection import KEEPALIVES, Connection, connect, explain, place_of
from tallymark.store.postgres.handed import IDLE_LIMIT_S, SessionEnder, ours
from tallymark.store.postgres.handedchecks import DeferredChecks
from tallymark.store.postgres.handedguard import has_ended, refuse, refuse_control, refuse_ended, settled
from tallymark.store.postgres.migrations import require_schema

try:
    from django.db import DatabaseError, InterfaceError, OperationalError, connections, transaction
except ImportError as error:
    raise UsageError(
        'tx="django" needs Django, which is not installed', remedy="pip install 'django>=5.1'"
    ) from error

# What Django's own atomic block does at its end, and a handler must not.
_OURS = ("commit", "rollback", "close", "set_autocommit")
_WHERE = (
    "select current_database(), current_setting('port'), current_setting('transaction_isolation'),"
    " (select oid from pg_database where datname = current_database())"
)
_SET = "select set_config(name, value, false) from unnest(%s::text[], %s::text[]) s(name, value)"


class DjangoHands:
    """One thread's connection of one alias."""

    def __init__(
        self,
        url: str,
        *,
        schema: str,
        application: str,
        alias: str = "default",
        idle_limit_s: float = IDLE_LIMIT_S,
    ) -> None:
        self._url = url
        self._settings = {
            "application_name": application,
            "idle_in_transaction_session_timeout": str(int(idle_limit_s * 1000)),
            **KEEPALIVES,
        }
        self._schema = schema
        self._alias = alias
        self._known: Connection | None = None
        self._checked: Connection | None = None
        self._raw: Connection | None = None
        self._begun = False
        self._ender = SessionEnder(url)
        self._checks = DeferredChecks()

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        django = self._django()
        raw: Connection | None = None
        try:
            self._set_up(django)
            with transaction.atomic(using=self._alias, durable=True):
                raw = self._raw = self._checked_raw(django)
                self._begun, self._checks = False, DeferredChecks()
                with self._guarded(django):
                    yield raw
                    self.settle()
        except Exception as error:
            if raw is not None and raw.closed and not isinstance(error, OutcomeUnknown):
                raise OutcomeUnknown(
                    f"lost the connection to {place_of(self._url)} in a transaction"
                ) from error
            if raw is None and isinstance(error, OperationalError | InterfaceError | psycopg.Error):
                cause = error if isinstance(error, psycopg.Error) else error.__cause__
                raise (explain(cause, self._url) if isinstance(cause, psycopg.Error) else error) from error
            raise
        finally:
            self._raw = None

    def restart(self) -> None:
        # Beneath Django: its block stays as it is, and psycopg begins anew with the next statement.
        self._current().rollback()
        self._begun = False

    @property
    def handed(self) -> Any:
        raw = self._current()
        if not self._begun and raw.pgconn.transaction_status == TransactionStatus.IDLE:
            ours(raw).execute(
                "select", prepare=False
            )  # it begins: from now on idle means that someone ended it
        self._begun = True
        return connections[self._alias]

    @property
    def lost(self) -> bool:
        return self._raw is None or self._raw.closed

    @property
    def over(self) -> bool:
        return has_ended(self._current(), begun=self._begun)

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        with transaction.atomic(using=self._alias):
            yield

    def settle(self, *, check: bool = False) -> None:
        django = connections[self._alias]
        if django.needs_rollback:
            raise UsageError(
                "handler went on after a database error: the transaction can only be rolled back",
                remedy="let the error through, or put transaction.atomic() around the statement that may fail",
            )
        settled(self._current(), begun=self._begun)
        if check:
            self._checks.run(ours(self._current()))

    def abort(self) -> None:
        self._ender.end()

    def close(self) -> None:
        with suppress(DatabaseError):
            connections[self._alias].close()

    def _django(self) -> Any:
        django = connections[self._alias]
        if self._ender.ended:
            django.close()
        django.close_if_unusable_or_obsolete()
        return django

    def _current(self) -> Connection:
        if self._raw is None:
            raise AssertionError("no transaction is open")
        return self._raw

    @contextmanager
    def _guarded(self, django: Any) -> Iterator[None]:
        """Until the end of the block, what would end it is refused: by method, and by statement."""
        for name in _OURS:
            setattr(django, name, _refusing(name))
        try:
            with django.execute_wrapper(self._refuse_statement):
                yield
        finally:
            for name in _OURS:
                delattr(django, name)

    def _refuse_statement(self, execute: Callable[..., Any], statement: Any, *rest: Any) -> Any:
        refuse_control(statement, "cursor.execute")
        # psycopg would begin a transaction that is not ours, and what follows would look as if nothing had been.
        refuse_ended(self._current(), begun=self._begun)
        return execute(statement, *rest)

    def _set_up(self, django: Any) -> None:
        """A new connection of Django's gets the settings that our own have. Outside the block: they are to stay."""
        django.ensure_connection()
        raw = django.connection
        if raw is self._known or django.in_atomic_block or not isinstance(raw, psycopg.Connection):
            return
        if not django.get_autocommit():
            raise UsageError(
                f"Django's {self._alias!r} has AUTOCOMMIT off: a block would not commit what it has done",
                remedy="leave AUTOCOMMIT out of its settings",
            )
        names, values = list(self._settings), list(self._settings.values())
        ours(raw).execute(_SET, [names, values], prepare=False)
        self._ender.succeed(raw)
        self._known = raw

    def _checked_raw(self, django: Any) -> Connection:
        """The psycopg connection beneath, once it is known to be to the right database."""
        django.ensure_connection()
        raw = django.connection
        if self._checked is not None and raw is self._checked:
            return self._checked
        if not isinstance(raw, psycopg.Connection):
            raise UsageError(
                f"Django's connection {self._alias!r} is not psycopg 3's but {type(raw).__module__}'s",
                remedy="use django.db.backends.postgresql with psycopg 3 (pip install 'psycopg[binary]')",
            )
        found = ours(raw).execute(_WHERE, prepare=False).fetchone()
        with connect(self._url, application="tallymark inbox") as other:
            wanted = ours(other).execute(_WHERE, prepare=False).fetchone()
            require_schema(other, self._schema, Role.CONSUMER)
        if (
            found is None
            or wanted is None
            or (found[0], found[1], found[3]) != (wanted[0], wanted[1], wanted[3])
        ):
            raise UsageError(
                f"Django's {self._alias!r} is database {found and found[0]} (port {found and found[1]}), the inbox's "
                f"is {wanted and wanted[0]} (port {wanted and wanted[1]})",
                remedy="point both to the same database: effect and position must commit together",
            )
        if found[2] != "read committed":
            raise UsageError(
                f"Django's {self._alias!r} runs at isolation level {found[2]}",
                remedy="leave isolation_level out of its OPTIONS: the inbox needs READ COMMITTED",
            )
        self._checked = raw
        return raw


def _refusing(name: str) -> Callable[..., None]:
    return lambda *_, **__: refuse(f"tx.{name}()")
