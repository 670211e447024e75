"""How many offsets a micro-batch may have: as asked for, and fewer where its commits lose their session, or take long.

Pure.
"""

from __future__ import annotations

# So many commits in a row that lost their session are no accident: something ends what takes long (transaction_timeout).
_IN_A_ROW = 2
# What handlers are given one by one should be committed in so long. A batch of fewer is mostly Spark's own work.
_WITHIN_S = 5.0
_FEW = 100


class BatchSize:
    """Halved with each loss from the second in a row on, down to a floor; what was learned once is kept."""

    def __init__(self, offsets: int, floor: int) -> None:
        self.offsets = offsets
        self._floor = min(floor, offsets)
        self._lost = 0

    def committed(self) -> None:
        """A batch went through."""
        self._lost = 0

    def took(self, messages: int, seconds: float) -> bool:
        """So many were handed over one by one in so long. Whether batches are smaller from now on."""
        fitting = max(_FEW, int(messages * _WITHIN_S / seconds)) if seconds > _WITHIN_S else self.offsets
        if fitting >= self.offsets:
            return False
        self.offsets = fitting
        return True

    def lost(self) -> bool:
        """A commit lost its session. Whether batches are smaller from now on."""
        self._lost += 1
        if self._lost < _IN_A_ROW or self.offsets <= self._floor:
            return False
        self.offsets = max(self._floor, self.offsets // 2)
        return True
