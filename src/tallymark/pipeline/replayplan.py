"""What a replay reads from where, and what it would lack. Pure, but for what it asks of an archive.

Kafka's part begins at the moment asked for. Where Kafka no longer reaches back that far, what lies before it comes from
the archive; and what that does not have (before it was founded, in a gap that was passed over, behind its end) may be of
the time asked for unless something archived behind it is older.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tallymark.errors import Problem
from tallymark.inbox.gaps import Bounds
from tallymark.pipeline.manifest import Archive, Move, Place, Stored


@dataclass(frozen=True, slots=True)
class Source:
    """Where each part comes from: ranges of Kafka, and files of an archive with what counts in them."""

    kafka: tuple[Move, ...] = ()
    files: tuple[Stored, ...] = ()
    # What counts in the files: by place, offsets from start up to, and without, end.
    archived: tuple[Move, ...] = ()


def planned(
    ends: Mapping[Place, int],
    starts: Mapping[Place, int],
    bounds: Mapping[Place, Bounds],
    *,
    archive: Archive | None,
    since_ms: int,
    strict: bool,
    older: Callable[[Move], bool] = lambda _missing: False,
) -> Source:
    """What to read from where. `starts` is where Kafka begins at or after the moment asked for.

    `strict` refuses where something of that time may be in neither: a replay of a period must have all of it. `older`
    says whether the archive has something behind a range that it lacks, and older than that moment.
    """
    kafka, archived, nowhere = [], [], []
    for place, end in sorted(ends.items()):
        first = bounds[place].first
        start = max(starts[place], first)
        if start < end:
            kafka.append(Move(*place, start, end))
        if start > first or first == 0:
            continue  # Kafka has something older than what was asked for: so it has all of it
        wanted = Move(*place, 0, min(first, end))
        nowhere += [each for each in lacking(archive, wanted) if not older(each)]
        extent = archive.extents.get(place) if archive else None
        if extent is not None and (upto := min(wanted.end, extent.next)) > extent.first:
            archived.append(Move(*place, extent.first, upto))
    if nowhere and strict:
        raise _refused(nowhere, archive=archive is not None)
    if archive is None or not archived:
        return Source(tuple(kafka))
    topics = {move.topic for move in archived}
    files = tuple(
        each for each in archive.files.values() if each.topic in topics and each.logged_ms[1] >= since_ms
    )
    return Source(tuple(kafka), files, tuple(archived))


def lacking(archive: Archive | None, wanted: Move) -> list[Move]:
    """The parts of this range that the archive does not have."""
    extent = archive.extents.get(wanted.place) if archive else None
    if archive is None or extent is None:
        return [wanted] if wanted.start < wanted.end else []
    gaps = [(gap.start, gap.end) for gap in archive.gaps if gap.place == wanted.place]
    found = []
    for start, end in sorted([(0, extent.first), *gaps, (extent.next, wanted.end)]):
        cut = Move(*wanted.place, max(start, wanted.start), min(end, wanted.end))
        if cut.start < cut.end:
            found.append(cut)
    return found


def _refused(nowhere: Sequence[Move], *, archive: bool) -> Problem:
    ranges = "; ".join(
        f"{each.topic}/{each.partition}: offsets {each.start} to {each.end - 1}" for each in nowhere
    )
    if archive:
        return Problem(
            f"{ranges} are neither in Kafka nor in the archive, and may be of the time that was asked for",
            remedy="--incomplete replays the rest, if that is meant",
        )
    return Problem(
        f"{ranges} are no longer in Kafka, and may be of the time that was asked for",
        remedy="name the archive that has them with --archive, or say --incomplete",
    )
