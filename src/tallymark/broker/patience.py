"""How long an answer of Kafka is waited for: so many seconds each time, or less once whoever waits is told to hurry; and
how many those are, for batches that need longer than others.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

# What a broker grants a transaction at most, unless it is told otherwise (transaction.max.timeout.ms).
_LONGEST_S = 900.0


class Pace:
    """How long a lane's batches may take: twice as long after each that was late, as ever once they are quick again.

    A batch's range never changes: one that needs longer than it is given would be sent again for ever.
    """

    def __init__(self, usual_s: float, longest_s: float = _LONGEST_S) -> None:
        self._usual_s = usual_s
        self._longest_s = max(usual_s, longest_s)
        self.seconds = usual_s

    def was_late(self, given_s: float) -> None:
        """A batch came to no end within what it was given."""
        self.seconds = min(max(self.seconds, 2 * given_s), self._longest_s)

    def was_refused(self, given_s: float) -> None:
        """The brokers grant nobody that much."""
        self._longest_s = max(self._usual_s, given_s / 2)
        self.seconds = min(self.seconds, self._longest_s)

    def landed(self, took_s: float) -> None:
        if took_s < self._usual_s / 2:
            self.seconds = self._usual_s


class Patience:
    """Asked by the thread that waits; told to hurry by any."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._end = math.inf

    def hurry(self, within_s: float) -> None:
        # Told twice, it does not begin anew.
        self._end = min(self._end, time.monotonic() + within_s)

    def begin(self, seconds: float | None = None) -> Callable[[], bool]:
        """Whether there is time left, from now on: as ever, or so much."""
        deadline = time.monotonic() + (self._seconds if seconds is None else seconds)
        return lambda: time.monotonic() < min(deadline, self._end)
