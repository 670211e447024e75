"""Operators' actions over HTTP: the action, its audit row and its Idempotency-Key are one transaction.

A request that came before, by the same bearer with the same key, is answered with what it changed then; one that was
killed before its commit left nothing, and may come again. The actions themselves are those of the command line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

import psycopg

from tallymark.crashpoint import reached
from tallymark.errors import Problem, SchemaMismatch
from tallymark.store.postgres.connection import Connection
from tallymark.store.postgres.inboxfailed import InboxFailed
from tallymark.store.postgres.inboxoperators import InboxOperators
from tallymark.store.postgres.operators import Operators
from tallymark.store.postgres.searchpool import SearchPool
from tallymark.store.queries import load

Audit = Callable[[str, dict[str, Any]], None]
_Action = AbstractContextManager[tuple[Connection, Audit]]


class DoneBefore(Exception):
    """This very request was done before; `changed` is what it changed then."""

    def __init__(self, changed: list[str]) -> None:
        super().__init__("done before")
        self.changed = changed


class KeyReused(Problem):
    """An Idempotency-Key that came before with another request."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request for an action: what it asks for in words, and its key, where it brought one."""

    words: str
    key: str | None = None


def done_before(pool: SearchPool, schema: str, who: str, request: Request) -> list[str] | None:
    """What this very request changed when it came before; None where it did not, or brought no key."""
    if request.key is None:
        return None
    query = load("tallymark.store.postgres", "audit.sql", schema)["earlier"]
    with pool.connection() as connection:
        row = connection.execute(query, {"who": who, "key": request.key}).fetchone()
    if row is None:
        return None
    return _same(request, row)


def _same(request: Request, row: tuple[str, list[str]]) -> list[str]:
    if row[0] != request.words:
        raise KeyReused(
            "this Idempotency-Key came before, with another request", remedy="make a new key for each"
        )
    return list(row[1])


class Once:
    """Puts the key into the transaction of whatever action is run, and the key's name into its audit."""

    def __init__(self, schema: str, request: Request) -> None:
        self._sql = load("tallymark.store.postgres", "audit.sql", schema)
        self._request = request

    @contextmanager
    def around(self, action: _Action, who: str) -> Iterator[tuple[Connection, Audit]]:
        with action as (connection, audit):
            changed: list[str] = []

            def audited(subject: str, details: dict[str, Any]) -> None:
                changed.append(subject)
                key = {} if self._request.key is None else {"key": self._request.key}
                audit(subject, {**details, "by": "api", **key})

            self.take(connection, who)
            yield connection, audited
            self.done(connection, who, changed)
            reached("console.before_commit")
        reached("console.after_commit")

    def done(self, connection: Connection, who: str, changed: list[str]) -> None:
        """Keep what was changed beside the key."""
        if self._request.key is not None:
            parameters = {"who": who, "key": self._request.key, "changed": changed}
            connection.execute(self._sql["done"], parameters)

    def take(self, connection: Connection, who: str) -> None:
        """Take the key, before anything is done; raises DoneBefore where this request has."""
        if self._request.key is None:
            return
        parameters = {"who": who, "key": self._request.key, "request": self._request.words}
        try:
            taken = connection.execute(self._sql["once"], parameters).fetchone()
        except psycopg.errors.UndefinedTable as error:
            raise SchemaMismatch(
                "there is no table of actions in this database", remedy="run `tallymark init`"
            ) from error
        if taken is None:
            self._refuse(connection, parameters)
        connection.execute(self._sql["forget"])

    def _refuse(self, connection: Connection, parameters: dict[str, str]) -> NoReturn:
        row = connection.execute(self._sql["earlier"], parameters).fetchone()
        raise DoneBefore(_same(self._request, (row[0], row[1]) if row else (self._request.words, [])))


class _Audited:
    """Their actions belong to one request, and are done once for it."""

    def __init__(self, url: str, *, schema: str, request: Request) -> None:
        super().__init__(url, schema=schema)  # type: ignore[call-arg]  # the class beside it takes both
        self._once = Once(schema, request)

    @contextmanager
    def _action(self, action: str, who: str, reason: str) -> Iterator[tuple[Connection, Audit]]:
        acting = super()._action(action, who, reason)  # type: ignore[misc]  # and has this
        with self._once.around(acting, who) as opened:
            yield opened


class AuditedOperators(_Audited, Operators):
    """A relay's operators, for one request."""


class AuditedInbox(_Audited, InboxOperators):
    """A consumer's operators, for one request."""


class AuditedFailed(_Audited, InboxFailed):
    """What failed at an inbox, for one request: an id may have several dead letters, and its key answers for all."""

    _together = True
