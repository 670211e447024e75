"""Statements for the windows of a run that are closed and in which all is accounted for; and why there is none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from itertools import islice
from operator import itemgetter

from tallymark.lifecycle import ParkedState
from tallymark.pipeline.reconcilecells import Cells
from tallymark.pipeline.reconcileeffects import elsewhere
from tallymark.pipeline.reconcileground import Ground, place_text
from tallymark.store.postgres.tally import ConsumerView
from tallymark.tally.certificates import ConsumerCount, Statement
from tallymark.tally.findings import Finding
from tallymark.tally.windows import Place, Window, open_because

# Of empty windows: a sequence that was set far ahead leaves more of them than anybody wants at once.
EMPTY_AT_ONCE = 10_000


def examined(ground: Ground, cells: Cells, faulty: Set[int]) -> Iterator[tuple[Window, Statement | str]]:
    """Each closed window, in order: what can be certified of it, or why nothing can.

    `faulty`: windows in which something was found that no term of an equation accounts for.
    """
    numbers = sorted({*cells.numbers(), *_empty(ground, cells)})
    resumes = dict(_resumes(ground, cells, numbers))
    for number in numbers:
        if number * ground.rows < ground.first or open_for(ground, cells, number):
            continue
        if number in faulty:
            yield cells.window(number), "something was found in it"
            continue
        statement = stated(ground, cells, number, resume=resumes[number])
        wrong = statement.violations() or statement.unlike()
        yield cells.window(number), "; ".join(wrong) or statement


def _empty(ground: Ground, cells: Cells) -> Iterator[int]:
    """Windows of which nobody has anything: a sequence jumps. A gap would keep a later run from passing them."""
    known = set(cells.numbers()) | ground.certified.keys()
    numbers = range(ground.first // ground.rows, (ground.view.frontier.settled + 1) // ground.rows)
    return islice((number for number in numbers if number not in known), EMPTY_AT_ONCE)


def copies_of(ground: Ground) -> dict[str, set[int]]:
    """The positions of what was sent again, by id."""
    found: dict[str, set[int]] = {}
    for at, of, id_ in ground.view.resends:
        found.setdefault(id_, set()).update((at, of))
    return found


def spoiled(finding: Finding, copies: Mapping[str, Set[int]], rows: int) -> set[int]:
    """The windows that a finding speaks of: that of the message, and those of its resends."""
    positions = copies.get(finding.id, frozenset()) | {finding.position}
    return {position // rows for position in positions if position is not None}


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


def open_for(ground: Ground, cells: Cells, number: int) -> str | None:
    """Whom a window waits for; None: it is closed."""
    passed = {label: (view.topics, view.next_offsets) for label, view in ground.consumers.items()}
    why = open_because(cells.window(number), ground.view.frontier, cells.ends_of(number), passed)
    return why or _hidden(ground, cells, number)


def _hidden(ground: Ground, cells: Cells, number: int) -> str | None:
    """That some of a window may stand where the log cannot be read yet: behind a transaction that is open there."""
    unsent = ground.parked_in(number)
    seen = cells.log_of(number).count + unsent.total() - unsent[ParkedState.SENT]
    if not ground.unstable or seen >= cells.outbox_of(number).count:
        return None
    topic, partition = min(ground.unstable)
    more = f" and {len(ground.unstable) - 1} more" if len(ground.unstable) > 1 else ""
    return f"a transaction is open in {topic}/{partition}{more}: what was sent behind it cannot be read yet"


def stated(
    ground: Ground, cells: Cells, number: int, *, resume: Mapping[Place, int] | None = None
) -> Statement:
    """What the stations say of a window.

    `resume`: where a reader of later windows has to start; it is no claim of the window itself.
    """
    window = cells.window(number)
    parked = ground.parked_in(number)
    discarded = parked[ParkedState.DISCARDED]
    return Statement(
        outbox_id=ground.view.outbox_id,
        window=window,
        written=cells.outbox_of(number).count,
        logged=cells.log_of(number).count,
        parked=parked.total() - discarded - parked[ParkedState.SENT],
        discarded=discarded,
        outbox=cells.outbox_of(number),
        log=cells.log_of(number),
        consumers={label: _count(ground, cells, number, label) for label in ground.consumers},
        offsets={
            place_text(place): (cell.low, cell.high)
            for place, cell in sorted(cells.stood_in_log([number]), key=itemgetter(0))
        },
        resume={place_text(place): offset for place, offset in sorted((resume or {}).items())},
        hashed=cells.hashed,
        looked_at=ground.looked_at,
    )


def _count(ground: Ground, cells: Cells, number: int, label: str) -> ConsumerCount:
    view = ground.consumers[label]
    kept, effects = cells.inbox_of(label, number), cells.effects_of(label, number)
    queued, dead, discarded, unkept = (
        ground.unfinished(label, which, number)
        for which in ("queued_at", "dead_at", "discarded_at", "unkept_at")
    )
    again = elsewhere(cells, label, number)
    # The queue was read before the effects: what was applied in between stands in both.
    twice = effects.count + queued + dead + discarded - kept.count - unkept
    queued -= min(queued, max(0, twice))
    logged = cells.log_of(number, view.topics)
    before = _before_it_began(cells, number, label, view)
    return ConsumerCount(
        owed=kept.count + unkept + again.count if before else logged.count,
        applied=effects.count,
        queued=queued,
        dead=dead,
        again=again.count,
        digest=kept + again.contents,
        discarded=discarded,
        effects=effects + again.ids,
        twice=cells.twice[label, number],
        logged=None if unkept or before else logged,
    )


def _before_it_began(cells: Cells, number: int, label: str, view: ConsumerView) -> bool:
    """Whether some of the window was logged before the consumer began: where nobody knows when, it was not."""
    return any(
        cell.low < (cells.beginning(label, view, place) or 0)
        for place, cell in cells.stood_in_log([number])
        if place[0] in view.topics
    )


def _resumes(ground: Ground, cells: Cells, numbers: Sequence[int]) -> Iterator[tuple[int, dict[Place, int]]]:
    """Where a reader of the windows behind each one has to start, from the last window to the first."""
    resume = dict(ground.ends)
    for number in reversed(numbers):
        yield number, dict(resume)
        for place, cell in cells.stood_in_log([number]):
            resume[place] = min(resume[place], cell.low)
