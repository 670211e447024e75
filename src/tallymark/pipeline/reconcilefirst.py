"""The first look: every station is asked for its digests, all at once. Jobs are many and small, and mostly wait."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import reduce
from typing import TYPE_CHECKING, Any

from tallymark.message import is_uuid7
from tallymark.pipeline import reconcilecells as cellwork
from tallymark.pipeline.reconcilecells import BUCKET, Cells
from tallymark.pipeline.reconcileeffects import count_effects, look_up_resent
from tallymark.pipeline.reconcileframes import inbox_sources, known_of, logged, shares, shifted, spans_of
from tallymark.pipeline.reconcileground import Ground, TallyConfig
from tallymark.pipeline.reconcileorder import behind, misapplied
from tallymark.pipeline.reconcileports import Stations
from tallymark.pipeline.reconcilerecords import records_of
from tallymark.store.postgres.tally import ConsumerView
from tallymark.store.postgres.tallycells import CellQueries, IdRange, id_ranges, position_ranges

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_HOUR_MS = 3_600_000
_AT_ONCE = 6


class FirstLook:
    """For one run; it keeps what is out of order for the second look."""

    def __init__(
        self, spark: SparkSession, sources: Stations, config: TallyConfig, progress: Callable[[str], None]
    ) -> None:
        self.spark = spark
        self.sources = sources
        self.config = config
        self._progress = progress
        self.inboxes = sources.inboxes()
        # What was applied out of order, of each database; what stands out of order in the log.
        self.disorder: list[DataFrame] = []
        self.behind: DataFrame | None = None

    @property
    def misapplied(self) -> DataFrame | None:
        return reduce(lambda one, other: one.union(other), self.disorder) if self.disorder else None

    def forget(self) -> None:
        """Give back what was kept for the second look."""
        for frame in self.disorder:
            frame.unpersist()
        if self.behind is not None:
            self.behind.unpersist()
        self.disorder, self.behind = [], None

    def cells(self, ground: Ground) -> Cells:
        """All digests of what this run looks at."""
        cells = Cells(ground.rows, {label: view.topics for label, view in ground.consumers.items()})
        self.forget()
        self._progress(f"{ground.name}: digests of outbox, log and inboxes")
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            log = pool.submit(self._log, ground)
            outbox = pool.submit(self._outbox, ground)
            # Where all is read there is nothing to wait for.
            read = _Inboxes(self, pool, ground, None) if ground.first <= ground.lowest else None
            asked = self.config.topics
            cellwork.add_outbox(cells, (row for row in outbox.result() if not asked or row.topic in asked))
            if read is None:
                read = _Inboxes(self, pool, ground, first_id(cells))
            logged = log.result()
            ground.sources = self._sources(ground, {row.source for row in logged if row.w is not None})
            cellwork.add_log(cells, logged, ground.sources)
            read.add_to(cells)
        cells.hashed = self.sources.tables(ground.name).dialect.hashed
        count_effects(self.spark, self.sources, ground, cells)
        look_up_resent(self.spark, self.sources, ground, cells)
        return cells

    def reordered(self, ground: Ground, cells: Cells) -> set[int]:
        """Windows with messages that stand in the log behind a later one of their key."""
        if not (numbers := cells.overtaken()):
            return set()
        self._progress(f"{ground.name}: the order of keys in {len(numbers)} windows")
        parked = self.spark.createDataFrame([(each.id,) for each in ground.parked], "id string")
        records = logged(self.spark, self.sources, ground, cells, numbers)
        # Rows are asked for only where something is out of order: usually nothing is, by its key.
        if behind(records, parked).isEmpty():
            return set()
        tables = self.sources.tables(ground.name)
        queries = tables.queries(rows=ground.rows, bucket=BUCKET)
        spans = shares(spans_of(numbers, ground.rows), self.config.tasks)
        written = tables.read(self.spark, [queries.outbox_ids(each) for each in spans])
        self.behind = behind(records, parked, written).persist()
        found = self.behind.selectExpr(f"position div {ground.rows} as w").distinct().collect()
        return {row.w for row in found}

    def _outbox(self, ground: Ground) -> list[Any]:
        ranges = position_ranges(ground.first, ground.upto, self.config.tasks, ground.rows)
        if not ranges:
            return []
        tables = self.sources.tables(ground.name)
        queries = tables.queries(rows=ground.rows, bucket=BUCKET)
        return list(tables.read(self.spark, [queries.outbox_cells(*each) for each in ranges]).collect())

    def _log(self, ground: Ground) -> list[Any]:
        if ground.read_from == ground.ends:
            return []
        records = known_of(
            ground, records_of(self.sources.log.raw(self.spark, ground.read_from, ground.ends))
        )
        parked = [row.position for row in ground.parked]
        sums = cellwork.log_sums(
            records,
            rows=ground.rows,
            lanes=ground.view.lanes,
            parked=parked,
            drawn=ground.view.frontier.last_position,
            topics=ground.topics,
            usual=self.sources.producer(ground.name).usual_source(),
        )
        return list(sums.collect())

    def _sources(self, ground: Ground, logged: set[str]) -> frozenset[str] | None:
        """Whose records are the outbox's, if not all: records name their source, not their outbox."""
        ours = self.sources.producer(ground.name).sources(sorted(logged)) if logged else frozenset()
        return None if ours == logged else ours


def first_id(cells: Cells) -> uuid.UUID | None:
    """From which id on inboxes are read for the sake of these windows: the lowest that the outbox has there, and an hour.

    Whoever is written there is at or behind it, whatever its producer's clock says. The hour is for what is not: a row
    that was deleted, of a producer whose clock is behind. None, and so all, where some are no UUIDv7: inboxes save those
    under other ids, before all that name a time.
    """
    ends = [uuid.UUID(each) for both in cells.ids.values() for each in both]
    if not ends or not all(map(is_uuid7, ends)):
        return None
    return shifted(min(ends), -_HOUR_MS)


class _Inboxes:
    """What is asked of each inbox's database: what was kept, what was applied, and in which order."""

    def __init__(
        self, look: FirstLook, pool: ThreadPoolExecutor, ground: Ground, first: uuid.UUID | None
    ) -> None:
        """`first`: the id that they are read from; None: all."""
        self._look = look
        self._ground = ground
        self._first = first or uuid.UUID(int=0)
        self._asked: list[tuple[Mapping[str, str], dict[str, Future[Any]]]] = []
        # Nothing is new: what was certified is not read again.
        nothing = ground.goes_on and ground.first >= ground.upto and ground.read_from == ground.ends
        for database in () if nothing else look.inboxes:
            if labels := ground.labels_in(database):
                parts: dict[str, Future[Any]] = {
                    "kept": pool.submit(
                        self._cells, database, lambda q, ids: q.inbox_cells(ids, ground.since, ground.beyond)
                    ),
                    "done": pool.submit(
                        self._cells, database, lambda q, ids: q.effect_cells(ids, ground.since)
                    ),
                    "order": pool.submit(misapplied, look.spark, look.sources, ground, database),
                }
                if ground.goes_on and any(begun_unsaid(ground.consumers[each]) for each in labels.values()):
                    parts["beginnings"] = pool.submit(look.inboxes[database].beginnings)
                self._asked.append((labels, parts))

    def add_to(self, cells: Cells) -> None:
        for labels, parts in self._asked:
            ours = None if self._ground.sources is None else inbox_sources(self._ground)
            cellwork.add_inbox(cells, parts["kept"].result(), labels, ours)
            cellwork.add_effects(cells, parts["done"].result(), labels)
            if "beginnings" in parts:
                for (name, *place), low in parts["beginnings"].result().items():
                    if name in labels:
                        cells.beginnings[labels[name], place[0], place[1]] = low
            if (frame := parts["order"].result()) is not None:
                self._look.disorder.append(frame)
                numbers = frame.selectExpr(f"position div {self._ground.rows} as w").distinct().collect()
                cells.misapplied_in.update(row.w for row in numbers if row.w is not None)

    def _cells(self, database: str, query: Callable[[CellQueries, IdRange], str]) -> list[Any]:
        look, ground = self._look, self._ground
        tables = look.sources.tables(database)
        queries = tables.queries(rows=ground.rows, bucket=BUCKET)
        ids = id_ranges(look.inboxes[database].id_bounds(), look.config.tasks, first=self._first)
        asked = [query(queries, each) for each in ids]
        frame = tables.read(look.spark, asked)
        return list(frame.where(frame.topic.isin(ground.topics)).collect())


def begun_unsaid(view: ConsumerView) -> bool:
    """Whether it is not written down of every partition where the consumer began: then its lowest message says so."""
    return not view.next_offsets.keys() <= view.starts.keys()
