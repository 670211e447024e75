"""How many offsets a micro-batch may have: as asked for, and fewer where its commits lose their session, or take long.

Pure.
"""

from __future__ import annotations

# So many commits in a row that lost their session are no accident: something ends what takes long (transaction_timeout).
_IN_A_ROW = 2
# What handlers are given one by one should be committed in so long. A batch of fewer is mostly Spark's own work.
_WITHIN_S = 5.0
_FEW = 100
# So many they are given first, before it is known how long they take.
FIRST = 500


class BatchSize:
    """Halved with each loss from the second in a row on, down to a floor; what losses taught is kept."""

    def __init__(self, at_most: int, floor: int, *, first: int | None = None) -> None:
        self.offsets = min(at_most, first or at_most)
        self._at_most = at_most
        self._floor = min(floor, at_most)
        self._lost = 0

    def committed(self) -> None:
        """A batch went through."""
        self._lost = 0

    def took(self, covered: int, seconds: float) -> bool:
        """What lay in so many offsets was handed over in so long, one by one. Whether batches have another size now.

        Another size is another query, so they grow in leaps; and by what batches near their size have shown. Offsets are
        what a size is given in: in a log of markers, or a compacted one, few of them are messages.
        """
        before = self.offsets
        if seconds > _WITHIN_S:
            self.offsets = min(before, max(_FEW, int(covered * _WITHIN_S / seconds)))
        elif seconds < _WITHIN_S / 4 and 2 * covered >= before:
            fitting = min(self._at_most, int(covered * _WITHIN_S / 2 / max(seconds, 0.001)))
            if fitting == self._at_most or fitting >= 2 * before:
                self.offsets = fitting
        return self.offsets != before

    def lost(self) -> bool:
        """A commit lost its session. Whether batches are smaller from now on."""
        self._lost += 1
        if self._lost < _IN_A_ROW or self.offsets <= self._floor:
            return False
        self.offsets = self._at_most = max(self._floor, self.offsets // 2)
        return True
