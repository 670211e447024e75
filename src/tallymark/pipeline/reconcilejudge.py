"""From Spark's rows to findings: what a window cannot show by itself is looked up here, a thousand messages at a time.

Where the log starts behind a message (its partition must be worked out), whether an inbox has it under another
position (a resend, or the same id written twice), and whether it is another outbox's that writes into the same topic.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence

from tallymark.broker.partition import partition_of
from tallymark.lifecycle import Verdict
from tallymark.pipeline.reconcilecells import Cells
from tallymark.pipeline.reconcileground import Ground
from tallymark.pipeline.reconcilelater import NOTHING, Taken
from tallymark.pipeline.reconcilemarks import Single
from tallymark.pipeline.reconcileports import InboxSide, OutboxSide
from tallymark.tally.findings import Finding, evidence
from tallymark.tally.history import gone
from tallymark.tally.records import Horizon, Place, Row
from tallymark.tally.verdicts import FINDINGS, Marks, into_consumer, into_log, worst


@dataclasses.dataclass(frozen=True, slots=True)
class Judged:
    """A message, its verdict and what has to be looked at."""

    single: Single
    verdict: Verdict
    findings: list[Finding]


class Judge:
    """For one outbox."""

    def __init__(
        self,
        ground: Ground,
        cells: Cells,
        horizon: Horizon,
        inboxes: Mapping[str, InboxSide],
        others: Sequence[OutboxSide],
        *,
        copied: bool = False,
        taken: Taken = NOTHING,
    ) -> None:
        """`copied`: the log is an archive, and may not have come to what was sent; `taken`: by retention, meanwhile."""
        self._ground = ground
        self._firsts = cells.firsts
        self._horizon = horizon
        self._inboxes = inboxes
        self._others = others
        self._lasts = cells.lasts
        self._copied = copied
        self._taken = taken

    def judged(self, singles: Sequence[Single]) -> Iterator[Judged]:
        """Their verdicts; messages that are another outbox's are left out."""
        elsewhere = self._elsewhere([each.id for each in singles if each.in_log[0] is Verdict.PHANTOM])
        looked = [
            self._looked_up(self._taken.passed_by(each)) for each in singles if each.id not in elsewhere
        ]
        looked = self._known_to_others(looked)
        has = self._has(looked)
        for single in looked:
            yield self._judged(single, has)

    def _judged(self, single: Single, has: Mapping[str, set[str]]) -> Judged:
        verdicts = [("", single.common, *into_log(single.common))]
        if verdicts[0][2] is not Verdict.FOREIGN:
            for name, marks in single.at_consumers.items():
                verdict, stage = into_consumer(marks)
                if verdict is Verdict.LOST_IN_INBOX and single.id in has.get(name, ()):
                    verdict = Verdict.DELIVERED
                verdicts.append((name, marks, verdict, stage))
        found = [
            Finding(
                single.id,
                single.key,
                single.topic or "",
                single.partition,
                single.offset,
                single.position,
                name,
                stage,
                verdict,
                evidence(verdict, stage, marks, name),
            )
            for name, marks, verdict, stage in verdicts
            if verdict in FINDINGS
        ]
        return Judged(single, worst(*(each[2] for each in verdicts)), found)

    def _looked_up(self, single: Single) -> Single:
        """With what is known of a log that starts behind it."""
        if single.common.copies or not single.common.sent:
            return single
        partition = self._partition(single)
        if self._is_ahead(single, partition):
            return dataclasses.replace(
                single,
                common=self._on_its_way(single.common),
                at_consumers={name: self._on_its_way(marks) for name, marks in single.at_consumers.items()},
            )
        row = Row(
            single.id,
            single.position or 0,
            "",
            single.topic,
            single.key,
            age_s=single.age_s,
            partition=None if self._came_later(single, partition) else partition,
            lane=single.lane or 0,
        )
        how = self._gone(single, row)
        if self._copied and how:
            # Nobody deletes from an archive: it was begun later, or passes over what Kafka had dropped.
            how = "expired"
        place = (single.topic, partition if partition is not None else -1)
        start = self._horizon.log_starts.get(place, 0)

        def at_consumer(name: str, marks: Marks) -> Marks:
            position = self._horizon.readers[name].next_offsets.get(place, 0)
            unread = how == "remade" and not marks.forgotten_in_inbox
            return dataclasses.replace(marks, gone=how, overtaken=position < start or unread)

        return dataclasses.replace(
            single,
            partition=single.partition if single.partition is not None else partition,
            common=dataclasses.replace(single.common, gone=how),
            at_consumers={name: at_consumer(name, marks) for name, marks in single.at_consumers.items()},
        )

    def _is_ahead(self, single: Single, partition: int | None) -> bool:
        """Whether the log that is read may end before it: nothing of its lane stands there behind it.

        A copy of the log ends where it was made; the log itself, where a transaction is open, before what others have
        committed behind that.
        """
        # Without a key it may stand in any partition: in one that the log has not come to, perhaps.
        count = self._ground.partitions.get(single.topic, 1)
        places = [(single.topic, n) for n in (range(count) if partition is None else (partition,))]
        return any(self._ends_before(single, place) for place in places)

    def _ends_before(self, single: Single, place: Place) -> bool:
        last = max(single.position or 0, single.last_position or 0)
        if not self._copied:
            if place not in self._ground.unstable:
                return False
            kept_from = single.offset if single.partition == place[1] else None
            if kept_from is not None and kept_from >= self._ground.ends.get(place, 0):
                return True
            if kept_from is not None and last == single.position:
                # A consumer has it from where the log can be read: it is there no more.
                return False
            if single.parked_once:
                # It came out of turn: what stands behind it in its lane says nothing.
                return True
        return last > self._lasts.get((*place, single.lane or 0), 0)

    def _on_its_way(self, marks: Marks) -> Marks:
        # Ages go by the moment that the outbox was looked at; a copy of the log may be of another one.
        late = {"old": False} if self._copied else {"gone": "hidden"}
        return dataclasses.replace(marks, sent=0, waiting=marks.sent, **late)

    def _gone(self, single: Single, row: Row) -> str:
        # What was parked came out of turn: its position says nothing of its place.
        how = gone(row, self._horizon, {} if single.parked_once else self._firsts)
        start = self._horizon.log_starts.get((row.topic, row.partition if row.partition is not None else -1))
        if single.offset is None or start is None or how in ("remade", "compacted"):
            return how
        # A consumer has it from there: whether the log still reaches back to that is no question of what it holds.
        if single.offset >= start:
            return ""
        expired = single.age_s > self._horizon.expires_after_s.get(row.topic, math.inf)
        return "expired" if expired else "deleted"

    def _came_later(self, single: Single, partition: int | None) -> bool:
        """Whether a message that may have expired could be older than the partition that its key has today.

        Where partitions were added, nobody has written down where its key was before. One that holds nothing of its lane
        from before it, and has lost nothing, may be such.
        """
        if partition is None or partition in (single.row_partition, single.partition):
            return False
        place = (single.topic, partition)
        before = self._firsts.get((*place, single.lane or 0), math.inf) <= (single.position or 0)
        expired = single.age_s > self._horizon.expires_after_s.get(single.topic, math.inf)
        return expired and not before and not self._horizon.log_starts.get(place, 0)

    def _partition(self, single: Single) -> int | None:
        if single.offset is not None and single.partition is not None:
            # A consumer has it from there.
            return single.partition
        if single.row_partition is not None:
            return single.row_partition
        count = self._ground.partitions.get(single.topic)
        return partition_of(single.key, count) if single.key is not None and count else None

    def _has(self, singles: Sequence[Single]) -> dict[str, set[str]]:
        """Of what seems lost in an inbox: which messages it has all the same."""
        found = {}
        for label, view in self._ground.consumers.items():
            missing = [
                each.id
                for each in singles
                if label in each.at_consumers
                and into_consumer(each.at_consumers[label])[0] is Verdict.LOST_IN_INBOX
            ]
            if missing:
                found[label] = self._inboxes[view.database].kept(view.name, missing)
        return found

    def _known_to_others(self, singles: Sequence[Single]) -> list[Single]:
        """With what consumers have that the run was not asked about: it was in the log, whatever that says now."""
        lost = [each.id for each in singles if into_log(each.common)[0] is Verdict.LOST_IN_RELAY]
        views = self._ground.unasked if lost else []
        kept = {id_ for view in views for id_ in self._inboxes[view.database].kept(view.name, lost)}
        return [
            dataclasses.replace(each, common=dataclasses.replace(each.common, kept_anywhere=1))
            if each.id in kept
            else each
            for each in singles
        ]

    def _elsewhere(self, ids: Sequence[str]) -> set[str]:
        if not ids or not self._others:
            return set()
        return {id_ for other in self._others for id_ in other.known(ids)}
