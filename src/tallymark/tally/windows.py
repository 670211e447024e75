"""Windows: ranges of outbox positions, so that nothing leaks from one into the next. Pure.

Time would leak: a long transaction adds to an hour that is over. A position belongs to one window for ever, and a
window is *closed* when nothing can be added to it and nothing of it is on its way: the floor of open writers, the
relay and every consumer have passed its end. What is parked, held back or dead does not keep a window open: it is
accounted for by its own name.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

Place = tuple[str, int]

ROWS = 100_000


@dataclass(frozen=True, slots=True, order=True)
class Window:
    """Positions from `start` up to, and without, `end`."""

    start: int
    end: int

    def __contains__(self, position: int) -> bool:
        return self.start <= position < self.end


@dataclass(frozen=True, slots=True)
class Frontier:
    """How far the producing side has come."""

    # The highest position that was drawn, and the lowest floor of a writer that is still open (None: nobody writes).
    last_position: int
    floor: int | None
    # Up to here every lane has everything in a batch that was sent; held topics are not passed.
    relayed: int

    @property
    def settled(self) -> int:
        """Every position up to here is visible, and its fate on the way into the log is known."""
        seen = self.last_position if self.floor is None else min(self.floor, self.last_position)
        return min(seen, self.relayed)


def window_of(position: int, rows: int = ROWS) -> Window:
    start = position - position % rows
    return Window(start, start + rows)


def windows_between(first: int, last: int, rows: int = ROWS) -> list[Window]:
    """All windows that hold a position from `first` to `last`."""
    if last < first:
        return []
    return [Window(start, start + rows) for start in range(first - first % rows, last + 1, rows)]


def is_closed(
    window: Window,
    frontier: Frontier,
    ends: Mapping[Place, int],
    passed: Iterable[tuple[Collection[str], Mapping[Place, int]]],
) -> bool:
    """Whether floor, relay and every consumer have passed it.

    `ends` holds the highest offset of the window's messages in each partition; `passed` each consumer's topics and next
    offsets. A partition that it has not taken yet, of a topic that it reads, it has not passed.
    """
    if frontier.settled < window.end - 1:
        return False
    return all(
        position.get(place, 0) > offset
        for topics, position in passed
        for place, offset in ends.items()
        if place[0] in topics
    )
