"""Windows: ranges of outbox positions, so that nothing leaks from one into the next. Pure.

Time would leak: a long transaction adds to an hour that is over. A position belongs to one window for ever, and a
window is *closed* when nothing can be added to it and nothing of it is on its way: the floor of open writers, the
relay and every consumer have passed its end. What is parked, held back or dead does not keep a window open: it is
accounted for by its own name.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
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
    def visible(self) -> int:
        """Every position up to here is visible: nobody can add one any more."""
        return self.last_position if self.floor is None else min(self.floor, self.last_position)

    @property
    def settled(self) -> int:
        """Every position up to here is visible, and its fate on the way into the log is known."""
        return min(self.visible, self.relayed)


def window_of(position: int, rows: int = ROWS) -> Window:
    start = position - position % rows
    return Window(start, start + rows)


def windows_between(first: int, last: int, rows: int = ROWS) -> list[Window]:
    """All windows that hold a position from `first` to `last`."""
    if last < first:
        return []
    return [Window(start, start + rows) for start in range(first - first % rows, last + 1, rows)]


def open_because(
    window: Window,
    frontier: Frontier,
    ends: Mapping[Place, int],
    passed: Mapping[str, tuple[Collection[str], Mapping[Place, int]]],
) -> str | None:
    """Whom it waits for, where floor, relay and every consumer have not passed it yet; None: it is closed.

    `ends` holds the highest offset of the window's messages in each partition; `passed` each consumer's topics and next
    offsets. A partition that it has not taken yet, of a topic that it reads, it has not passed.
    """
    last = window.end - 1
    if frontier.last_position < last:
        more = last - frontier.last_position
        return f"it fills: it closes after {more:,} more message{'s' if more > 1 else ''}"
    if frontier.floor is not None and frontier.floor < last:
        return f"a transaction that is still open may add to it, from position {frontier.floor + 1} on"
    if frontier.relayed < last:
        return f"the relay has sent up to position {frontier.relayed}"
    for name, (topics, position) in sorted(passed.items()):
        behind = {
            place: offset + 1 - position.get(place, 0)
            for place, offset in ends.items()
            if place[0] in topics and position.get(place, 0) <= offset
        }
        if behind:
            topic, partition = place = min(behind)
            where = f"{topic}/{partition}" + (f" and {len(behind) - 1} more" if len(behind) > 1 else "")
            return (
                f"{name} stands at offset {position.get(place, 0)} of {where}: {sum(behind.values()):,} to go"
            )
    return None
