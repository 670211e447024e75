"""Whether a position still fits the log that it points into. Pure.

A position below the log's start means that messages were deleted before they were read (fault B4); one past its end
that the log was cut back; another topic id that the topic was deleted and made anew (fault S6). None of them is
ever skipped in silence: the partition stands still, with the range named, until an operator seeks.
"""

from __future__ import annotations

from dataclasses import dataclass

from tallymark.inbox.ports import Position


@dataclass(frozen=True, slots=True)
class Bounds:
    """The log of one partition: its first offset, its end, and the topic's id."""

    first: int
    end: int
    topic_id: str


def gap(position: Position, bounds: Bounds) -> str | None:
    """What is wrong between a position and its log, in a sentence; None where they fit."""
    where = f"{position.topic}/{position.partition}"
    if position.topic_id != bounds.topic_id:
        return (
            f"{where}: the topic was deleted and made anew (its id was {position.topic_id}, now {bounds.topic_id}); "
            f"the position {position.next_offset} counts in a log that is gone. "
            f"`tallymark inbox seek` starts in the new one"
        )
    if position.next_offset < bounds.first:
        return (
            f"{where}: offsets {position.next_offset} to {bounds.first - 1} were deleted from the log before they "
            f"were read. `tallymark inbox seek` goes on without them, at {bounds.first} or later"
        )
    if position.next_offset > bounds.end:
        return (
            f"{where}: the position {position.next_offset} lies past the log's end {bounds.end}: the log was cut "
            f"back. `tallymark inbox seek` says where to go on"
        )
    return None


def start_of(bounds: Bounds, *, known_topic: bool, at_end: bool) -> int:
    """Where a partition without a position begins.

    One that was added to a topic we know begins at 0, so that what retention took from it is seen as a gap (fault
    C5). For a new consumer the log begins where it begins today, or, if asked for, ends.
    """
    if known_topic:
        return 0
    return bounds.end if at_end else bounds.first
