"""`topics accept`: a topic that changed under the relay is published into as it is today, once someone says so."""

from __future__ import annotations

from tallymark.broker.kafka import AdminClient, NewPartitions, NewTopic
from tallymark.broker.partition import partition_of
from tests.cli.conftest import Run
from tests.leaders import wait_for_leaders
from tests.relay.ground import Ground, until_idle
from tests.waiting import wait_for


def accept(run: Run, ground: Ground, topic: str | None = None) -> tuple[int, str]:
    at = ("--database", ground.url, "--bootstrap-servers", ground.servers)
    done = run("topics", "accept", topic or ground.topic, "--reason", "we made it anew", *at)
    return done.code, done.out + done.err


def test_a_recreated_topic_is_caught_up_once_it_is_accepted(
    ground: Ground, admin: AdminClient, run: Run
) -> None:
    with ground.worker() as worker:
        ground.add(10)
        until_idle(worker)
        before = ground.last_position()
        admin.delete_topics([ground.topic])[ground.topic].result(30)
        made = NewTopic(ground.topic, 3, 3, config={"min.insync.replicas": "2"})
        wait_for(
            lambda: admin.create_topics([made])[ground.topic].exception(30) is None, what="it is made anew"
        )
        worker.reset()
        ground.add(20)
        until_idle(worker)
        wait_for(
            lambda: (
                until_idle(worker) == 0
                and "deleted and recreated" in ground.operators.status().held_topics[0].reason
            ),
            what="it is held for what it is",
        )
        assert ground.log() == [], "something was sent into a topic that lost what had been sent"
        assert accept(run, ground)[0] == 0
        wait_for(lambda: until_idle(worker) or ground.query("select 1 from tallymark.topic_holds") == [])
        until_idle(worker)
    found = ground.compare(after=before)
    assert (found.expected, found.is_clean) == (20, True), found
    audit = ground.query("select action, subject, reason from tallymark.audit")
    assert audit == [("topics.accept", ground.topic, "we made it anew")]


def test_added_partitions_are_used_once_they_are_accepted(
    ground: Ground, admin: AdminClient, run: Run
) -> None:
    with ground.worker() as worker:
        ground.add(60, keys=60)
        until_idle(worker)
        admin.create_partitions([NewPartitions(ground.topic, 7)])[ground.topic].result(30)
        wait_for_leaders(admin, ground.topic, 7)
        wait_for(lambda: "7 partitions from now on" in accept(run, ground)[1], what="it is accepted with all")
        before = ground.last_position()
        worker.reset()
        ground.add(60, keys=60)
        until_idle(worker)
    later = [record for record in ground.log() if record.position > before]
    assert len(later) == 60
    assert all(record.partition == partition_of(record.key or b"", 7) for record in later)
    assert {record.partition for record in later} - {0, 1, 2}


def test_what_cannot_be_accepted(ground: Ground, run: Run) -> None:
    code, said = accept(run, ground)
    assert (code, "has never published into" in said) == (2, True)
    code, said = accept(run, ground, "no-such-topic")
    assert (code, "there is no topic no-such-topic" in said) == (1, True)
    assert ground.query("select 1 from tallymark.audit") == []
