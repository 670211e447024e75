"""How long an answer of Kafka is waited for: so many seconds each time, or less once whoever waits is told to hurry."""

from __future__ import annotations

import math
import time
from collections.abc import Callable


class Patience:
    """Asked by the thread that waits; told to hurry by any."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._end = math.inf

    def hurry(self, within_s: float) -> None:
        self._end = time.monotonic() + within_s

    def begin(self) -> Callable[[], bool]:
        """Whether there is time left, from now on."""
        deadline = time.monotonic() + self._seconds
        return lambda: time.monotonic() < min(deadline, self._end)
