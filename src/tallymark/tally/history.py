"""From what stations recorded to the marks of each message, and to its verdicts. Pure: what Spark is held to."""

from __future__ import annotations

import math
import uuid
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, TypeVar

from tallymark.lifecycle import ApplicationOutcome, DeadState, ParkedState, QueueState, Stage, Verdict
from tallymark.tally.records import Copy, Done, History, Horizon, Kept, Letter, ParkedRow, Queued, Reader, Row
from tallymark.tally.verdicts import FINDINGS, Marks, into_consumer, into_log, worst

_R = TypeVar("_R", Row, ParkedRow, Copy, Kept, Done, Queued, Letter)


@dataclass(frozen=True, slots=True)
class Judged:
    """A message's verdicts: into the log, and into each consumer's database."""

    id: str
    in_log: tuple[Verdict, Stage]
    at_consumers: Mapping[str, tuple[Verdict, Stage]]

    @property
    def verdict(self) -> Verdict:
        return worst(self.in_log[0], *(verdict for verdict, _ in self.at_consumers.values()))

    def faults(self) -> list[tuple[str, Verdict, Stage]]:
        """What an operator has to look at: consumer ("" for all of them), verdict, stage."""
        found = [("", *self.in_log)] + [(name, *each) for name, each in sorted(self.at_consumers.items())]
        return [each for each in found if each[1] in FINDINGS]


def judge(history: History, horizon: Horizon) -> dict[str, Judged]:
    """The verdicts of every message, by id."""
    judged = {}
    for id_, (common, by_consumer) in marks_of(history, horizon).items():
        in_log = into_log(common)
        at = {name: into_consumer(marks) for name, marks in by_consumer.items()}
        # Another producer's messages are not ours to follow.
        judged[id_] = Judged(id_, in_log, {} if in_log[0] is Verdict.FOREIGN else at)
    return judged


def marks_of(history: History, horizon: Horizon) -> dict[str, tuple[Marks, dict[str, Marks]]]:
    """The marks of every message: what holds for all, and what holds for each consumer of its topic."""
    rows, parked = _by_id(history.rows), _by_id(history.parked)
    copies, kept = _by_id(history.copies), _by_id(history.kept)
    done, queued, letters = _by_id(history.done), _by_id(history.queued), _by_id(history.letters)
    behind = reordered(
        history.copies,
        retried={each.id for each in history.parked},
        written={(each.id, each.position) for each in history.rows},
    )
    firsts = first_positions(history)
    overtaken = misapplied(history, horizon)
    found = {}
    for id_ in {*rows, *copies, *kept}:
        mine = Records(rows[id_], parked[id_], copies[id_], kept[id_], done[id_], queued[id_], letters[id_])
        common = _common(mine, horizon, id_ in behind, firsts)
        found[id_] = (
            Marks(**common),
            {
                name: _at_consumer(name, reader, id_, mine, common, horizon, (name, id_) in overtaken)
                for name, reader in horizon.readers.items()
                if reader.topics & mine.topics
            },
        )
    return found


@dataclass(frozen=True, slots=True)
class Records:
    """One message's."""

    rows: Sequence[Row]
    parked: Sequence[ParkedRow]
    copies: Sequence[Copy]
    kept: Sequence[Kept]
    done: Sequence[Done]
    queued: Sequence[Queued]
    letters: Sequence[Letter]

    @property
    def topics(self) -> set[str]:
        kept = {each.topic for each in self.kept}
        return {each.topic for each in self.rows} | {each.topic for each in self.copies} | kept


def _common(
    mine: Records, horizon: Horizon, behind: bool, firsts: Mapping[tuple[str, int, int], int]
) -> dict[str, Any]:
    unfinished = sum(each.state not in (ParkedState.SENT, ParkedState.DISCARDED) for each in mine.parked)
    discarded = sum(each.state == ParkedState.DISCARDED for each in mine.parked)
    covered = sum(row.covered for row in mine.rows)
    positions = {row.position for row in mine.rows}
    claimed = {copy.position for copy in mine.copies}
    digests = {row.digest for row in mine.rows}
    ours = {position for position in claimed if position is not None}
    # Of a message that was sent again the outbox may have dropped the first row, and not the last.
    rowless = {position for position in ours if mine.rows and position < horizon.outbox_from}
    comparable = [copy for copy in mine.copies if copy.position not in rowless]
    # A message that is sent again is on its way since then.
    age = min((row.age_s for row in mine.rows), default=max((c.age_s for c in mine.copies), default=0.0))
    return {
        "rows": len(mine.rows),
        "sent": max(0, covered - unfinished - discarded),
        "waiting": len(mine.rows) - covered,
        "parked": unfinished,
        "discarded": discarded,
        "positioned": bool(ours or mine.rows),
        "forgotten": bool(ours) and max(ours) < horizon.outbox_from,
        "copies": len(mine.copies),
        "repeats": max(0, len(comparable) - max(1, len(mine.rows)), len(mine.copies) - len(claimed)),
        "altered_in_log": bool(mine.rows)
        and bool(
            {copy.digest for copy in mine.copies} - digests
            or ours - positions - rowless
            or {copy.topic for copy in mine.copies} - {row.topic for row in mine.rows}
        ),
        "reordered": behind,
        "gone": "" if mine.copies else max((gone(row, horizon, firsts) for row in mine.rows), default=""),
        "old": age > horizon.late_after_s,
        "kept_anywhere": len(mine.kept),
    }


def _at_consumer(
    name: str,
    reader: Reader,
    id_: str,
    mine: Records,
    common: Mapping[str, Any],
    horizon: Horizon,
    misapplied: bool,
) -> Marks:
    kept = [each for each in mine.kept if each.consumer == name]
    done = [each for each in mine.done if each.consumer == name]
    queued = [each for each in mine.queued if each.consumer == name]
    letters = [each for each in mine.letters if each.consumer == name]
    # What it was received from: the log, where that still has it.
    digests = {each.digest for each in mine.copies} or {each.digest for each in mine.rows}
    reached = [
        c
        for c in mine.copies
        # One id may be written to several topics.
        if c.topic in reader.topics
        if c.offset >= reader.beginnings.get((c.topic, c.partition), 0)
        or ((c.topic, c.partition) not in reader.begun and c.age_s < reader.known_for(c.topic))
    ]
    known_for = reader.known_for(max(mine.topics, default=""))
    youngest = min((row.age_s for row in mine.rows), default=0.0)
    gone = not mine.copies
    # Which of them it had read of a log that keeps the last of each key, or when it began there, nobody can say.
    forgotten = _dropped(id_, mine, reader) or (
        gone and (youngest >= known_for or any(row.topic in horizon.compacted for row in mine.rows))
    )
    # Where retention goes by size, nobody knows how long.
    expires = max((horizon.expires_after_s.get(row.topic) or math.inf for row in mine.rows), default=math.inf)
    return Marks(
        **common,
        # What the log had dropped before there was a consumer is not owed to it.
        owed=bool(reached or kept or (gone and youngest < known_for + expires)),
        kept=len(kept),
        altered_in_inbox=bool(digests) and bool({each.digest for each in kept} - digests),
        passed=bool(reached)
        and all(c.offset < reader.next_offsets.get((c.topic, c.partition), 0) for c in reached),
        overtaken=any(
            reader.next_offsets.get((row.topic, row.partition), 0)
            < horizon.log_starts.get((row.topic, row.partition), 0)
            for row in mine.rows
            if row.partition is not None
        )
        or (common["gone"] == "remade" and not forgotten),
        forgotten_in_inbox=forgotten,
        effects=sum(each.outcome == ApplicationOutcome.APPLIED for each in done),
        finished=len(done),
        misapplied=misapplied,
        queued=len(queued),
        retrying=sum(each.state == QueueState.RETRYING for each in queued)
        + sum(each.state == DeadState.RETRYING for each in letters),
        dead=sum(each.state == DeadState.DEAD for each in letters),
        given_up=sum(each.state == DeadState.DISCARDED for each in letters),
    )


def _dropped(id_: str, mine: Records, reader: Reader) -> bool:
    """Whether the inbox has dropped what it kept of that time; of ids without a time, of that part of the log."""
    made = id_ms(id_)
    if made is not None:
        return made < reader.kept_from_ms
    return not mine.copies and any(row.topic in reader.pruned for row in mine.rows)


def reordered(copies: Iterable[Copy], *, retried: set[str], written: set[tuple[str, int]]) -> set[str]:
    """Ids that stand behind a higher position of their key. First copies only; what was parked may come late.

    Only of what was `written`: whoever claims a position that is not its own says nothing of the order of others.
    """
    highest: dict[tuple[str, int, str, bytes], int] = {}
    seen: set[tuple[str, int]] = set()
    found = set()
    for copy in sorted(copies, key=lambda each: (each.topic, each.partition, each.offset)):
        if (
            copy.key is None
            or copy.position is None
            or (copy.id, copy.position) in seen
            or (copy.id, copy.position) not in written
            or copy.id in retried
        ):
            continue
        seen.add((copy.id, copy.position))
        key = (copy.topic, copy.partition, copy.source, copy.key)
        if copy.position < highest.get(key, 0):
            found.add(copy.id)
        highest[key] = max(copy.position, highest.get(key, 0))
    return found


def misapplied(history: History, horizon: Horizon) -> set[tuple[str, str]]:
    """(consumer, id) of effects that were made after one of a higher offset of their key.

    Between transactions only: within one, all is done or nothing, and a handler of lists sees them all at once. What
    was dead and put back by hand came late on purpose, and so may what is applied in any order.
    """
    keys = {(each.consumer, each.id): each.key for each in history.kept}
    back = {(each.consumer, each.id) for each in history.letters}
    effects: dict[tuple[str, str, int, bytes], list[Done]] = defaultdict(list)
    for each in history.done:
        key = keys.get((each.consumer, each.id))
        reader = horizon.readers.get(each.consumer)
        if key is None or reader is None or each.topic not in reader.ordered or each.offset is None:
            continue
        if each.outcome == ApplicationOutcome.APPLIED and (each.consumer, each.id) not in back:
            effects[each.consumer, each.topic, each.partition, key].append(each)
    found = set()
    for of_key in effects.values():
        firsts: dict[int, int] = {}
        for each in of_key:
            firsts[each.turn] = min(each.seq, firsts.get(each.turn, each.seq))
        highest = -1
        for _, group in groupby(sorted(of_key, key=lambda d: firsts[d.turn]), key=lambda d: firsts[d.turn]):
            turn = list(group)
            found |= {(each.consumer, each.id) for each in turn if (each.offset or 0) < highest}
            highest = max(highest, *(each.offset or 0 for each in turn))
    return found


def first_positions(history: History) -> dict[tuple[str, int, int], int]:
    """The lowest position that each partition of the log still holds of each lane. What was parked came out of turn."""
    lanes = {row.position: row.lane for row in history.rows}
    retried = {each.position for each in history.parked}
    lowest: dict[tuple[str, int, int], int] = {}
    for copy in history.copies:
        if copy.position is not None and copy.position not in retried and copy.position in lanes:
            place = (copy.topic, copy.partition, lanes[copy.position])
            lowest[place] = min(copy.position, lowest.get(place, copy.position))
    return lowest


def gone(row: Row, horizon: Horizon, firsts: Mapping[tuple[str, int, int], int]) -> str:
    """Whether the log no longer reaches back to this row's place: "" if it does, else why (`Marks.gone`)."""
    if row.age_s > horizon.remade_s.get(row.topic, math.inf):
        return "remade"
    if row.topic in horizon.compacted:
        return "compacted"
    places = [
        place
        for place, start in horizon.log_starts.items()
        if start > 0 and place[0] == row.topic and row.partition in (None, place[1])
    ]
    if not any(row.position < firsts.get((*place, row.lane), math.inf) for place in places):
        return ""
    return "expired" if row.age_s > horizon.expires_after_s.get(row.topic, math.inf) else "deleted"


def id_ms(id: str) -> int | None:
    """The moment that a UUIDv7 names, in milliseconds; None for any other id."""
    try:
        parsed = uuid.UUID(id)
    except ValueError:
        return None
    return parsed.int >> 80 if parsed.version == 7 else None


def _by_id(records: Iterable[_R]) -> dict[str, list[_R]]:
    found: dict[str, list[_R]] = defaultdict(list)
    for record in records:
        found[record.id].append(record)
    return found
