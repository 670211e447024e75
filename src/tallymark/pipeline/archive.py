"""The job: topics to Parquet by micro-batches, each exactly once, whatever is killed.

The manifests are the truth. Each micro-batch reads a range of offsets that was settled before it began, in a folder of
its own; one manifest names its files and moves the partitions. What a crash leaves in between is in no manifest, and is
deleted by the next run. There is no checkpoint: nothing of Spark's outlives a batch.
"""

from __future__ import annotations

import logging
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from tallymark.crashpoint import reached
from tallymark.errors import Inconsistent, OutcomeUnknown, Problem, TallymarkError, Unreachable, UsageError
from tallymark.inbox.gaps import Bounds
from tallymark.observe.retrying import told_again
from tallymark.pipeline import archivefiles, failures
from tallymark.pipeline.archiveplan import caught_up, founding, lost, next_moves, past_end, refuse_trouble
from tallymark.pipeline.compact import Compaction, compact
from tallymark.pipeline.manifest import Archive, Change, Kind, Move, Place
from tallymark.pipeline.manifestlog import ManifestLog, now_ms
from tallymark.pipeline.patience import PAST_END_S, Patience
from tallymark.pipeline.tenure import Logs
from tallymark.policy import Backoff

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("tallymark.pipeline")

# While there is a backlog, files are put together and old ones deleted after so many batches: it may last for days.
TIDY_EVERY = 10
# How often a log is looked at again whose end is too low.
_LOOK_S = 0.5


@dataclass(frozen=True, slots=True)
class ArchiveConfig:
    """How one run archives."""

    # Archive what is there now, then end; otherwise go on until told to stop.
    available_now: bool = False
    max_offsets: int = 1_000_000
    # Between looks at Kafka, when everything was archived.
    interval_s: float = 30.0
    # Put small files together now, however few.
    compact_now: bool = False
    compaction: Compaction = field(default_factory=Compaction)
    # How long files that were replaced stay for those who read them.
    grace_s: float = 600.0
    # How long a Kafka that is away is waited for before the run ends, from its first failure on.
    patience_s: float = 300.0
    backoff: Backoff = field(default_factory=lambda: Backoff(first_s=0.5, cap_s=15.0))


@dataclass(frozen=True, slots=True)
class Archived:
    """What one micro-batch came to."""

    rows: int
    bytes: int
    files: int
    offsets: int
    seconds: float
    number: int


def bounds_of(logs: Logs, topics: Sequence[str], known: Collection[str] = ()) -> dict[Place, Bounds]:
    """Where the logs of these topics begin and end now. One that is `known` was there a moment ago: it is waited for."""
    ids = logs.topic_ids(topics)
    if missing := sorted(set(topics) - ids.keys() - set(known)):
        raise Problem(f"there is no topic {missing[0]}", remedy="check --topic, or make it first")
    places = logs.partitions(topics)
    # One that is left out for a moment must not drop out of the run: what is there now would count as all there is.
    if silent_topics := sorted(set(topics) - ({topic for topic, _ in places} & ids.keys())):
        raise Unreachable(
            f"Kafka says nothing of topic {silent_topics[0]}",
            remedy="look with `tallymark topics check` whether it is still there",
        )
    found = {place: Bounds(*ends, ids[place[0]]) for place, ends in logs.bounds(places).items()}
    if silent := sorted(set(places) - found.keys()):
        raise Unreachable(
            f"Kafka says nothing of {silent[0][0]}/{silent[0][1]}", remedy="try again when it has a leader"
        )
    return found


def settled_bounds(
    state: Archive,
    logs: Logs,
    topics: Sequence[str],
    known: Collection[str] = (),
    wait: Callable[[float], object] = time.sleep,
) -> dict[Place, Bounds]:
    """The same. An end before what is archived is looked at again for a while, until it counts as that of a cut log."""
    until = time.monotonic() + PAST_END_S
    while behind := past_end(state, found := bounds_of(logs, topics, known)):
        if time.monotonic() >= until:
            break
        if wait(_LOOK_S):
            raise Unreachable(
                f"Kafka told of an end of {behind[0][0]}/{behind[0][1]} that is before what is archived",
                remedy="start again: it is looked at for a while before it counts as a log that was cut",
            )
    return found


def opened(
    manifests: ManifestLog,
    logs: Logs,
    *,
    run: str,
    cluster_id: str,
    topics: Sequence[str],
    add_topics: bool = False,
    skip_lost: bool = False,
) -> Archive:
    """Begin a run: whose archive it is is checked, and from here on an earlier run's writes are refused."""
    state = manifests.load()
    if not topics and not state.topics:
        raise UsageError("which topics?", remedy="give --topic TOPIC")
    if state.cluster_id not in ("", cluster_id):
        raise Problem(
            f"the archive {manifests.folder} belongs to the Kafka cluster {state.cluster_id}, this one is {cluster_id}",
            remedy="archive into another folder",
        )
    new = sorted(set(topics) - state.topics.keys())
    if new and state.topics and not add_topics:
        raise Problem(
            f"the archive {manifests.folder} holds {', '.join(sorted(state.topics))}, not {new[0]}",
            remedy="archive into another folder, or say --add-topics",
        )
    looked_ms = now_ms()
    bounds = settled_bounds(state, logs, sorted(topics or state.topics))
    if not skip_lost:
        refuse_trouble(state, {place: each for place, each in bounds.items() if place[0] in state.topics})
    state = manifests.commit(
        state,
        Change(
            state.number + 1,
            Kind.OPENED,
            run,
            now_ms(),
            archive_id=state.archive_id or secrets.token_hex(8),
            cluster_id=cluster_id,
            topics={topic: next(b.topic_id for (t, _), b in bounds.items() if t == topic) for topic in new},
            moves=founding({place: each for place, each in bounds.items() if place[0] in new}),
            # Where nothing new was logged, this run has nothing else to say.
            caught_up_ms=looked_ms if caught_up(state, bounds) else 0,
        ),
    )
    reached("archive.opened")
    if skip_lost and (gaps := lost(state, bounds)):
        state = manifests.commit(state, Change(state.number + 1, Kind.SKIPPED, run, now_ms(), moves=gaps))
    refuse_trouble(state, bounds)
    _clear(manifests, state)
    return state


def _clear(manifests: ManifestLog, state: Archive) -> None:
    """What killed runs have left. Safe from here on: their manifests are refused.

    A run that was paused here may be the zombie itself. So it is listed first, then looked whether another run has begun,
    and only what was listed is deleted: whatever the other one wrote came later.
    """
    leftovers = list(manifests.staging.iterdir())
    there = archivefiles.on_disk(manifests.folder)
    manifests.refuse_overtaken(state)
    for leftover in leftovers:
        shutil.rmtree(leftover, ignore_errors=True)
    if missing := sorted(state.files.keys() - there):
        raise Inconsistent(
            f"the archive lacks {missing[0]}, which its manifests name ({len(missing)} such files)",
            remedy="restore it from a copy",
        )
    if orphans := there - state.files.keys() - state.retired.keys():
        log.info("%d files of a run that was killed", len(orphans), extra={"action": "archive.clear"})
        archivefiles.delete(manifests.folder, orphans)


class ArchiveRun:
    """One run."""

    def __init__(
        self,
        spark: SparkSession,
        client: Mapping[str, str],
        manifests: ManifestLog,
        logs: Logs,
        state: Archive,
        config: ArchiveConfig,
        *,
        run: str,
        topics: Sequence[str],
        stop: threading.Event,
        note: Callable[[Archived], None] = lambda _archived: None,
    ) -> None:
        self._spark = spark
        self._client = client
        self._manifests = manifests
        self._logs = logs
        self.state = state
        self._config = config
        self._name = run
        self._topics = tuple(topics)
        self._stop = stop
        self._note = note
        # Whether the logs had more than the last batch took; when their ends were asked for.
        self._behind = False
        self._looked_ms = 0
        for name, value in archivefiles.SETTINGS.items():
            if not name.startswith("spark.hadoop."):
                spark.conf.set(name, value)

    def run(self) -> None:
        """Until the backlog is archived (available-now), or told to stop, or something is wrong."""
        patience, healthy = Patience(self._config.patience_s), True
        ends: Mapping[Place, Bounds] | None = None
        untidy = 0
        while not self._stop.is_set():
            before = self.state.number
            try:
                self._looked_ms = now_ms() if ends is None else self._looked_ms
                if self._config.available_now and ends is None:
                    ends = self._bounds()
                self.run_once(ends)
                healthy, untidy = True, untidy + 1
                if not self._behind:
                    # Messages that keep coming are the next look's, and no reason to leave everything as it lies.
                    untidy = 0
                    self.tidy(at_least=2 if self._config.compact_now else None)
                    if self._config.available_now:
                        return
                    self._stop.wait(self._config.interval_s)
                elif untidy >= TIDY_EVERY:
                    untidy = 0
                    self.tidy()
            except (Unreachable, OutcomeUnknown) as error:
                # Only looking and reading end so: what was committed, the manifests say.
                attempt = patience.failed(healthy=healthy or self.state.number != before)
                if attempt is None:
                    raise
                healthy = False
                self._wait_out(error, attempt)

    def run_once(self, ends: Mapping[Place, Bounds] | None = None) -> bool:
        """One micro-batch, up to `ends` or to where the logs end now; False where there was nothing to do."""
        now = self._bounds()
        refuse_trouble(self.state, now)
        upto = now if ends is None else ends
        moves = next_moves(self.state, upto, self._config.max_offsets)
        if moves:
            self._batch(moves, self._looked_ms if caught_up(self.state, upto, moves) else 0)
        self._behind = any(move.end < upto[move.place].end for move in moves)
        return bool(moves)

    def _bounds(self) -> dict[Place, Bounds]:
        return settled_bounds(self.state, self._logs, self._topics, self.state.topics, self._stop.wait)

    def _batch(self, moves: tuple[Move, ...], caught_up_ms: int) -> None:
        began = time.monotonic()
        token = f"b{secrets.token_hex(8)}"
        staged = self._manifests.staging / token
        reached("archive.planned")
        try:
            source = archivefiles.between(self._spark, self._client, moves)
            count = archivefiles.write(archivefiles.records(source), staged)
            reached("archive.written")
            self._refuse_other_topics()
        except Exception as error:
            shutil.rmtree(staged, ignore_errors=True)
            raise failures.explain(error) from error
        try:
            files = archivefiles.adopt(staged, self._manifests.folder, token, count.refuse_other)
        except OSError as error:
            raise Problem(
                f"the archive {self._manifests.folder} cannot be written: {error.strerror}",
                remedy="free some space there, or look at its rights; nothing of this batch counts",
            ) from error
        reached("archive.before_manifest")
        change = Change(
            self.state.number + 1, Kind.BATCH, self._name, now_ms(), moves=moves, add=tuple(files)
        )
        self.state = self._manifests.commit(self.state, replace(change, caught_up_ms=caught_up_ms))
        reached("archive.committed")
        self._note(
            Archived(
                rows=sum(each.rows for each in files),
                bytes=sum(each.bytes for each in files),
                files=len(files),
                offsets=sum(move.end - move.start for move in moves),
                seconds=time.monotonic() - began,
                number=self.state.number,
            )
        )

    def _refuse_other_topics(self) -> None:
        """A topic that was made anew while we read it: what was read may be of the new one."""
        for topic, found in self._logs.topic_ids(self._topics).items():
            if found != self.state.topics[topic]:
                raise Problem(
                    f"topic {topic} was deleted and made anew while it was archived "
                    f"(its id was {self.state.topics[topic]}, now {found})",
                    remedy="archive the new one into another folder",
                )

    def tidy(self, *, at_least: int | None = None) -> None:
        """Put small files together where they are many; delete what was replaced long enough ago."""
        try:
            self.state = compact(
                self._spark,
                self._manifests,
                self.state,
                self._name,
                self._config.compaction,
                at_least=at_least,
                stop=self._stop.is_set,
            )
        except TallymarkError:
            raise
        except Exception as error:
            raise failures.explain(error) from error
        self.sweep()

    def sweep(self) -> None:
        """Files first, then the manifest: what is deleted twice is no harm."""
        before = now_ms() - int(self._config.grace_s * 1000)
        old = tuple(sorted(path for path, at in self.state.retired.items() if at <= before))
        if not old:
            return
        archivefiles.delete(self._manifests.folder, old)
        reached("archive.deleted")
        change = Change(self.state.number + 1, Kind.SWEPT, self._name, now_ms(), gone=old)
        self.state = self._manifests.commit(self.state, change)

    def _wait_out(self, error: TallymarkError, attempt: int) -> None:
        delay, _ = told_again(log, error, self._config.backoff, attempt, action="archive.retry")
        self._stop.wait(delay)
