"""The job: Kafka to the inbox's tables by micro-batches, each exactly once, whatever is killed (P4, P5, S1-S6).

The database's positions are the truth. Each query begins where they stand, with a checkpoint folder of its own that
nobody ever reads again (pitfall 21): Spark's is a schedule, not a memory. Executors load, the driver commits; what a
crash leaves in between is loaded again under new tokens.

While one micro-batch is committed, executors load the next one into the other staging table. A batch is committed only
after the one before it: where that failed, the query ends, and the next one begins at the positions.
"""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tallymark.apply.failure import Verdict, verdict_of
from tallymark.crashpoint import reached
from tallymark.errors import OutcomeUnknown, Problem, Stale, TallymarkError, Unreachable
from tallymark.inbox.ports import InboxStore, InboxTx
from tallymark.inbox.salvage import Mended, mend
from tallymark.inbox.workers import Worker
from tallymark.observe.retrying import told_again
from tallymark.pipeline import failures, kafkasource
from tallymark.pipeline.archivefiles import local
from tallymark.pipeline.batches import LOOK_S, Batches
from tallymark.pipeline.batchsize import FIRST, BatchSize
from tallymark.pipeline.committing import Commit, Committed, Range
from tallymark.pipeline.loading import Loaded
from tallymark.pipeline.mending import BatchBroken, write_mended
from tallymark.pipeline.onebehind import OneBehind
from tallymark.pipeline.patience import Patience
from tallymark.pipeline.scratch import scratch
from tallymark.pipeline.tenure import Tenure
from tallymark.policy import Backoff
from tallymark.store.postgres.pipelinestore import PipelineStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

log = logging.getLogger("tallymark.pipeline")

# How often a commit that ran into another transaction is tried again.
_TRIES = 20
# Two in each other's way are apart again after a fraction of the time that a server which is away is given.
_SOON = 0.1


@dataclass(frozen=True, slots=True)
class IngestConfig:
    """How one run reads and commits."""

    # Read what is there now, then end; otherwise go on until told to stop.
    available_now: bool = False
    max_offsets: int = 200_000
    # Down to so many, where commits of more lose their session again and again.
    min_offsets: int = 1_000
    min_partitions: int | None = None
    interval_s: float = 0.5
    # Where Spark keeps its schedule; a folder of the system's if left out.
    checkpoint: Path | None = None
    # How long a database or a Kafka that is away is waited for before the run ends.
    patience_s: float = 300.0
    backoff: Backoff = field(default_factory=lambda: Backoff(first_s=0.2, cap_s=10.0))


class LeftBehind(Stale):
    """A handler hung, or ended its transaction, and its message is known now: the batch is begun anew without it."""


class Ingest:
    """One run of one consumer."""

    def __init__(
        self,
        spark: SparkSession,
        client: Mapping[str, str],
        store: PipelineStore,
        tenure: Tenure,
        commit: Commit,
        make_worker: Callable[[], Worker],
        config: IngestConfig,
        *,
        stop: threading.Event,
        note: Callable[[Committed], None] = lambda _committed: None,
    ) -> None:
        self._spark = spark
        self._client = client
        self._store = store
        self._tenure = tenure
        self._commit = commit
        self._make_worker = make_worker
        self._worker = make_worker()
        self._config = config
        self._stop = stop
        self._note = note
        one_by_one = commit.at_most is not None
        self._size = BatchSize(
            min(config.max_offsets, commit.at_most or config.max_offsets),
            config.min_offsets,
            first=FIRST if one_by_one else None,
        )
        # Set when batches are to have another size: that is for a new query.
        self._resized = threading.Event()
        self._commits = OneBehind("tallymark-commit")
        # Whether a query since the last failure got through to Kafka, and a batch of it to the database.
        self._reached_kafka = self._has_committed = False

    def run(self) -> None:
        """Until the backlog is read (available-now), or told to stop, or something is wrong."""
        patience = Patience(self._config.patience_s)
        while not self._stop.is_set():
            try:
                self._tenure.take(self._stop.wait)
                self._resized.clear()
                self._query()
                if self._resized.is_set():
                    continue
                if self._config.available_now:
                    self._commits.hand_in(self.work_off)
                    self._see_out()
                    self._commits.settle()
                return
            except (Unreachable, OutcomeUnknown, Stale) as error:
                # The positions know what was committed: what can be taken again is read from there.
                attempt = patience.failed(healthy=self._went_well(error))
                if attempt is None:
                    raise
                self._reached_kafka = self._has_committed = False
                self._wait_out(error, attempt)

    def _went_well(self, error: TallymarkError) -> bool:
        """Whether something did before this failure; or will now, because it is tried in another way."""
        if error is not self._commits.failure or isinstance(error, LeftBehind):
            return self._reached_kafka or self._has_committed
        # Spark tells of triggers although nothing that they load is ever committed: that is no sign of health.
        smaller = isinstance(error, OutcomeUnknown) and self._size.lost()
        if smaller:
            log.warning(
                "commits lose their session: at most %d offsets in a batch from now on",
                self._size.offsets,
                extra={"action": "pipeline.smaller"},
            )
        return self._has_committed or smaller

    def _query(self) -> None:
        """One streaming query, from the positions on."""
        self._commits.begin_anew()
        # Where another run had the positions meanwhile, it has dropped them.
        self._store.make_staging()
        starts = {place: position.next_offset for place, position in self._tenure.positions().items()}
        checkpoint = new_checkpoint(self._config.checkpoint)
        batches = Batches(
            checkpoint,
            self._store,
            self._tenure,
            self._commits,
            self._committed,
            stop=self._stop,
            enough=self._resized,
        )
        try:
            source = kafkasource.stream(
                self._spark,
                self._client,
                starts,
                max_offsets=self._size.offsets,
                min_partitions=self._config.min_partitions,
            )
            writer = source.writeStream.foreachBatch(batches.run_once)
            writer = writer.option("checkpointLocation", local(checkpoint))
            if self._config.available_now:
                writer = writer.trigger(availableNow=True)
            else:
                writer = writer.trigger(processingTime=f"{int(self._config.interval_s * 1000)} milliseconds")
            self._watch(writer.start(), batches)
        except Exception as error:
            raise batches.failure or failures.explain(error) from error
        finally:
            shutil.rmtree(checkpoint, ignore_errors=True)

    def _watch(self, query: StreamingQuery, batches: Batches) -> None:
        try:
            while not query.awaitTermination(LOOK_S):
                # Spark tells of idle triggers too, and of none that did not reach Kafka.
                self._reached_kafka = self._reached_kafka or query.lastProgress is not None
                self.look()
                if self._stop.is_set() or self._resized.is_set():
                    break
        finally:
            try:
                batches.end(self._leave_hung, self._spark.sparkContext.cancelAllJobs)
                query.stop()
            finally:
                # Whatever Spark says to that, or whether it is still there: a commit is not cut short.
                self._see_out()
        self._commits.settle()

    def look(self) -> None:
        """What is done once a second beside the batches. Raises what went wrong with them."""
        self._leave_hung()
        self._commits.refuse_failed()
        if self._tenure.lost is not None:
            raise Stale(self._tenure.lost, remedy="look with `tallymark inbox status`")
        # A topic that stands still must not keep those waiting that are due again.
        self._commits.if_idle(lambda: self.work_off(at_most=10))
        self._store.seen()

    def _see_out(self) -> None:
        """Wait for what is under way, for as long as its handlers may take."""
        while not self._commits.is_over(LOOK_S):
            self._leave_hung()

    def _leave_hung(self) -> None:
        """A thread whose handler hangs is left behind, its session ended; the message counts as failed (fault C9)."""
        now = time.monotonic()
        for hand in (self._commit, self._worker):
            overdue = hand.watch.overdue(now)
            handling = None if overdue is None else hand.watch.abandon(overdue)
            if handling is None:
                continue
            reason = f"its handler did not come back within {handling.timeout_s:g} s"
            first = handling.messages[0].message
            where = f"{first.topic}/{first.partition} offset {first.offset}, id {first.named or first.id}"
            log.critical("%s: %s; thread left behind", where, reason, extra={"action": "pipeline.hung"})
            if hand is self._worker:
                old, self._worker = self._worker.store, self._make_worker()
                self._worker.suspect(handling.messages, reason)
            else:
                old = self._store.renew()
                self._commit.suspect(handling.messages, reason)
            self._end_session(old)
            self._commits.leave_behind(LeftBehind(f"{where}: {reason}"))

    def _end_session(self, old: InboxStore) -> None:
        """Until it is gone it holds rows that its successor needs."""
        while True:
            try:
                old.abort_other()
                return
            except Exception as error:  # noqa: BLE001 - the database may be away
                log.warning("cannot end the old session yet: %s", error, extra={"action": "pipeline.hung"})
                if self._stop.wait(LOOK_S):
                    return

    def _committed(self, loaded: Loaded, ranges: list[Range], load_s: float) -> None:
        """What is done with a batch that is loaded, in the order of batches. What is transient is tried again."""
        attempt = 0
        self._tenure.refuse_recreated()
        while True:
            try:
                done = self._commit_once(loaded, ranges, load_s)
                break
            except Exception as error:
                attempt += 1
                known = self._store.explained(error) or failures.explain(error)
                # A commit of unknown outcome is looked into by whoever takes the positions anew.
                if verdict_of(error) is not Verdict.TRANSIENT or attempt > _TRIES:
                    raise known from error
                self._commit.note_transient()
                self._wait_out(known, attempt, share=_SOON)
        self._has_committed = True
        self._size.committed()
        covered = sum(each.end - each.start for each in ranges)
        if self._commit.at_most is not None and self._size.took(covered, done.commit_s):
            log.info(
                "a commit of %d messages took %.1f s: at most %d offsets in a batch from now on",
                done.read,
                done.commit_s,
                self._size.offsets,
                extra={"action": "pipeline.resized"},
            )
            self._resized.set()
        self._commit.note_committed()
        self._tenure.note_moved({each.place: each.end for each in ranges})
        self._store.clear_staging(loaded.table)
        self.work_off(at_most=10)

    def _commit_once(self, loaded: Loaded, ranges: list[Range], load_s: float) -> Committed:
        reached("pipeline.loaded")
        try:
            with self._store.inbox.begin() as tx:
                done = self._commit.write(self._store.transaction(tx), loaded, ranges, load_s)
        except BatchBroken as broken:
            self._mend(broken, loaded)
            raise LeftBehind(str(broken)) from broken
        reached("pipeline.after_commit")
        self._note(done)
        return done

    def _mend(self, broken: BatchBroken, loaded: Loaded) -> None:
        """A handler ended the transaction. Where that has committed, what it kept has no mark and is in no queue yet."""
        log.error("%s", broken, extra={"action": "pipeline.ended"})

        def write(tx: InboxTx) -> None:
            ours = self._store.transaction(tx)
            staged = ours.staged(self._store.run, loaded.table, loaded.tokens, loaded.places)
            write_mended(ours, staged, broken, self._commit.applier)

        found = mend(
            self._store.inbox, broken.mark, write, self._stop, self._config.backoff, count=loaded.rows
        )
        if found is Mended.NOTHING_LEFT:
            self._commit.suspect_ended(broken)

    def work_off(self, at_most: int = 1_000_000) -> int:
        """What failed before and is due again, in order within its key; and what waits behind it."""
        worker, done = self._worker, 0
        try:
            for _ in range(at_most):
                if self._stop.is_set() or self._tenure.paused.is_set():
                    break
                found = worker.run_round()
                if found is None:
                    continue
                done += found.applied
                if not found.claimed:
                    break
        except Exception as error:
            known = self._store.explained(error)
            if known is None or known is error:
                raise
            raise known from error
        return done

    def _wait_out(self, error: TallymarkError, attempt: int, *, share: float = 1.0) -> None:
        known = self._config.backoff
        backoff = replace(known, first_s=known.first_s * share, cap_s=known.cap_s * share)
        delay, _ = told_again(log, error, backoff, attempt, action="pipeline.retry")
        self._stop.wait(delay)


def new_checkpoint(folder: Path | None) -> Path:
    """An empty folder for one query, in the one that was asked for or in the system's."""
    try:
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
        return scratch("query", folder)
    except OSError as error:
        raise Problem(
            f"the checkpoint folder {folder} cannot be written: {error.strerror}",
            remedy="choose another with --checkpoint",
        ) from error
