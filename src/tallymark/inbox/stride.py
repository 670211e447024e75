"""How many messages fit into one transaction's time, going by what the last ones took.

Bounded in bytes alone, ten thousand calls of 50 ms would be one transaction of eight minutes: no rebalance waits that
long, and all of it is undone with it. Written by the thread that keeps, read by the one that reads: one number, no lock.
"""

from __future__ import annotations


class Stride:
    """`fitting` is how many to ask for."""

    def __init__(self, at_most: int, within_s: float) -> None:
        self.fitting = at_most
        self._at_most = at_most
        self._within_s = within_s

    def took(self, count: int, seconds: float) -> None:
        """So many were kept, or were tried, in so long. A batch of few says nothing of how many would fit."""
        if not count:
            return
        if seconds > self._within_s:
            self.fitting = max(1, min(self.fitting, int(count * self._within_s / seconds)))
        elif seconds < self._within_s / 2 and count >= self.fitting:
            self.fitting = min(self._at_most, self.fitting * 2)
