"""`tallymark tally run`: outbox = log = inbox, on Spark. Digests per window first, single messages where they differ.

The order of reading (store/postgres/tally.py) keeps a running system from looking broken. Windows that are certified
are not read again, unless the log says something new of them.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from tallymark.lifecycle import Verdict
from tallymark.pipeline.reconcilecells import Cells
from tallymark.pipeline.reconcilecertify import copies_of, examined, open_for, reopened, spoiled
from tallymark.pipeline.reconcilefiles import FindingFiles
from tallymark.pipeline.reconcilefirst import FirstLook
from tallymark.pipeline.reconcileframes import Reading, frames_of, read_along, stray_ids
from tallymark.pipeline.reconcileground import Ground, TallyConfig, look, outboxes_of, same_topics
from tallymark.pipeline.reconcilejudge import Judge
from tallymark.pipeline.reconcilelater import taken
from tallymark.pipeline.reconcilemarks import faulty, recorded, single_of, singles
from tallymark.pipeline.reconcileplain import plain
from tallymark.pipeline.reconcileports import OutboxSide, Stations
from tallymark.pipeline.reconcilerange import choose_range
from tallymark.pipeline.reconcilesources import explained
from tallymark.store.postgres.tally import OVERDUE
from tallymark.tally.certificates import ACCOUNTED, Statement
from tallymark.tally.findings import Finding, Scope, overdue
from tallymark.tally.records import Horizon, Reader
from tallymark.tally.report import TallyReport

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tallymark.store.postgres.findings import Findings

_CHUNK = 1000
_STRAYS = 10_000


def uncompared(ground: Ground) -> list[str]:
    """What the outbox's copy holds, and shows in part only."""
    if ground.beyond is None or ground.beyond > ground.view.frontier.last_position:
        return []
    return [
        f"{ground.name}: a transaction was open when it was copied; from position {ground.beyond} on nothing is compared"
    ]


class Tally:
    """One run over all outboxes that it is given."""

    def __init__(
        self,
        spark: SparkSession,
        sources: Stations,
        config: TallyConfig,
        *,
        files: FindingFiles | None = None,
        progress: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._spark = spark
        self._sources = sources
        self._config = config
        self._files = files
        self._progress = progress
        self._inboxes = sources.inboxes()
        self._first_look = FirstLook(spark, sources, config, progress)

    def run(self) -> TallyReport:
        report = TallyReport(limit=self._config.limit)
        with explained():
            for name in outboxes_of(self._sources, self._config):
                self._outbox(name, report)
            self._first_look.forget()
        return report

    def digests(self, name: str) -> tuple[Ground, Cells]:
        """The digests of everything that the outbox still has: what `tally verify` compares."""
        with explained():
            ground = look(self._sources, name, self._config)
            choose_range(ground, self._sources, self._config)
            cells = self._first_look.cells(ground)
            same_topics(self._sources, ground)
            taken(self._sources, ground).shorten(ground)
            return ground, cells

    def _outbox(self, name: str, report: TallyReport) -> None:
        findings = self._sources.findings(name)
        self._progress(f"{name}: how far everybody has come")
        ground = look(self._sources, name, self._config)
        report.remarks += [
            f"{label} is left out: it keeps its positions in Kafka, and nobody can say what it has passed"
            for label in ground.left_out
        ]
        choose_range(ground, self._sources, self._config)
        report.remarks += ground.remarks + uncompared(ground)
        if len(ground.view.overdue) >= OVERDUE:
            report.remarks.append(
                f"{name}: the {OVERDUE:,} delayed messages that are overdue the longest are named; there may be more"
            )
        cells = self._first_look.cells(ground)
        if again := self._reopened(ground, cells):
            # Something new was logged of windows that were certified: they are looked at as if they never were.
            report.remarks.append(f"{name}: the log says something new of {len(again)} certified windows")
            ground.first, ground.read_from = min(again) * ground.rows, dict(ground.starts)
            cells = self._first_look.cells(ground)
        report.rows = ground.rows
        same_topics(self._sources, ground)
        reading = self._reading(ground, cells)
        if reading.cut:
            report.remarks.append(
                f"{name}: more than {_STRAYS:,} records claim no position; whether one beyond those is a copy of ours"
                " was not looked up"
            )
        self._count(ground, cells, reading, report)
        whole = not self._config.filtered and ground.first <= ground.lowest
        absent = self._absent(ground, findings)
        report.remarks += [
            f"{label} was not asked: what was found at it stays as it is; name its database, too"
            for label in sorted(absent)
        ]
        consumers = ground.answerable(self._config.consumers or absent)
        scope = Scope(
            ground.first,
            ground.upto - 1,
            self._config.topics or None,
            consumers,
            whole=whole,
            delayed=not self._config.filtered,
            lowest=ground.view.outbox_from,
        )
        run = uuid.uuid4()
        bad: set[int] = set()
        found = self._spoiling(ground, self._found(ground, cells, reading, report), bad)
        if self._files is not None:
            of = {"outbox_id": ground.view.outbox_id, "run": str(run)}
            found = self._files.passing(found, scope, **of, at=ground.looked_at)
        if not self._config.keep or findings is None:
            for _ in found:
                pass
            return
        findings.begin(run, scope, who=self._config.who)
        findings.keep(run, scope, found, at=ground.looked_at)
        if not self._config.filtered:
            bad |= {position // ground.rows for position in findings.found_later(ground.looked_at)}
            said = list(examined(ground, cells, bad))
            given = (each for _, each in said if isinstance(each, Statement))
            report.certified += len(findings.certify(given, retired=ground.retired))
            report.uncertified += [
                (name, window.start, window.end - 1, why) for window, why in said if isinstance(why, str)
            ]
        # Who reads what: what is lost for all is lost for these.
        readers = {label: sorted(view.topics) for label, view in ground.consumers.items()}
        findings.end(run, {**report.as_json(), "findings": report.found, "consumers": readers})

    def _absent(self, ground: Ground, findings: Findings | None) -> set[str]:
        """Consumers that runs before this one looked at, and that this one has not been given."""
        if findings is None or self._config.consumers:
            return set()
        return ground.absent(findings.consumers())

    def _reopened(self, ground: Ground, cells: Cells) -> set[int]:
        return set() if self._config.filtered else reopened(ground, cells)

    def _reading(self, ground: Ground, cells: Cells) -> Reading:
        """Windows to look into: those that differ, or hold something out of order, unfinished or resent."""
        rows, view = ground.rows, ground.view
        chosen = cells.differing({label: each.topics for label, each in ground.consumers.items()})
        chosen |= cells.misapplied_in | self._first_look.reordered(ground, cells)
        chosen |= {row.position // rows for row in ground.parked}
        chosen |= {at // rows for each in ground.consumers.values() for at in each.unfinished}
        for position, of, _ in view.resends:
            # A message and its resends are judged together.
            chosen |= {position // rows, of // rows}
        strays: list[str] = []
        cut = False
        if cells.nameless:
            asked = stray_ids(self._spark, self._sources, ground, cells, limit=_STRAYS)
            cut = len(asked) >= _STRAYS
            producer = self._sources.producer(ground.name)
            # Others are another producer's, whatever they claim.
            strays = sorted(producer.known(asked))
            chosen |= {at // rows for at in producer.positions_of(strays)}
        low, high = ground.first // rows, max(ground.upto - 1, 0) // rows
        if self._config.until is None and ground.beyond is None:
            # Positions that nobody has drawn are claimed by phantoms only.
            high = max([high, *cells.log])
        known = [number for number in cells.numbers() if low <= number <= high]
        return Reading(read_along(chosen & set(known), known, rows), strays, cut)

    def _count(self, ground: Ground, cells: Cells, reading: Reading, report: TallyReport) -> None:
        low, high = ground.first // ground.rows, max(ground.upto - 1, 0) // ground.rows
        numbers = [number for number in cells.numbers() if low <= number <= high]
        report.windows += len(numbers)
        report.differing += len(reading.numbers)
        report.still_open += [
            (ground.name, cells.window(number).start, cells.window(number).end - 1, why)
            for number in numbers
            if (why := open_for(ground, cells, number)) is not None
        ]
        for number in set(numbers) - set(reading.numbers):
            report.judged(Verdict.DELIVERED, cells.outbox_of(number).count)
        if ground.first <= ground.lowest:
            # Still in the log, and dropped from the outbox.
            forgotten = [cells.log_of(number) for number in cells.log if number < low]
            report.judged(Verdict.CANNOT_KNOW, sum(digest.count for digest in forgotten))
        nameless = sum(cell.digest.count for cell in cells.nameless.values())
        report.judged(Verdict.FOREIGN, nameless + cells.others)

    def _found(
        self, ground: Ground, cells: Cells, reading: Reading, report: TallyReport
    ) -> Iterator[Finding]:
        """The second look."""
        for finding in self._overdue(ground):
            report.judged(finding.verdict)
            report.add(ground.view.outbox_id, finding)
            yield finding
        if not reading.numbers:
            return
        self._progress(f"{ground.name}: single messages of {len(reading.numbers)} windows")
        horizon = self._horizon(ground, cells)
        frames = frames_of(
            self._spark,
            self._sources,
            ground,
            cells,
            reading,
            behind=self._first_look.behind,
            misapplied=self._first_look.misapplied,
            tasks=self._config.tasks,
        )
        rows = recorded(frames, horizon).persist()
        seen = plain(rows, horizon, ground.topics).persist()
        suspects = seen.where("not plain").select("id")
        looked = singles(rows.join(suspects, "id", "left_semi"), horizon).persist()
        try:
            delivered = seen.where("plain").count() + looked.count()
            others, copied = self._others(ground.name), self._sources.log.is_copy
            # All was read: what retention took of it meanwhile is known by now.
            same_topics(self._sources, ground)
            meanwhile = taken(self._sources, ground)
            judge = Judge(ground, cells, horizon, self._inboxes, others, copied=copied, taken=meanwhile)
            found = faulty(looked).toLocalIterator()
            while chunk := [single_of(row) for row in islice(found, _CHUNK)]:
                delivered -= len(chunk)
                for judged in judge.judged(chunk):
                    bounded = self._config.until is not None or ground.beyond is not None
                    if bounded and (judged.single.position or 0) >= ground.upto:
                        # Windows are read as a whole.
                        continue
                    # What claims no position was counted as foreign already.
                    if judged.verdict is not Verdict.FOREIGN:
                        report.judged(judged.verdict)
                    for finding in judged.findings:
                        report.add(ground.view.outbox_id, finding)
                        yield finding
            report.judged(Verdict.DELIVERED, delivered)
        finally:
            for frame in (looked, seen, rows):
                frame.unpersist()

    def _overdue(self, ground: Ground) -> Iterator[Finding]:
        """What has no position yet, and should have had one for longer than the limit."""
        config, limit = self._config, ground.view.at - self._config.late_after
        for each in ground.view.overdue:
            asked = not config.topics or each.topic in config.topics
            since = config.since is None or config.since <= each.due_at
            if asked and since and each.due_at <= min(limit, config.until or limit):
                yield overdue(each.id, each.topic, each.key, each.due_at)

    def _spoiling(self, ground: Ground, found: Iterable[Finding], bad: set[int]) -> Iterator[Finding]:
        """What is found goes by; windows that it speaks of are `bad`, where no term of an equation accounts for it."""
        copies = copies_of(ground)
        for finding in found:
            if finding.verdict not in ACCOUNTED:
                bad |= spoiled(finding, copies, ground.rows)
            yield finding

    def _others(self, name: str) -> Sequence[OutboxSide]:
        return [self._sources.producer(other) for other in self._sources.outboxes if other != name]

    def _horizon(self, ground: Ground, cells: Cells) -> Horizon:
        readers = {}
        for label, view in ground.consumers.items():
            beginnings = {}
            for place, offset in view.next_offsets.items():
                begun = cells.beginning(label, view, place)
                beginnings[place] = offset if begun is None else begun
            readers[label] = Reader(
                view.topics,
                view.next_offsets,
                beginnings,
                (ground.view.at - view.created_at).total_seconds(),
                view.kept_from_ms,
                view.ordered,
                view.pruned,
                frozenset(view.starts),
                {topic: (ground.view.at - at).total_seconds() for topic, at in view.begun.items()},
            )
        return Horizon(
            readers,
            ground.view.outbox_from,
            # Where reading began behind the log's start, nothing of these windows lies before that.
            {place: start for place, start in ground.starts.items() if start >= ground.read_from[place]},
            ground.expires_after_s,
            self._config.late_after.total_seconds(),
            ground.compacted,
            {topic: (ground.view.at - at).total_seconds() for topic, at in ground.view.remade.items()},
        )
