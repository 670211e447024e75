"""The life of one message, read through the pools of those who only look: quick enough to be asked all day.

The same as tracing.py reads, over connections that are there already.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tallymark.store.postgres.connection import Connection
from tallymark.store.postgres.searchpool import SearchPool
from tallymark.store.postgres.tracing import Tracer
from tallymark.tally.found import Records


class PooledTracer(Tracer):
    """Several databases, by name, each through its pool."""

    def __init__(self, pools: Mapping[str, SearchPool], *, schema: str = "tallymark") -> None:
        super().__init__(dict.fromkeys(pools, ""), schema=schema)
        self._pools = dict(pools)

    @contextmanager
    def _looking(self, name: str) -> Iterator[Connection]:
        with self._pools[name].connection(lookup=True) as connection:
            yield connection

    def _found(self, connection: Connection, name: str, id: str, here: tuple[Any, ...]) -> list[Records]:
        """A database that nobody has set up yet has nothing to say, and is no reason to refuse an answer."""
        return super()._found(connection, name, id, here) if here[0] or here[1] else []
