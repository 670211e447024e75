"""How far the outbox may be read: every row up to here that will ever be is visible (pitfall 3).

Shared by the lanes of one process, so that an idle relay asks the database once per interval, however many
lanes it holds. What was safe once stays safe, on the same server: rows up to an older answer cannot appear later.
"""

from __future__ import annotations

import math
import threading
import time

from tallymark.relay.ports import RelayStore


class Frontier:
    """A rising bound, looked up when someone needs more than it gives."""

    def __init__(self, store: RelayStore, *, poll_s: float) -> None:
        self._store = store
        self._poll_s = poll_s
        self._lock = threading.Lock()
        self._covered = 0
        self._safe = 0
        self._looked = -math.inf

    def beyond(self, covered: int) -> int:
        """The bound, looked up anew where it gives nothing beyond `covered`."""
        with self._lock:
            self._covered = max(self._covered, covered)
            if self._safe <= covered and time.monotonic() - self._looked >= self._poll_s:
                # Every look checks that the sequence has not fallen behind what any lane has covered (pitfall 4).
                self._safe = max(self._safe, self._store.frontier(self._covered))
                self._looked = time.monotonic()
            return self._safe

    def stir(self) -> None:
        """A writer has called: the next to ask looks anew, however short ago the last look was."""
        with self._lock:
            self._looked = -math.inf

    def forget(self) -> None:
        """After anything uncertain: another server may answer now, which has drawn less than the one before it."""
        with self._lock:
            self._covered = self._safe = 0
            self._looked = -math.inf

    def close(self) -> None:
        with self._lock:
            self._store.close()
