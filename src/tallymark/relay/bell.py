"""Wakes idle lanes: rung when a writer calls, or when everything is to stop."""

from __future__ import annotations

import threading


class Bell:
    """Any number of threads wait; one ring wakes all that wait, and those who come too late for it do not miss it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._rings = 0

    @property
    def rings(self) -> int:
        return self._rings

    def ring(self) -> None:
        with self._changed:
            self._rings += 1
            self._changed.notify_all()

    def wait(self, heard: int, seconds: float) -> None:
        """Wait for a ring after the first `heard` ones."""
        with self._changed:
            self._changed.wait_for(lambda: self._rings > heard, seconds)
