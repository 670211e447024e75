"""How long a run puts up with failures that follow each other, and with an end that is too low."""

from __future__ import annotations

import time
from collections.abc import Callable

# Right after a leader's death its successor may know an end that is a little behind: wait before calling it a cut.
PAST_END_S = 10.0


class Patience:
    """How long failures may follow each other. The clock starts with the first one after something went well. Pure."""

    def __init__(self, limit_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit_s = limit_s
        self._clock = clock
        self._since: float | None = None
        self._attempt = 0

    def failed(self, *, healthy: bool) -> int | None:
        """Which failure in a row this is; None where there were enough. `healthy`: something went well before it."""
        if healthy or self._since is None:
            self._since, self._attempt = self._clock(), 0
        self._attempt += 1
        return None if self._clock() - self._since > self._limit_s else self._attempt
