"""The numbers of the whole system, worked out when somebody asks for /metrics: at rest nothing is asked of anybody.

What single processes count they show themselves; here is what they cannot know: the backlog behind a relay that is
stopped, the lag of a consumer that is down. Worked out once for all who ask within a few seconds.
"""

from __future__ import annotations

import logging
import threading
import time
from datetime import UTC, datetime

from tallymark.console.lag import Lag
from tallymark.console.world import Served, World
from tallymark.errors import TallymarkError
from tallymark.observe import names
from tallymark.store.postgres.inboxoperators import ConsumerStatus

log = logging.getLogger("tallymark.console")

_FRESH_S = 4.0
_OF_OUTBOXES = (
    names.RELAY_BACKLOG,
    names.RELAY_OLDEST_PENDING,
    names.RELAY_PARKED,
    names.RELAY_HELD_TOPICS,
    names.RELAY_OLDEST_FLOOR,
    names.RELAY_ACCEPTED_RISKS,
    names.RELAY_LANES_HALTED,
    names.RELAY_LANES_UNOWNED,
    names.RELAY_DELAYED,
)
_OF_CONSUMERS = (
    names.CONSUMER_LAG,
    names.CONSUMER_LAG_SECONDS,
    names.CONSUMER_RETENTION_LEFT,
    names.CONSUMER_QUEUED,
    names.CONSUMER_PARKED_KEYS,
    names.CONSUMER_DEAD,
    names.CONSUMER_HALTED,
    names.CONSUMER_UNOWNED,
    names.CONSUMER_PROCESSES,
    names.CONSUMER_FENCED,
)


class Gauges:
    """Fills the registry from the databases and Kafka."""

    def __init__(self, world: World, lag: Lag) -> None:
        self._world = world
        self._lag = lag
        self._metrics = world.metrics
        self._lock = threading.Lock()
        self._looked_at: float | None = None

    def rendered(self) -> bytes:
        """Everything, in Prometheus form."""
        with self._lock:
            if self._looked_at is None or time.monotonic() - self._looked_at > _FRESH_S:
                self._look()
                self._looked_at = time.monotonic()
            return self._metrics.render()

    def _look(self) -> None:
        # What is gone must not keep its last value: each look starts anew.
        for metric in (*_OF_OUTBOXES, *_OF_CONSUMERS, names.FINDINGS, names.POOL_IN_USE, names.POOL_SIZE):
            self._metrics.clear(metric)
        consumers: list[tuple[str, ConsumerStatus]] = []
        for served in self._world.databases.values():
            # Before we ask ourselves: one of them would be ours.
            self._metrics.set(names.POOL_IN_USE, served.pool.lent, database=served.name)
            self._metrics.set(names.POOL_SIZE, served.pool.size, database=served.name)
            try:
                rooms = served.rooms()
                if rooms.outbox:
                    self._outbox(served)
                if rooms.inbox:
                    consumers += [(served.name, each) for each in served.inbox.status()]
                if rooms.findings:
                    self._findings(served)
                answered = 1
            except TallymarkError as error:
                log.warning("metrics of %s: %s", served.name, error, extra={"action": "console.metrics"})
                answered = 0
            self._metrics.set(names.DATABASE_UP, answered, database=served.name)
        self._consumers(consumers)

    def _outbox(self, served: Served) -> None:
        status = served.operators.status()
        floor = max((each.age_s or 0.0 for each in status.floors), default=0.0)
        risks = {risk for relay in status.relays for risk in relay.accepted_risks}
        for metric, value in (
            (names.RELAY_BACKLOG, status.backlog),
            (names.RELAY_OLDEST_PENDING, status.oldest_pending_s or 0.0),
            (names.RELAY_PARKED, status.parked),
            (names.RELAY_HELD_TOPICS, len(status.held_topics)),
            (names.RELAY_OLDEST_FLOOR, floor),
            (names.RELAY_ACCEPTED_RISKS, len(risks)),
            (names.RELAY_LANES_HALTED, sum(each.halted is not None for each in status.lanes)),
            (names.RELAY_LANES_UNOWNED, sum(not each.alive for each in status.lanes)),
            (names.RELAY_DELAYED, status.delayed),
        ):
            self._metrics.set(metric, value, outbox=status.outbox_id)

    def _consumers(self, consumers: list[tuple[str, ConsumerStatus]]) -> None:
        ends = self._lag.of(each for _, each in consumers)
        if self._lag.known:
            self._metrics.set(names.KAFKA_UP, int(ends.answered))
        now = datetime.now(UTC)
        for database, status in consumers:
            # Two databases may have a consumer of one name.
            whose = {"consumer": status.consumer, "database": database}
            places = status.positions
            for metric, value in (
                (names.CONSUMER_QUEUED, status.queued),
                (names.CONSUMER_PARKED_KEYS, status.parked_keys),
                (names.CONSUMER_DEAD, status.dead),
                (names.CONSUMER_HALTED, sum(each.halted is not None for each in places)),
                (names.CONSUMER_UNOWNED, sum(not each.alive for each in places)),
                (names.CONSUMER_PROCESSES, len(status.instances)),
                (names.CONSUMER_FENCED, sum(each.fenced for each in places)),
            ):
                self._metrics.set(metric, value, **whose)
            if not ends.answered or not places or status.in_kafka:
                # Nothing here says how far it has come: its positions are in Kafka, or it has not begun.
                continue
            lags = [lag for each in places if (lag := ends.lag(each)) is not None]
            ages = [age for each in places if (age := ends.lag_s(each, now)) is not None]
            left = [rest for each in places if (rest := ends.left_s(each, now)) is not None]
            self._metrics.set(names.CONSUMER_LAG, sum(lags), **whose)
            self._metrics.set(names.CONSUMER_LAG_SECONDS, max(ages, default=0.0), **whose)
            if left:
                self._metrics.set(names.CONSUMER_RETENTION_LEFT, min(left), **whose)

    def _findings(self, served: Served) -> None:
        with served.pool.connection() as connection:
            for verdict, count in connection.execute(served.queries["findings_open"]):
                self._metrics.add(names.FINDINGS, count, verdict=verdict)
