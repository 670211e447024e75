"""C5, C7, B4, S6, pitfall 14: a position is where the database says, and a log that does not fit it halts it."""

from __future__ import annotations

import json

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from tallymark.broker.consumer import KafkaLog
from tallymark.inbox.book import Book
from tallymark.inbox.config import InboxConfig
from tallymark.inbox.custody import Custody
from tallymark.inbox.handover import Handover
from tallymark.local.cluster import LocalCluster
from tallymark.message import new_id
from tallymark.store.postgres.inboxstore import PostgresInboxStore
from tests.conftest import MakeTopic
from tests.deleting import deleted
from tests.inbox.conftest import MakeInboxGround
from tests.inbox.ground import Ground, ends, headers
from tests.inbox.test_inbox_verbs import verb
from tests.leaders import leader_of, wait_for_leaders
from tests.waiting import wait_for


def test_partitions_added_later_are_read_from_their_beginning(
    make_inbox_ground: MakeInboxGround, admin: AdminClient
) -> None:
    """C5. Even by an inbox that was told to begin at the end: that was for the day it was new."""
    ground = make_inbox_ground(2)
    old = ground.send(40)
    with ground.inbox(start="end") as child:
        wait_for(lambda: len(ground.positions()) == 2, what="it has its partitions")
        for future in admin.create_partitions([NewPartitions(ground.topic, 4)]).values():
            future.result(30)
        wait_for_leaders(admin, ground.topic, 4)
        for partition in range(4):
            send(ground, 10, partition=partition)
        ground.wait_applied(40, child)
        child.terminate()
        assert child.wait() == 0, child.output
    found = ground.compare(without=old)
    assert found.expected == 40
    assert found.is_clean, found


@pytest.mark.full
def test_a_new_consumer_waits_for_a_partition_without_a_leader(
    make_inbox_ground: MakeInboxGround, admin: AdminClient, cluster: LocalCluster
) -> None:
    """Founded without it, it would be taken for one that was added later, and begin at 0. A seek moves all or none."""
    ground = make_inbox_ground(3, replication_factor=1, min_insync_replicas="1")
    ground.send(60)
    broker = cluster.broker(leader_of(admin, ground.topic, 1))
    broker.kill()
    try:
        with ground.inbox(start="end") as child:
            child.wait_output(f"Kafka says nothing of {ground.topic}/1")
            assert ground.positions() == {}
            back = ("--to", "-2h", "--yes", "--reason", "so that it reads them")
            verb(ground, "inbox", "seek", ground.name, ground.topic, *back, code=1)
            assert ground.positions() == {}
            broker.start()
            wait_for(lambda: len(ground.positions()) == 3, what="it has all of them")
            wait_for_leaders(admin, ground.topic, 3)
            new = ground.send(30)
            ground.wait_applied(30, child)
    finally:
        broker.start()
    assert {row[0] for row in ground.query("select message_id from effect")} == set(new)


def test_partitions_added_later_begin_at_their_beginning_where_positions_are_in_kafka(
    make_inbox_ground: MakeInboxGround,
) -> None:
    """C5. Given alone, an added partition has no offset, and yet its topic is known by the others'."""
    ground = make_inbox_ground(3)
    for partition in range(3):
        send(ground, 10, partition=partition)
    config = InboxConfig(ground.name, (ground.topic,), positions="kafka", start="end")

    def given(group: str, partition: int) -> int:
        kafka = KafkaLog({"bootstrap.servers": ground.servers}, group=group)
        store = PostgresInboxStore(ground.url, group)
        custody = Custody(store, kafka, Book(), Handover(1 << 20), config)
        place = ground.topic, partition
        try:
            offset, _ = custody.given([place])[place]
            wait_for(lambda: kafka.committed([place])[place] is not None, what="it is written down")
            return offset
        finally:
            kafka.close()
            store.close()

    old = Consumer({"bootstrap.servers": ground.servers, "group.id": ground.name, "log_level": 0})
    old.commit(offsets=[TopicPartition(ground.topic, 0, 4)], asynchronous=False)
    old.close()
    assert given(ground.name, 0) == 4
    assert given(ground.name, 2) == 0
    new = f"{ground.name}-new"
    end = ends(ground.servers, ground.topic, 3)
    assert given(new, 1) == end[1]
    assert given(new, 2) == end[2], "all partitions were new together: this one was not added"


def test_without_kafkas_own_offsets_it_goes_on_where_the_database_says(
    inbox_ground: Ground, admin: AdminClient
) -> None:
    """C7; and markers at the log's end are passed, so that nothing looks as if it were behind."""
    ground = inbox_ground
    ground.send(60)
    with ground.inbox() as child:
        ground.wait_applied(60, child)
        wait_for(
            lambda: ground.positions() == ends(ground.servers, ground.topic, 3), what="markers are passed"
        )
        wait_for(
            lambda: group_offsets(admin, ground) == ground.positions(), what="Kafka's own offsets follow"
        )
        child.terminate()
        assert child.wait() == 0, child.output
    admin.delete_consumer_groups([ground.name])[ground.name].result(30)
    ground.send(60)
    ground.apply_all(120)
    # Nothing was read a second time, either.
    assert ground.value("select sum(kept) from tallymark.positions") == 120
    assert ground.value("select count(*) from tallymark.applications") == 120
    found = ground.compare()
    assert found.is_clean, found


def test_what_was_deleted_before_it_was_read_is_named(inbox_ground: Ground, admin: AdminClient) -> None:
    """B4."""
    ground = inbox_ground
    for partition in range(3):
        send(ground, 10, partition=partition)
    ground.apply_all(30)
    stood = ground.positions()[0]
    for partition in range(3):
        send(ground, 30, partition=partition, transaction=30)
    deleted(admin, TopicPartition(ground.topic, 0, stood + 20))
    left = sum(record.partition == 0 for record in ground.log())
    named = f"{ground.topic}/0: offsets {stood} to {stood + 19} were deleted"
    with ground.inbox() as child:
        ground.wait_applied(30 + 60, child)  # the others go on
        child.wait_output(named)
        wait_for(lambda: halted(ground), what="it stands in the database")
        assert named in halted(ground)
        assert ground.applied() == 90
        assert ground.positions()[0] == stood
        # What comes later does not change it: it waits to be told.
        send(ground, 5, partition=1)
        ground.wait_applied(95, child)
        assert ground.positions()[0] == stood
        seek(ground, 0, stood + 20)
        ground.wait_applied(95 + left, child)
        child.terminate()
        assert child.wait() == 0, child.output
    assert ground.value("select count(*) from tallymark.positions where halted is not null") == 0
    assert ground.applied() == 95 + left


def test_a_topic_made_anew_is_refused(
    make_inbox_ground: MakeInboxGround, admin: AdminClient, make_topic: MakeTopic
) -> None:
    """S6."""
    ground = make_inbox_ground(1)
    ground.send(30)
    ground.apply_all(30)
    stood = ground.positions()[0]
    make_anew(admin, ground.topic)
    ground.send(60)  # past where the position stood: it would look as if all were well
    with ground.inbox() as child:
        child.wait_output("the topic was deleted and made anew")
        wait_for(lambda: halted(ground), what="it stands in the database")
        assert "made anew" in halted(ground)
        assert (ground.applied(), ground.positions()[0]) == (30, stood)
        seek(ground, 0, 0)
        ground.wait_applied(90, child)
        child.terminate()
        assert child.wait() == 0, child.output
    assert ground.applied() == 90


@pytest.mark.full
def test_a_topic_made_anew_while_it_runs_is_refused(
    make_inbox_ground: MakeInboxGround, admin: AdminClient
) -> None:
    ground = make_inbox_ground(1)
    ground.send(30)
    with ground.inbox() as child:
        ground.wait_applied(30, child)
        make_anew(admin, ground.topic)
        child.wait_output("the topic was deleted and made anew")
        wait_for(lambda: halted(ground), what="it stands in the database")
        assert "made anew" in halted(ground)
        ground.send(60)
        seek(ground, 0, 0)
        ground.wait_applied(90, child)


@pytest.mark.full
def test_a_position_past_the_logs_end_is_named(make_inbox_ground: MakeInboxGround) -> None:
    """After a while: right after a leader's death, its successor may know an end that is a little behind."""
    ground = make_inbox_ground(1)
    ground.send(30)
    ground.apply_all(30)
    end = ends(ground.servers, ground.topic, 1)[0]
    ground.query("update tallymark.positions set next_offset = %s", end + 100)
    with ground.inbox() as child:
        child.wait_output(f"the position {end + 100} lies past the log's end {end}")
        wait_for(lambda: ground.value("select halted from tallymark.positions"), what="it is halted")
        seek(ground, 0, 0)
        ground.send(10)
        ground.wait_applied(40, child)
    assert ground.compare().is_clean


def send(ground: Ground, count: int, *, partition: int, transaction: int = 50) -> None:
    """To one partition, for the account of its number."""
    records: list[tuple[bytes, bytes, list[tuple[str, bytes]]]] = []
    for _ in range(count):
        ground.sent += 1
        value = {"n": ground.sent, "account": f"account-{partition}", "amount": 3}
        records.append((value["account"].encode(), json.dumps(value).encode(), headers(str(new_id()))))  # type: ignore[attr-defined]
    ground.send_raw(records, partition=partition, transaction=transaction)


def seek(ground: Ground, partition: int, offset: int) -> None:
    """What an operator's seek does."""
    ground.query(
        "update tallymark.positions set next_offset = %s, epoch = epoch + 1, owner = null, owner_kind = null,"
        " lease_until = null, halted = null, topic_id = '', leader_epoch = null where partition = %s",
        offset,
        partition,
    )


def halted(ground: Ground) -> str:
    """Why partition 0 stands still. It is said in the log first."""
    return ground.value("select coalesce(halted, '') from tallymark.positions where partition = 0") or ""


def make_anew(admin: AdminClient, topic: str, partitions: int = 1) -> None:
    admin.delete_topics([topic])[topic].result(30)
    wait_for(lambda: topic not in admin.list_topics(timeout=30).topics, what="the topic is gone")
    made = NewTopic(topic, partitions, 3, config={"min.insync.replicas": "2"})
    wait_for(lambda: admin.create_topics([made])[topic].exception(30) is None, what="the topic is made anew")
    wait_for_leaders(admin, topic, partitions)


def group_offsets(admin: AdminClient, ground: Ground) -> dict[int, int]:
    asked = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(ground.name)])[ground.name]
    return {each.partition: each.offset for each in asked.result(10).topic_partitions}
