"""What to archive next, and how long there is time for it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tallymark.errors import Problem
from tallymark.inbox.gaps import Bounds
from tallymark.pipeline.manifest import Archive, Extent, Move, Place

FOREVER = -1


@dataclass(frozen=True, slots=True)
class Retention:
    """A topic's own rules for what it deletes."""

    ms: int
    bytes: int
    policy: str = "delete"

    @property
    def deletes(self) -> bool:
        return "delete" in self.policy

    @property
    def compacts(self) -> bool:
        return "compact" in self.policy


@dataclass(frozen=True, slots=True)
class Standing:
    """How one partition of the archive stands to its log."""

    topic: str
    partition: int
    archived_from: int | None
    archived_upto: int
    log_start: int
    log_end: int
    # Offsets not archived yet; markers and aborted records are among them.
    behind: int
    # Kafka's time of the first message that is not archived; None where there is none.
    oldest_ms: int | None
    # Milliseconds until retention may delete it; 0 if it may already; None if it never does by time.
    left_ms: int | None
    # Deleted by size too: when, nobody can tell.
    by_size: bool
    compacted: bool
    # What is wrong, in a sentence; None where nothing is.
    trouble: str | None = None


def left_ms(oldest_ms: int | None, retention: Retention, now_ms: int) -> int | None:
    """How long retention leaves the oldest message: a promise, since a segment goes by its youngest message."""
    if oldest_ms is None or not retention.deletes or retention.ms == FOREVER:
        return None
    return max(0, oldest_ms + retention.ms - now_ms)


def standing(
    place: Place,
    extent: Extent | None,
    topic_id: str,
    bounds: Bounds,
    retention: Retention,
    *,
    oldest_ms: int | None,
    now_ms: int,
) -> Standing:
    """One partition, for status."""
    upto = extent.next if extent else 0
    return Standing(
        topic=place[0],
        partition=place[1],
        archived_from=extent.first if extent else None,
        archived_upto=upto,
        log_start=bounds.first,
        log_end=bounds.end,
        behind=max(0, bounds.end - max(upto, bounds.first)),
        oldest_ms=oldest_ms,
        left_ms=left_ms(oldest_ms, retention, now_ms),
        by_size=retention.deletes and retention.bytes != FOREVER,
        compacted=retention.compacts,
        trouble=trouble(place, extent, topic_id, bounds),
    )


def trouble(place: Place, extent: Extent | None, topic_id: str, bounds: Bounds) -> str | None:
    """Why this partition cannot be archived further, in a sentence; None where it can."""
    where = f"{place[0]}/{place[1]}"
    if topic_id != bounds.topic_id:
        return (
            f"{where}: the topic was deleted and made anew (its id was {topic_id}, now {bounds.topic_id}); "
            "what is archived belongs to the old one. Archive the new one into another folder"
        )
    upto = extent.next if extent else 0  # added to the topic since
    if upto < bounds.first:
        return (
            f"{where}: offsets {upto} to {bounds.first - 1} were deleted from the log before they were archived. "
            "--skip-lost records the gap and goes on without them"
        )
    if upto > bounds.end:
        return (
            f"{where}: archived up to {upto}, but the log ends at {bounds.end}: the log was cut back. "
            "Archive into another folder"
        )
    return None


def lost(state: Archive, bounds: Mapping[Place, Bounds]) -> tuple[Move, ...]:
    """What was deleted in Kafka before it was archived: the ranges that --skip-lost passes over."""
    return tuple(
        Move(*place, upto, each.first)
        for place, each in sorted(bounds.items())
        if (upto := state.extents[place].next if place in state.extents else 0) < each.first
    )


def past_end(state: Archive, bounds: Mapping[Place, Bounds]) -> list[Place]:
    """What is archived further than its log goes: cut back, or its leader knows an end that is a little behind."""
    return [
        place
        for place, each in sorted(bounds.items())
        if (extent := state.extents.get(place)) is not None
        and state.topics.get(place[0]) == each.topic_id
        and extent.next > each.end
    ]


def refuse_trouble(state: Archive, bounds: Mapping[Place, Bounds]) -> None:
    """Loss is never silent: stop, and name the range (S2, B4); or the topic that is another (S6)."""
    for place, each in sorted(bounds.items()):
        said = trouble(place, state.extents.get(place), state.topics.get(place[0], each.topic_id), each)
        if said is not None:
            what, _, remedy = said.rpartition(". ")
            raise Problem(what, remedy=remedy)


def founding(bounds: Mapping[Place, Bounds]) -> tuple[Move, ...]:
    """A topic that is first archived: all its partitions begin where their logs begin today."""
    return tuple(Move(*place, each.first, each.first) for place, each in sorted(bounds.items()))


def caught_up(state: Archive, bounds: Mapping[Place, Bounds], moves: Iterable[Move] = ()) -> bool:
    """Whether these are the ends of all logs of the archive, and nothing is left to archive after these moves."""
    upto = {place: extent.next for place, extent in state.extents.items()} | {m.place: m.end for m in moves}
    whole = state.topics.keys() <= {topic for topic, _ in bounds}
    return whole and all(upto.get(place, 0) >= each.end for place, each in bounds.items())


def next_moves(state: Archive, bounds: Mapping[Place, Bounds], max_offsets: int) -> tuple[Move, ...]:
    """The next micro-batch: at most so many offsets, each partition by its share of what is left.

    A partition that was added to a topic since begins at 0, so that what retention took from it is seen.
    """
    waiting = {}
    for place, each in bounds.items():
        extent = state.extents.get(place)
        start = extent.next if extent else 0
        if each.end > start:
            waiting[place] = start, each.end
    total = sum(end - start for start, end in waiting.values())
    moves = []
    for place, (start, end) in sorted(waiting.items()):
        share = end - start
        if total > max_offsets:
            share = min(share, max(1, share * max_offsets // total))
        moves.append(Move(*place, start, start + share))
    return tuple(moves)
