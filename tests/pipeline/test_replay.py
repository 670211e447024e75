"""Messages again into a consumer: from Kafka, from the archive where Kafka no longer has them, and each once."""

from __future__ import annotations

import json
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import TopicPartition

from tallymark.broker.kafka import AdminClient
from tallymark.errors import Problem, UsageError
from tallymark.message import new_id
from tallymark.store.postgres.replay import ReplayStore
from tests.children import start_child
from tests.deleting import deleted
from tests.inbox.ground import Ground
from tests.pipeline.archiving import Ground as Archiving
from tests.pipeline.replaying import kept, replay
from tests.waiting import wait_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_new_consumer_gets_all_since_a_moment_and_goes_on_by_itself(
    spark: SparkSession, inbox_ground: Ground
) -> None:
    """P5: it is applied by the consumer's own handlers, in order, once; what comes later it reads itself."""
    old = inbox_ground.send(40)
    since = max(_logged_ms(inbox_ground).values()) + 1
    wait_for(lambda: time.time() * 1000 > since, what="the clock has moved on")
    new = inbox_ground.send(60)
    total, _ = replay(inbox_ground, spark, since_ms=since, topics=(inbox_ground.topic,))
    assert (total.read, total.kept, total.repeated) == (60, 60, 0)
    assert kept(inbox_ground) == set(new)
    again, _ = replay(inbox_ground, spark, since_ms=since)
    assert (again.read, again.kept, again.repeated) == (60, 0, 60)
    later = inbox_ground.send(20)
    inbox_ground.apply_all(80)
    verdict = inbox_ground.compare(without=old)
    assert verdict.is_clean, verdict
    assert kept(inbox_ground) == set(new) | set(later)


def test_what_kafka_no_longer_has_comes_from_the_archive(
    spark: SparkSession, inbox_ground: Ground, tmp_path: Path, admin: AdminClient
) -> None:
    sent = inbox_ground.send(90)
    archiving = Archiving(inbox_ground.servers, tmp_path / "archive", [inbox_ground.topic])
    archiving.archive(spark)
    ends = {place[1]: extent.next for place, extent in archiving.manifests.load().extents.items()}
    cuts = {0: ends[0] // 2, 1: ends[1]}
    deleted(admin, *(TopicPartition(inbox_ground.topic, each, cut) for each, cut in cuts.items()))
    topics = (inbox_ground.topic,)
    with pytest.raises(Problem, match="are no longer in Kafka") as caught:
        replay(inbox_ground, spark, since_ms=0, topics=topics)
    assert "--archive" in caught.value.remedy
    assert ReplayStore(inbox_ground.url, inbox_ground.name).topics() is None, "nothing was begun"
    sent += inbox_ground.send(30)
    total, job = replay(inbox_ground, spark, since_ms=0, topics=topics, archive=archiving.folder)
    assert total.kept == 120
    assert 0 < job.from_archive < 120
    assert kept(inbox_ground) == set(sent)
    inbox_ground.apply_all(120)
    effects = inbox_ground.query("select message_id, account, n from effect order by seq")
    assert sorted(row[0] for row in effects) == sorted(sent)
    for account in {row[1] for row in effects}:
        numbers = [row[2] for row in effects if row[1] == account]
        assert numbers == sorted(numbers), "order within a key"
    # Single messages by id, into another consumer; one of them is nowhere.
    chosen = [sent[0], sent[50], sent[119]]
    nowhere = str(new_id())
    total, job = replay(
        inbox_ground,
        spark,
        consumer="other",
        ids=[*chosen, nowhere],
        topics=topics,
        archive=archiving.folder,
    )
    assert total.kept == 3
    assert kept(inbox_ground, "other") == set(chosen) == job.found


def test_what_no_archive_has_is_refused_unless_it_is_older(
    spark: SparkSession, inbox_ground: Ground, tmp_path: Path, admin: AdminClient
) -> None:
    """Some of it Kafka had deleted before the archive began, and some before a run that went on without it."""
    archiving = Archiving(inbox_ground.servers, tmp_path / "archive", [inbox_ground.topic])
    first = int(time.time() * 1000) - 100_000

    def send(start: int, at_ms: int, gone: int) -> None:
        archiving.send(10, partitions=1, start=start, at_ms=[at_ms])  # ten offsets, and one for the marker
        deleted(admin, TopicPartition(inbox_ground.topic, 0, gone))

    send(0, first, 5)
    archiving.archive(spark)
    send(10, first + 10_000, 15)
    archiving.archive(spark, {"skip_lost": True})
    send(20, first + 20_000, 22)
    topics = (inbox_ground.topic,)
    before, gap = (f"{inbox_ground.topic}/0: offsets {each}" for each in ("0 to 4", "11 to 14"))
    with pytest.raises(Problem, match=f"^{before}; {gap} are neither in Kafka nor in the archive"):
        replay(inbox_ground, spark, since_ms=0, topics=topics, archive=archiving.folder)
    with pytest.raises(Problem, match=f"^{gap} are neither"):
        replay(inbox_ground, spark, since_ms=first + 5_000, topics=topics, archive=archiving.folder)
    assert ReplayStore(inbox_ground.url, inbox_ground.name).topics() is None, "nothing was begun"
    total, _ = replay(inbox_ground, spark, since_ms=first + 15_000, topics=topics, archive=archiving.folder)
    assert total.kept == 10, "what is lacking is older"


def test_behind_a_later_message_of_its_key_it_waits_for_an_operator(
    spark: SparkSession, inbox_ground: Ground
) -> None:
    """Pitfall 18: m1 was lost, m2 applied. m1 must not overwrite what m2 has made, unless somebody says so."""
    sent = inbox_ground.send(10, account="account-1")
    inbox_ground.apply_all(10)
    lost = sent[4]
    for table in ("inbox", "applications"):
        inbox_ground.query(f"delete from tallymark.{table} where id::text = %s", lost)
    total, _ = replay(inbox_ground, spark, ids=[lost])
    assert (total.read, total.kept, total.behind) == (1, 0, 1)
    state, reason = inbox_ground.query(
        "select state, reason from tallymark.dead_letters where id::text = %s", lost
    )[0]
    assert state == "dead"
    assert "behind a later message" in reason
    assert inbox_ground.value("select count(*) from tallymark.queue") == 0
    # Where order does not matter, it is queued.
    second = sent[6]
    for table in ("inbox", "applications"):
        inbox_ground.query(f"delete from tallymark.{table} where id::text = %s", second)
    total, _ = replay(inbox_ground, spark, ids=[second], any_order=True)
    assert (total.kept, total.behind) == (1, 0)
    assert inbox_ground.value("select count(*) from tallymark.queue") == 1


def test_what_lies_ahead_of_the_consumer_is_left_to_it(spark: SparkSession, inbox_ground: Ground) -> None:
    inbox_ground.send(30)
    inbox_ground.apply_all(30)
    inbox_ground.send(30)
    total, _ = replay(inbox_ground, spark, since_ms=0)
    assert (total.read, total.repeated) == (30, 30)


def test_wrong_wishes(inbox_ground: Ground, spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no consumer"):
        replay(inbox_ground, spark, since_ms=0)
    with pytest.raises(Problem, match="there is no topic nowhere"):
        replay(inbox_ground, spark, since_ms=0, topics=("nowhere",))
    with pytest.raises(UsageError, match="there is no archive"):
        replay(inbox_ground, spark, since_ms=0, topics=(inbox_ground.topic,), archive=tmp_path / "none")


@pytest.mark.full
def test_the_verb_killed_and_run_again(inbox_ground: Ground, tmp_path: Path) -> None:
    sent = inbox_ground.send(5000)
    ids = tmp_path / "ids"
    ids.write_text("# chosen\n" + "\n".join(sent[:4000]) + f"\n\n{uuid.uuid4()}\n")
    arguments = [
        *(
            "-m",
            "tallymark",
            "pipeline",
            "replay",
            "--consumer",
            inbox_ground.name,
            "--topic",
            inbox_ground.topic,
        ),
        *("--ids", str(ids), "--database", inbox_ground.url, "--bootstrap-servers", inbox_ground.servers),
        *("--master", "local[2]", "--json"),
    ]
    with start_child(arguments, crash_point="replay.chunk") as child:
        assert child.wait(240) == -9, child.output
    assert len(kept(inbox_ground)) == 2000
    with start_child(arguments) as child:
        assert child.wait(240) == 1, child.output  # one was not found
        done = json.loads(child.output.splitlines()[-1])
    assert (done["kept"], done["repeated"], len(done["missing"])) == (2000, 2000, 1)
    assert kept(inbox_ground) == set(sent[:4000])
    assert inbox_ground.value("select count(*) from tallymark.audit where action = 'pipeline.replay'") == 1
    inbox_ground.apply_all(4000)
    verdict = inbox_ground.compare(without=sent[4000:])
    assert verdict.is_clean, verdict


def _logged_ms(ground: Ground) -> dict[tuple[str, int], int]:
    from tests.pipeline.archiving import log_rows

    found: dict[tuple[str, int], int] = {}
    for topic, partition, *_, at in log_rows(ground.servers, ground.topic):
        found[topic, partition] = max(at, found.get((topic, partition), 0))
    return found
