"""What the service looks at: databases by name, each through its pool; Kafka, where it is given; and its own metrics."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from tallymark.console.problems import Refused
from tallymark.observe.metrics import Metrics
from tallymark.store.postgres.search import Search
from tallymark.store.postgres.searchpool import SearchPool
from tallymark.store.postgres.searchstatus import PooledInbox, PooledOperators
from tallymark.store.postgres.searchtrace import PooledTracer
from tallymark.store.postgres.streaming import Streaming
from tallymark.store.queries import load

_ROOMS_FOR_S = 15.0


@dataclass(frozen=True, slots=True)
class Rooms:
    """Which tables a database has."""

    outbox: bool = False
    inbox: bool = False
    findings: bool = False
    certificates: bool = False
    runs: bool = False
    tokens: bool = False


@dataclass
class Served:
    """One database."""

    name: str
    url: str = field(repr=False)
    schema: str
    pool: SearchPool = field(repr=False)
    _rooms: Rooms | None = None
    _looked_at: float = 0.0

    @cached_property
    def search(self) -> Search:
        return Search(self.pool, self.schema)

    @cached_property
    def streaming(self) -> Streaming:
        return Streaming(self.pool, self.schema)

    @cached_property
    def operators(self) -> PooledOperators:
        return PooledOperators(self.pool, schema=self.schema)

    @cached_property
    def inbox(self) -> PooledInbox:
        return PooledInbox(self.pool, schema=self.schema)

    @cached_property
    def queries(self) -> dict[str, str]:
        return load("tallymark.store.postgres", "search.sql", self.schema)

    def rooms(self) -> Rooms:
        """Looked at now and then: `tallymark init` may add some while we run."""
        if self._rooms is None or time.monotonic() - self._looked_at > _ROOMS_FOR_S:
            with self.pool.connection() as connection:
                row = connection.execute(self.queries["rooms"]).fetchone()
            self._rooms = Rooms(*row) if row else Rooms()
            self._looked_at = time.monotonic()
        return self._rooms


@dataclass
class World:
    """Everything that routes need."""

    databases: Mapping[str, Served]
    # The settings of Kafka's clients; None where no Kafka is given.
    kafka: Mapping[str, str] | None = field(repr=False, default=None)
    metrics: Metrics = field(default_factory=Metrics)
    # So many actions at a time: each takes a connection of its own.
    acting: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(4))

    # So many streams at a time: each wants a thread and a connection now and then.
    streaming: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(20))

    @cached_property
    def tracer(self) -> PooledTracer:
        pools = {name: each.pool for name, each in self.databases.items()}
        return PooledTracer(pools, schema=self.tokens.schema)

    @property
    def tokens(self) -> Served:
        """The database that holds the tokens."""
        return next(iter(self.databases.values()))

    def outboxes(self) -> Sequence[Served]:
        return [each for each in self.databases.values() if each.rooms().outbox]

    def inboxes(self) -> Sequence[Served]:
        return [each for each in self.databases.values() if each.rooms().inbox]

    def outbox(self, name: str | None) -> Served:
        """The outbox of this name; without a name the only one."""
        found = {each.name: each for each in self.outboxes()}
        if name is None and len(found) == 1:
            return next(iter(found.values()))
        if name is None:
            known = ", ".join(found) or "none"
            raise Refused(404, "which outbox?", remedy=f"name it with ?outbox=…; there are: {known}")
        if name not in found:
            raise Refused(404, "there is no such outbox", remedy="GET /v1/outboxes lists them")
        return found[name]

    def consumer(self, name: str, database: str | None = None) -> Served:
        """The database that a consumer keeps its inbox in: of this name, or the only one."""
        found = []
        for each in self.inboxes():
            with each.pool.connection() as connection:
                row = connection.execute(each.queries["consumer_topics"], {"consumer": name}).fetchone()
            if row is not None and database in (None, each.name):
                found.append(each)
        if not found:
            raise Refused(404, "there is no such consumer", remedy="GET /v1/consumers lists them")
        if len(found) > 1:
            known = ", ".join(each.name for each in found)
            raise Refused(
                409,
                "several databases have a consumer of this name",
                remedy=f"name one with ?database=…; there are: {known}",
            )
        return found[0]

    def close(self) -> None:
        for each in self.databases.values():
            each.pool.close()
