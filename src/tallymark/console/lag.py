"""How far consumers are behind, as Kafka sees it: in messages, in seconds, and until retention overtakes them.

Kafka is asked once for all who want to know within a short while; where it does not answer, lag is unknown and the
rest of an answer stands.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from tallymark.errors import TallymarkError

if TYPE_CHECKING:
    from tallymark.store.postgres.inboxoperators import ConsumerStatus, PositionStatus

log = logging.getLogger("tallymark.console")

Place = tuple[str, int]
_FRESH_S = 3.0
# Where it did not answer it is not asked again at once; and whoever asks waits for so long, not for it to give up.
_SILENT_S = 10.0
_WAIT_S = 4.0


@dataclass(frozen=True, slots=True)
class Ends:
    """What Kafka said: the ends of partitions, the times of the first messages not yet kept, topics' retention."""

    ends: Mapping[Place, int] = field(default_factory=dict)
    # By place and offset: consumers stand at different ones. None where only markers lie ahead.
    logged: Mapping[tuple[str, int, int], datetime | None] = field(default_factory=dict)
    retention_ms: Mapping[str, int] = field(default_factory=dict)
    asked: frozenset[tuple[str, int, int]] = frozenset()
    answered: bool = False

    @property
    def asked_places(self) -> set[Place]:
        return {(topic, partition) for topic, partition, _ in self.asked}

    def lag(self, position: PositionStatus) -> int | None:
        end = self.ends.get(position.place)
        return None if end is None else max(0, end - position.next_offset)

    def lag_s(self, position: PositionStatus, now: datetime) -> float | None:
        """The age of the first message that is not kept yet; 0 where only markers, or nothing, lie ahead."""
        if position.place not in self.ends:
            return None
        here = (*position.place, position.next_offset)
        if here in self.asked and self.lag(position) and here not in self.logged:
            return None  # there is something, and Kafka did not say how old it is
        # It has moved on since Kafka was asked: the last message kept is a moment older than the first that is not.
        oldest = self.logged.get(here) if here in self.asked else position.logged_at
        if oldest is None or not self.lag(position):
            return 0.0
        return max(0.0, round((now - oldest).total_seconds(), 3))

    def left_s(self, position: PositionStatus, now: datetime) -> float | None:
        """Until retention drops the first message not yet kept; None where it never does, or nothing is behind."""
        kept_for = self.retention_ms.get(position.topic, -1)
        oldest = self.logged.get((*position.place, position.next_offset))
        if kept_for < 0 or oldest is None:
            return None
        return kept_for / 1000 - (now - oldest).total_seconds()


class Lag:
    """Asks Kafka for all consumers at once, in a thread of its own: nobody waits for long where it does not answer."""

    def __init__(self, client: Mapping[str, str] | None) -> None:
        self._client = dict(client) if client else None
        self._lock = threading.Lock()
        self._hand = ThreadPoolExecutor(1, thread_name_prefix="lag")
        self._looking: Future[Ends] | None = None
        self._admin: Any = None
        self._asked_at = -math.inf
        self._asked: set[Place] = set()
        self._ends = Ends()

    @property
    def known(self) -> bool:
        """Whether there is a Kafka to ask at all."""
        return self._client is not None

    def of(self, consumers: Iterable[ConsumerStatus]) -> Ends:
        """What Kafka says of these consumers' partitions, at most a moment old; nothing where it says nothing."""
        if self._client is None:
            return Ends()
        offsets = {
            (each.topic, each.partition, each.next_offset)
            for consumer in consumers
            for each in consumer.positions
        }
        ends = self._answer(offsets)
        # Somebody else's question was under way, about other partitions.
        return ends if {each[:2] for each in offsets} <= ends.asked_places else self._answer(offsets)

    def _answer(self, offsets: set[tuple[str, int, int]]) -> Ends:
        places = {(topic, partition) for topic, partition, _ in offsets}
        with self._lock:
            if self._looking is None:
                fresh = time.monotonic() - self._asked_at < (_FRESH_S if self._ends.answered else _SILENT_S)
                if fresh and places <= self._asked:
                    return self._ends
                self._asked = places
                self._looking = self._hand.submit(self._look, offsets)
            looking = self._looking
        try:
            ends = looking.result(_WAIT_S)
        except TimeoutError:
            return Ends(asked=frozenset(offsets))
        with self._lock:
            if self._looking is looking:
                self._looking, self._ends, self._asked_at = None, ends, time.monotonic()
        return ends

    def _look(self, offsets: set[tuple[str, int, int]]) -> Ends:
        from tallymark.broker import offsets as kafka
        from tallymark.broker import peek, topics
        from tallymark.broker.reach import admin_client, reach

        if self._client is None or not offsets:
            return Ends(asked=frozenset(offsets), answered=self._client is not None)
        try:
            if self._admin is None:
                reach(self._client)
                self._admin = admin_client(self._client)
            bounds = kafka.bounds(self._admin, {each[:2] for each in offsets})
            logged: dict[tuple[str, int, int], datetime | None] = {}
            # Of one place by one: two consumers of one topic stand at two offsets.
            for asked in _one_each(
                {(t, p, o) for t, p, o in offsets if (t, p) in bounds and o < bounds[t, p][1]}
            ):
                begins = {place: max(offset, bounds[place][0]) for place, offset in asked.items()}
                found = peek.logged_at(self._client, begins, within_s=3.0)
                logged |= {(*place, asked[place]): at for place, at in found.items()}
            facts = topics.describe(self._admin, sorted({each[0] for each in offsets}), timeout=5.0)
        except TallymarkError as error:
            log.warning("no lag: %s", error, extra={"action": "console.lag"})
            return Ends(asked=frozenset(offsets))
        except Exception:  # whatever it was, the next look may be luckier
            log.exception("no lag", extra={"action": "console.lag"})
            return Ends(asked=frozenset(offsets))
        return Ends(
            {place: end for place, (_, end) in bounds.items()},
            logged,
            {name: each.retention_ms for name, each in facts.items()},
            frozenset(offsets),
            answered=True,
        )


def _one_each(offsets: set[tuple[str, int, int]]) -> list[dict[Place, int]]:
    """The offsets in rounds that name each place once."""
    rounds: list[dict[Place, int]] = []
    for topic, partition, offset in sorted(offsets):
        for each in rounds:
            if (topic, partition) not in each:
                each[topic, partition] = offset
                break
        else:
            rounds.append({(topic, partition): offset})
    return rounds
