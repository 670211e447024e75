"""Topics to Parquet: each message once, whatever the batches; what is refused; what compaction leaves as it is."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import TopicPartition

from tallymark.broker.kafka import AdminClient, NewTopic
from tallymark.broker.offsets import Logs
from tallymark.errors import Inconsistent, Problem, Stale
from tallymark.pipeline import archive as archives
from tallymark.pipeline import archivefiles
from tallymark.pipeline.archive import Archived
from tallymark.pipeline.archivestatus import look
from tallymark.pipeline.compact import Compaction
from tallymark.pipeline.manifest import Place
from tallymark.policy import Backoff
from tests.conftest import MakeTopic
from tests.deleting import deleted
from tests.pipeline.archiving import Ground, millis
from tests.waiting import wait_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MakeArchive = Callable[..., Ground]


@pytest.fixture
def make_archive(make_topic: MakeTopic, bootstrap_servers: str, tmp_path: Path) -> MakeArchive:
    def make(partitions: int = 3, topics: int = 1, **settings: str) -> Ground:
        made = [make_topic(partitions, **settings) for _ in range(topics)]
        return Ground(bootstrap_servers, tmp_path / "archive", made)

    return make


@pytest.fixture
def ground(make_archive: MakeArchive) -> Ground:
    return make_archive()


def test_the_archive_is_the_log(spark: SparkSession, make_archive: MakeArchive) -> None:
    """Several topics and days, markers and aborted messages in between, many small batches, two runs."""
    ground = make_archive(topics=2)
    days = [millis("2026-11-14T23:59:59.999+00:00"), millis("2026-11-15T00:00:00+00:00")]
    ground.send(60, aborted=3, at_ms=days)
    ground.send(20, topic=ground.topics[1])
    done = ground.archive(spark, max_offsets=70)
    assert len(done) > 1
    rows = ground.rows()
    assert rows == ground.log()
    assert len(rows) == 80 == sum(each.rows for each in done)
    ground.send(25, start=60, aborted=1)
    assert sum(each.rows for each in ground.archive(spark)) == 25
    assert ground.rows() == ground.log()
    assert not ground.archive(spark), "there was nothing to do"
    assert not ground.strays()
    state = ground.manifests.load()
    frame = archivefiles.read(spark, ground.folder, state.files.values())
    assert frame.count() == 105
    assert {row["topic"] for row in frame.select("topic").distinct().collect()} == set(ground.topics)


def test_compaction_leaves_every_row(spark: SparkSession, ground: Ground) -> None:
    ground.send(60)
    rule = Compaction(many=6, target=10**8)
    ground.archive(spark, max_offsets=40, compaction=rule, grace_s=3600)
    state = ground.manifests.load()
    assert len(state.files) == 1
    assert state.retired, "those who read the old files may go on"
    assert all((ground.folder / path).exists() for path in state.retired)
    assert ground.rows() == ground.log()
    ground.archive(spark, compaction=rule, grace_s=0)
    assert not ground.manifests.load().retired
    assert not ground.strays()
    assert ground.rows() == ground.log()


def test_a_compaction_that_failed_leaves_nothing(spark: SparkSession, ground: Ground) -> None:
    """A file that cannot be read any more: tasks fail in mid-write, and what they wrote would stay until the next run."""
    ground.send(60)
    ground.archive(spark, max_offsets=20)
    damaged = ground.files()[-1]
    damaged.write_bytes(damaged.read_bytes()[:100])
    state, run = ground.open()
    with pytest.raises(Problem):
        ground.job(spark, state, run, []).tidy(at_least=2)
    assert not list((ground.folder / "staging").iterdir())
    assert not ground.strays()


def test_two_runs_at_once_archive_nothing_twice(spark: SparkSession, ground: Ground) -> None:
    """A zombie, whatever it believes about the lock: its manifest is refused, and its files are cleared away."""
    ground.send(40)
    state, run = ground.open()
    zombie = ground.job(spark, state, run, [])
    ground.open()  # another run has begun, and cleared away what it found
    with pytest.raises(Stale, match="another run has written manifest 2"):
        zombie.run_once()
    assert ground.strays(), "it had written its files"
    assert not ground.rows()
    ground.archive(spark)
    assert not ground.strays()
    assert ground.rows() == ground.log()


@pytest.mark.parametrize("stalled", ["before it looks", "after it has looked"])
def test_a_run_that_stalls_as_it_begins_deletes_nothing_of_a_later_one(
    spark: SparkSession, ground: Ground, monkeypatch: pytest.MonkeyPatch, stalled: str
) -> None:
    """It has its number; when it wakes another run has one, too, and files that the first knows nothing of."""
    ground.send(40)
    on_disk = archivefiles.on_disk
    stalls = ["once"]

    def later_run() -> None:
        if stalls:
            stalls.clear()
            ground.archive(spark)

    def at(point: str) -> None:
        if point == "archive.opened" and stalled == "before it looks":
            later_run()

    def look(folder: Path) -> set[str]:
        found = on_disk(folder)
        if stalled == "after it has looked":
            later_run()
        return found

    monkeypatch.setattr(archives, "reached", at)
    monkeypatch.setattr(archivefiles, "on_disk", look)
    with pytest.raises(Stale, match="another run has written manifest 2"):
        ground.open()
    assert not stalls
    assert ground.rows() == ground.log()
    assert len(ground.rows()) == 40


@pytest.mark.parametrize("backlog", [False, True])
@pytest.mark.full
def test_a_run_that_goes_on_tidies_up_while_messages_keep_coming(
    spark: SparkSession, ground: Ground, monkeypatch: pytest.MonkeyPatch, backlog: bool
) -> None:
    """P7: whether each look finds something new, or there is for days more than one batch takes."""
    monkeypatch.setattr(archives, "TIDY_EVERY", 3)
    ground.send(60 if backlog else 10)
    waits: list[float | None] = []

    class Stop(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waits.append(timeout)
            return self.is_set()

    ground.stop, done = Stop(), list[Archived]()
    rule, many = Compaction(many=2, target=10**8), 4
    state, run = ground.open()
    config = {"available_now": False, "interval_s": 7.0, "max_offsets": 6 if backlog else 1_000}

    def note(each: Archived) -> None:
        done.append(each)
        if len(done) >= many:
            ground.stop.set()
        elif not backlog:
            ground.send(5, start=10 * len(done))

    job = ground.job(spark, state, run, done, note=note, compaction=rule, grace_s=0, **config)
    job.run()
    assert len(done) == many
    changes = (json.loads(path.read_text()) for path in (ground.folder / "manifests").glob("*.json"))
    assert {"compacted", "swept"} <= {each["kind"] for each in changes}
    assert not ground.strays(), "what was replaced is deleted"
    assert waits == ([] if backlog else [7.0] * many), (
        "between looks it waits, and within a backlog it does not"
    )
    assert set(ground.rows()) <= set(ground.log())


def test_what_expired_stops_the_run_and_names_the_range(
    spark: SparkSession, ground: Ground, admin: AdminClient
) -> None:
    """Faults S2 and B4. An operator may go on; the gap stays on record."""
    ground.send(60)
    ground.archive(spark)
    archived = ground.rows()
    upto = {partition: extent.next for (_, partition), extent in ground.manifests.load().extents.items()}
    ground.send(60, start=60)
    cut = upto[0] + 5
    deleted(admin, TopicPartition(ground.topics[0], 0, cut))
    with pytest.raises(Problem, match=f"/0: offsets {upto[0]} to {cut - 1} were deleted from the log before"):
        ground.archive(spark)
    assert ground.rows() == archived
    seen = look(ground.manifests, ground.client)
    assert len(seen.troubles) == 1
    ground.archive(spark, {"skip_lost": True})
    gap = ground.manifests.load().gaps
    assert [(each.partition, each.start, each.end) for each in gap] == [(0, upto[0], cut)]
    assert set(ground.rows()) == set(archived) | set(ground.log())


def test_a_topic_that_was_made_anew_is_another(
    spark: SparkSession, ground: Ground, admin: AdminClient
) -> None:
    """Fault S6, with as many messages in the new one as were archived of the old one."""
    ground.send(30)
    ground.archive(spark)
    rows, old_id = ground.rows(), ground.logs().topic_ids(ground.topics)
    admin.delete_topics(ground.topics)[ground.topics[0]].result(30)
    wait_for(lambda: not ground.logs().topic_ids(ground.topics), what="the topic is gone")
    topic = NewTopic(ground.topics[0], 3, 3, config={"min.insync.replicas": "2"})
    admin.create_topics([topic])[ground.topics[0]].result(30)
    wait_for(
        lambda: ground.logs().topic_ids(ground.topics) not in ({}, old_id), what="the topic is there again"
    )
    ground.send(30)
    with pytest.raises(Problem, match="was deleted and made anew"):
        ground.archive(spark)
    assert ground.rows() == rows


class Forgetful(Logs):
    """A Kafka whose brokers have just been restarted: for a while they do not tell of a topic."""

    def __init__(self, ground: Ground, topic: str, answers: str) -> None:
        super().__init__(AdminClient({**ground.client, "log_level": 3}))
        self._topic, self._answers = topic, answers
        self.times = 3

    def _forgets(self, answer: str) -> bool:
        self.times -= answer == self._answers
        return answer == self._answers and self.times >= 0

    def topic_ids(self, topics: Collection[str]) -> dict[str, str]:
        asked = {*topics} - {self._topic} if self._forgets("topic_ids") else topics
        return super().topic_ids(asked)

    def partitions(self, topics: Collection[str]) -> list[Place]:
        asked = {*topics} - {self._topic} if self._forgets("partitions") else topics
        return super().partitions(asked)


@pytest.mark.parametrize("answers", ["topic_ids", "partitions"])
def test_a_topic_that_kafka_does_not_tell_of_for_a_moment_is_waited_for(
    spark: SparkSession, make_archive: MakeArchive, answers: str
) -> None:
    """Neither does the run end for it, nor does it end without it."""
    ground = make_archive(topics=2)
    ground.send(10)
    ground.send(10, topic=ground.topics[1])
    state, run = ground.open()
    logs = Forgetful(ground, ground.topics[1], answers)
    ground.logs = lambda: logs  # type: ignore[method-assign]
    ground.job(spark, state, run, [], backoff=Backoff(first_s=0.01, cap_s=0.05)).run()
    assert logs.times < 0
    assert ground.rows() == ground.log()


class Low(Logs):
    """A Kafka whose leader has just died: its successor knows, for so many looks, an end that is a little behind."""

    times = 1

    def bounds(self, places: Collection[Place]) -> dict[Place, tuple[int, int]]:
        found = super().bounds(places)
        self.times -= 1
        return found if self.times < 0 else {place: (first, end - 1) for place, (first, end) in found.items()}


def test_an_end_that_is_too_low_for_a_moment_is_no_log_that_was_cut(
    spark: SparkSession, ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a run begins, and between its batches. One that stays too low is."""
    ground.send(30)
    ground.archive(spark)
    logs = Low(AdminClient({**ground.client, "log_level": 3}))
    ground.logs = lambda: logs  # type: ignore[method-assign]
    state, run = ground.open()
    assert logs.times < 0, "it was looked at again"
    ground.send(30, start=30)
    ground.job(spark, state, run, []).run()
    logs.times = 1
    job = ground.job(spark, ground.manifests.load(), run, [])
    job.run()
    assert logs.times < 0
    assert ground.rows() == ground.log()
    monkeypatch.setattr(archives, "PAST_END_S", 0.0)
    logs.times = 1
    with pytest.raises(Problem, match="the log was cut back"):
        job.run_once()


def test_an_archive_of_something_else_is_refused(ground: Ground, make_topic: MakeTopic) -> None:
    ground.open()
    with pytest.raises(Problem, match="belongs to the Kafka cluster"):
        ground.open(cluster_id="another")
    other = make_topic()
    with pytest.raises(Problem, match=rf"holds {ground.topics[0]}, not {other}"):
        ground.open(topics=[other])
    state, _ = ground.open(topics=[other], add_topics=True)
    assert set(state.topics) == {ground.topics[0], other}
    with pytest.raises(Problem, match="there is no topic nowhere-to-be-found"):
        ground.open(topics=["nowhere-to-be-found"], add_topics=True)


@pytest.mark.parametrize("seen", ["none of it", "a part of it"])
def test_rows_that_the_driver_does_not_see_are_missed(
    spark: SparkSession, ground: Ground, monkeypatch: pytest.MonkeyPatch, seen: str
) -> None:
    """Executors with disks of their own, all of them or some: their files are not where the driver looks."""
    ground.send(40)

    def elsewhere(point: str) -> None:
        if point == "archive.written":
            files = archivefiles.written(next((ground.folder / "staging").iterdir()))
            for file in files[: 1 if seen == "a part of it" else None]:
                file.unlink()

    monkeypatch.setattr(archives, "reached", elsewhere)
    with pytest.raises(Problem, match=r"40 rows were written, \d+ are here: do driver and executors share"):
        ground.archive(spark)
    assert not ground.rows()
    assert {each.next for each in ground.manifests.load().extents.values()} == {0}, "nothing was moved"
    assert not list((ground.folder / "staging").iterdir())
    monkeypatch.undo()
    ground.archive(spark)
    assert ground.rows() == ground.log()


def test_a_file_that_was_taken_away_is_missed(spark: SparkSession, ground: Ground) -> None:
    ground.send(10)
    ground.archive(spark)
    ground.files()[0].unlink()
    with pytest.raises(Inconsistent, match="the archive lacks data/topic="):
        ground.archive(spark)


def test_a_partition_that_is_added_is_archived_from_its_first_message(
    spark: SparkSession, ground: Ground, admin: AdminClient
) -> None:
    from confluent_kafka.admin import NewPartitions

    ground.send(30)
    ground.archive(spark)
    admin.create_partitions([NewPartitions(ground.topics[0], 5)])[ground.topics[0]].result(30)
    wait_for(lambda: len(ground.logs().partitions(ground.topics)) == 5, what="five partitions")
    ground.send(50, partitions=5, start=30)
    ground.archive(spark)
    assert ground.rows() == ground.log()
    assert len(ground.rows()) == 80


def test_status_says_how_far_and_how_long(spark: SparkSession, make_archive: MakeArchive) -> None:
    ground = make_archive(retention_ms="3600000")
    ground.send(30)
    ground.archive(spark)
    seen = look(ground.manifests, ground.client)
    assert (seen.rows, seen.behind, seen.left_ms, seen.held_by, seen.troubles) == (30, 0, None, None, [])
    ground.send(30, start=30)
    seen = look(ground.manifests, ground.client)
    assert seen.behind >= 30
    assert seen.left_ms is not None
    assert 0 < seen.left_ms <= 3_600_000
    with ground.manifests.held("other"):
        assert "run other" in (look(ground.manifests, ground.client).held_by or "")
        child = ground.child("--available-now")
        with child:
            assert child.wait(240) == 1
            assert "is held by run other" in json.loads(child.output.splitlines()[-1])["error"]
