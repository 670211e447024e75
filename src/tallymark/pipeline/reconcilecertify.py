"""Statements for the windows of a run that are closed and in which nothing was found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Set
from operator import itemgetter

from tallymark.lifecycle import ParkedState
from tallymark.pipeline.reconcilecells import Cells
from tallymark.pipeline.reconcileground import Ground, place_text
from tallymark.store.postgres.tally import ConsumerView
from tallymark.tally.certificates import ConsumerCount, Statement
from tallymark.tally.windows import Place, Window, is_closed


def statements(ground: Ground, cells: Cells, faulty: Set[int]) -> Iterator[Statement]:
    """In order. `faulty`: windows in which something was found; they get no certificate."""
    resumes = dict(_resumes(ground, cells))
    for number in cells.numbers():
        if number in faulty or number * ground.rows < ground.first or not closed(ground, cells, number):
            continue
        statement = stated(ground, cells, number, resume=resumes[number])
        if statement is not None and not statement.violations():
            yield statement


def reopened(ground: Ground, cells: Cells) -> set[int]:
    """Certified windows of which the log says something that it did not say then.

    What stands before that was read for the sake of later windows: lanes share a partition, and do not keep step.
    """
    found = set()
    lowest, first = ground.lowest // ground.rows, ground.first // ground.rows
    for number, stood in cells.log.items():
        if lowest <= number < first:
            said = ground.certified.get(number, {})
            if any(cell.high > said.get(place_text(place), (0, -1))[1] for place, cell in stood.items()):
                found.add(number)
    return found


def closed(ground: Ground, cells: Cells, number: int) -> bool:
    passed = [(view.topics, view.next_offsets) for view in ground.consumers.values()]
    return is_closed(cells.window(number), ground.view.frontier, cells.ends_of(number), passed)


def stated(
    ground: Ground,
    cells: Cells,
    number: int,
    *,
    resume: Mapping[Place, int] | None = None,
    strict: bool = True,
) -> Statement | None:
    """What can be said of a window; None, if strict, where a consumer lacks what nobody can account for.

    `resume`: where a reader of later windows has to start; it is no claim of the window itself.
    """
    window = cells.window(number)
    parked = Counter(row.state for row in ground.parked if row.position in window)
    discarded = parked[ParkedState.DISCARDED]
    consumers = {}
    for label, view in ground.consumers.items():
        count = _count(ground, cells, number, label, view, strict=strict)
        if count is None:
            return None
        consumers[label] = count
    return Statement(
        outbox_id=ground.view.outbox_id,
        window=window,
        written=cells.outbox_of(number).count,
        logged=cells.log_of(number).count,
        parked=parked.total() - discarded - parked[ParkedState.SENT],
        discarded=discarded,
        outbox=cells.outbox_of(number),
        log=cells.log_of(number),
        consumers=consumers,
        offsets={
            place_text(place): (cell.low, cell.high)
            for place, cell in sorted(cells.stood_in_log([number]), key=itemgetter(0))
        },
        resume={place_text(place): offset for place, offset in sorted((resume or {}).items())},
    )


def _count(
    ground: Ground, cells: Cells, number: int, label: str, view: ConsumerView, *, strict: bool
) -> ConsumerCount | None:
    window = cells.window(number)
    logged = cells.log_of(number, view.topics).count
    digest = cells.inbox_of(label, number)
    queued = sum(at in window for at in view.queued_at)
    dead = sum(at in window for at in view.dead_at)
    unkept = sum(at in window for at in view.unkept_at)
    again = min(_resends(ground, window), max(0, logged - digest.count - unkept))
    owed = digest.count + unkept + again
    if strict and owed != logged and not _before_it_began(cells, number, label, view):
        return None
    return ConsumerCount(
        owed=owed,
        applied=digest.count - queued - (dead - unkept),
        queued=queued,
        dead=dead,
        again=again,
        digest=digest,
    )


def _resends(ground: Ground, window: Window) -> int:
    """Of the window: messages that were sent again, from here or to here. A consumer keeps each under one position."""
    return sum((position in window) + (of in window) for position, of in ground.view.resends)


def _before_it_began(cells: Cells, number: int, label: str, view: ConsumerView) -> bool:
    """Whether some of the window was logged before the consumer began: where nobody knows when, it was not."""
    return any(
        cell.low < (cells.beginning(label, view, place) or 0)
        for place, cell in cells.stood_in_log([number])
        if place[0] in view.topics
    )


def _resumes(ground: Ground, cells: Cells) -> Iterator[tuple[int, dict[Place, int]]]:
    """Where a reader of the windows behind each one has to start, from the last window to the first."""
    resume = dict(ground.ends)
    for number in reversed(cells.numbers()):
        yield number, dict(resume)
        for place, cell in cells.stood_in_log([number]):
            resume[place] = min(resume[place], cell.low)
