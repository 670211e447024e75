"""A key keeps its lane and its partition (pitfall 10): neither moves under messages that are on their way."""

from __future__ import annotations

import pytest

from tallymark.broker.kafka import AdminClient, NewPartitions
from tallymark.errors import Stale
from tests.cli.conftest import Run
from tests.relay.conftest import MakeGround
from tests.relay.ground import Ground, until_idle
from tests.waiting import wait_for


def test_added_partitions_move_no_key(ground: Ground, admin: AdminClient) -> None:
    with ground.worker() as worker:
        ground.add(60)
        until_idle(worker)
        admin.create_partitions([NewPartitions(ground.topic, 7)])[ground.topic].result(30)
        wait_for(
            lambda: len(admin.list_topics(ground.topic, timeout=30).topics[ground.topic].partitions) == 7,
            what="the topic has seven partitions",
        )
        worker.reset()  # as after any crash: everything is looked at anew
        ground.add(60)
        until_idle(worker)
    found = ground.compare()
    assert found.expected == 120
    assert found.is_clean, found
    assert {record.partition for record in ground.log()} <= {0, 1, 2}


def test_an_explicit_partition_is_kept_and_one_that_is_not_there_is_parked(ground: Ground) -> None:
    insert = (
        "insert into tallymark.outbox (id, topic, key, partition) values (gen_random_uuid(), %s, 'k', %s)"
    )
    ground.query(insert, ground.topic, 2)
    ground.query(insert, ground.topic, 99)
    ground.add(5, key="other")
    with ground.worker() as worker:
        until_idle(worker)
    assert [record.partition for record in ground.log() if record.key == b"k"] == [2]
    assert ground.query("select partition, state from tallymark.parked") == [(99, "failed")]


def test_the_lane_count_changes_only_with_nothing_waiting(make_ground: MakeGround, run: Run) -> None:
    ground = make_ground(lanes=2)
    change = ("relay", "lanes", "5", "--database", ground.url)
    ground.add(60)
    refused = run(*change)
    assert refused.code == 1
    assert "messages wait to be sent" in refused.err
    with ground.relay(lease_seconds=30):
        ground.wait_sent()
        refused = run(*change)
        assert (refused.code, "relays are running" in refused.err) == (1, True)
    # It was killed: its time would run out by itself.
    ground.query("delete from tallymark.relays")
    ground.query("update tallymark.lanes set owner = null, lease_until = null")
    done = run(*change)
    assert done.code == 0, done.err
    assert ground.value("select lanes from tallymark.outbox_identity") == 5
    # What was sent under the old cut is found in the batch that sent it.
    listed = run("outbox", "list", "--state", "sent", "--limit", "100", "--json", "--database", ground.url)
    assert len(listed.json) == 60
    before = dict(ground.query("select id::text, mod(slot, 2) from tallymark.outbox"))
    assert {each["id"]: each["lane"] for each in listed.json} == before
    ground.add(120)
    ground.send_all()
    found = ground.compare()
    assert found.expected == 180
    assert found.is_clean, found
    assert ground.value("select count(distinct lane) from tallymark.batches where kind = 'range'") > 2
    back = run("relay", "lanes", "1", "--database", ground.url)
    assert back.code == 0, back.err
    ground.add(60)
    ground.send_all()
    assert ground.compare().is_clean


def test_a_stopped_relay_that_wakes_after_the_lanes_were_changed_goes_by_the_new_cut(
    make_ground: MakeGround, run: Run
) -> None:
    """By the old one it would send again what the new lanes send, and in another order."""
    ground = make_ground(lanes=1)
    ground.add(30)
    with ground.relay() as relay:
        ground.wait_sent()
        relay.stop()
        wait_for(
            lambda: not ground.query("select 1 from tallymark.relays where seen_until > clock_timestamp()"),
            what="it counts as gone",
        )
        assert run("relay", "lanes", "3", "--database", ground.url).code == 0
        ground.add(120)
        relay.cont()
        ground.wait_sent()
        assert relay.is_alive(), relay.output
        lanes = ground.query(
            "select distinct lane from tallymark.batches where kind = 'range' and covered > 30"
        )
        assert sorted(lanes) == [(0,), (1,), (2,)]
        relay.terminate()
        assert relay.wait() == 0, relay.output
    found = ground.compare()
    assert (found.expected, found.is_clean) == (150, True), found


def test_whoever_held_a_lane_before_the_lanes_were_changed_is_stale(
    make_ground: MakeGround, run: Run
) -> None:
    ground = make_ground(lanes=1)
    with ground.worker() as worker:
        ground.add(10)
        until_idle(worker)
        assert run("relay", "lanes", "3", "--database", ground.url).code == 0
        ground.add(30)
        with pytest.raises(Stale):
            until_idle(worker)
    assert len(ground.log()) == 10


def test_a_relay_set_to_another_lane_count_is_refused(make_ground: MakeGround) -> None:
    ground = make_ground(lanes=2)
    with ground.relay(lanes=3) as relay:
        assert relay.wait() == 2
        assert "this relay is set to 3 lanes, the outbox has 2" in relay.output
    ground.add(10)
    ground.send_all(lanes=2)
    assert ground.compare().is_clean


def test_a_recreated_topic_is_held_and_said_so(ground: Ground, admin: AdminClient) -> None:
    from tallymark.broker.kafka import NewTopic

    with ground.worker() as worker:
        ground.add(10)
        until_idle(worker)
        admin.delete_topics([ground.topic])[ground.topic].result(30)
        wait_for(lambda: ground.topic not in admin.list_topics(timeout=30).topics, what="it is deleted")
        made = NewTopic(ground.topic, 3, 3, config={"min.insync.replicas": "2"})
        wait_for(
            lambda: admin.create_topics([made])[ground.topic].exception(30) is None, what="it is made anew"
        )
        worker.reset()
        ground.add(10)
        until_idle(worker)
        held = ground.operators.status().held_topics
        assert len(held) == 1
        assert "was deleted and recreated" in held[0].reason or "there is no topic" in held[0].reason
