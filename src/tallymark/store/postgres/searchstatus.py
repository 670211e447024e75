"""Status of relays and inboxes through the pool of those who only look: bounded, read-only, limited in time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

from tallymark.lifecycle import Role
from tallymark.store.postgres.connection import Connection
from tallymark.store.postgres.inboxoperators import InboxOperators
from tallymark.store.postgres.migrations import require_schema
from tallymark.store.postgres.operators import Operators
from tallymark.store.postgres.searchpool import SearchPool


class _Pooled:
    """Their connections come from the pool instead of a URL."""

    _role: ClassVar[Role]
    _schema: str

    def __init__(self, pool: SearchPool, *, schema: str) -> None:
        super().__init__("", schema=schema)  # type: ignore[call-arg]  # the class beside it takes both
        self._pool = pool

    @contextmanager
    def _open(self) -> Iterator[Connection]:
        with self._pool.connection() as connection:
            require_schema(connection, self._schema, self._role)
            yield connection


class PooledOperators(_Pooled, Operators):
    """What can be seen of an outbox."""

    _role = Role.PRODUCER


class PooledInbox(_Pooled, InboxOperators):
    """What can be seen of an inbox."""

    _role = Role.CONSUMER
