"""How fast handlers are called: a token bucket for each that has a rate, and the time that one transaction may take."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from tallymark.apply.watch import Clock

# A transaction that waits for its turn is idle, and holds keys of other topics too: longer than this it comes again.
PATIENCE_S = 0.5


class Bucket:
    """So many messages a second, with a burst to begin with. `now` is given in; nothing here waits.

    Shared by all threads that call one handler: what they take together stays under the rate.
    """

    def __init__(self, rate: float, burst: float | None = None) -> None:
        self.rate = rate
        self._burst = max(1.0, rate if burst is None else burst)
        self._tokens = self._burst
        self._at: float | None = None
        self._lock = threading.Lock()

    @property
    def second(self) -> int:
        """How many messages a second's worth is; at least one."""
        return max(1, int(self.rate))

    def take(self, n: int, now: float) -> float:
        """Take n tokens; gives back the seconds to wait until they are there. A debt is paid by whoever comes next."""
        with self._lock:
            if self._at is not None:
                # A clock that steps back must not take tokens away.
                self._tokens = min(self._burst, self._tokens + max(0.0, now - self._at) * self.rate)
            self._at = now if self._at is None else max(self._at, now)
            self._tokens -= n
            return max(0.0, -self._tokens / self.rate)

    def is_ready(self, now: float) -> bool:
        """Whether a message could be handed over now. Takes nothing."""
        with self._lock:
            idle = 0.0 if self._at is None else max(0.0, now - self._at)
            return self._tokens + idle * self.rate >= 1

    def give(self, n: int) -> None:
        """Tokens that were taken and not used."""
        with self._lock:
            self._tokens += n


class Pace:
    """When one run may call handlers: within their rates, and before `until`. The first call is always in time."""

    def __init__(
        self,
        buckets: Mapping[str, Bucket],
        wait: Callable[[float], object],
        clock: Clock,
        until: float | None,
    ) -> None:
        self._buckets = buckets
        self._wait = wait
        self._clock = clock
        self._until = until
        self._called = False
        self._over = False
        self._taken: dict[str, int] = {}
        # Topics whose rate is used up for now: the others go on.
        self._spent: set[str] = set()

    def time_is_up(self) -> bool:
        """From now on nothing more is called."""
        return self._over

    def at_once(self, topic: str) -> int | None:
        """How many of a topic one call may be given: a second's worth, or what one may wait for; None for any number."""
        bucket = self._buckets.get(topic)
        if bucket is None:
            return None
        # Whoever finds one token there must get its turn: asked for more it would be refused, and ask again at once.
        return bucket.second if self._until is None else max(1, int(bucket.rate * PATIENCE_S))

    def runs_again(self) -> None:
        """All of this run is undone and done once more, in the same transaction: it is not to wait for itself."""
        if self._until is not None:
            for topic, count in self._taken.items():
                self._buckets[topic].give(count)

    def turn(self, topic: str, count: int) -> bool:
        """Wait until so many messages of the topic may be handed over; False when the time is up."""
        bucket = self._buckets.get(topic)
        if bucket is None and self._until is None:
            return True
        self._over = self._over or self._late(0.0)
        if self._over or topic in self._spent:
            return False
        if bucket is not None and not self._waited(bucket, count):
            self._spent.add(topic)
            return False
        if bucket is not None:
            self._taken[topic] = self._taken.get(topic, 0) + count
        self._called = True
        return True

    def _waited(self, bucket: Bucket, count: int) -> bool:
        seconds = bucket.take(count, self._clock())
        if self._until is None or seconds == 0:
            if seconds:
                self._wait(seconds)
            return True
        if seconds > PATIENCE_S or self._late(seconds):
            bucket.give(count)
            return False
        self._wait(seconds)
        return True

    def _late(self, seconds: float) -> bool:
        return self._called and self._until is not None and self._clock() + seconds >= self._until
