"""What a micro-batch commits, and what it does not: on real Kafka, PostgreSQL and Spark, in one session."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from confluent_kafka import KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic
from psycopg import sql

from tallymark.apply.handlers import Handlers
from tallymark.apply.incoming import Message
from tallymark.apply.options import Defaults
from tallymark.broker.offsets import topic_ids
from tallymark.errors import Problem
from tallymark.inbox.identity import received
from tallymark.inbox.ports import Wanted
from tallymark.lifecycle import OwnerKind
from tallymark.message import new_id
from tallymark.pipeline.committing import Committed
from tallymark.pipeline.effects import FunctionEffect, HandlersEffect, Messages, NoEffect
from tallymark.pipeline.machine import of_this_machine
from tallymark.pipeline.tenure import Held
from tallymark.store.postgres.inboxstore import PostgresInboxStore
from tests.deleting import deleted
from tests.inbox.ground import Ground, ends, headers
from tests.leaders import wait_for_leaders
from tests.pipeline.grounds import Run
from tests.waiting import wait_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_what_is_there_now_is_kept_and_applied_once(inbox_ground: Ground, spark: SparkSession) -> None:
    ground = inbox_ground
    ground.send(150)
    first = Run(ground, spark, max_offsets=60)()
    assert len(first) > 1, "several micro-batches"
    assert sum(each.applied for each in first) == 150
    assert Run(ground, spark)() == [], "there is nothing left to do"
    ground.send(30)
    assert sum(each.kept for each in Run(ground, spark)()) == 30
    assert ground.compare().is_clean
    assert ground.value("select count(*) from tallymark.applications") == 180
    assert ground.positions() == ends(ground.servers, ground.topic, 3), "markers at the end are passed too"


def test_what_is_read_again_changes_nothing(inbox_ground: Ground, spark: SparkSession) -> None:
    """S4, pitfall 22: positions set back, as by a stale checkpoint; part of it is new."""
    ground = inbox_ground
    ground.send(80)
    Run(ground, spark)()
    ground.send(20)
    ground.query(
        "update tallymark.positions set next_offset = 0, owner = null, owner_kind = null, lease_until = null"
        " returning 1"
    )
    done = Run(ground, spark)()
    assert (sum(each.repeated for each in done), sum(each.applied for each in done)) == (80, 20)
    assert ground.compare().is_clean
    assert ground.value("select sum(kept) from tallymark.positions") == 100


def test_a_database_restored_to_before_goes_on_from_there(inbox_ground: Ground, spark: SparkSession) -> None:
    """Pitfall 21: what Spark had written of its own way counts for nothing."""
    ground = inbox_ground
    ground.send(60)
    Run(ground, spark)()
    base, _, name = ground.url.rpartition("/")
    with psycopg.connect(ground.url.replace(f"/{name}", "/postgres"), autocommit=True) as connection:
        connection.execute(
            sql.SQL("create database {} template {}").format(
                sql.Identifier(f"{name}_r"), sql.Identifier(name)
            )
        )
        try:
            ground.send(40)
            Run(ground, spark)()
            restored = Ground(f"{base}/{name}_r", ground.servers, ground.topic, name=ground.name)
            assert sum(each.applied for each in Run(restored, spark)()) == 40
            assert restored.compare().is_clean
        finally:
            connection.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(f"{name}_r")))


def test_a_commit_that_the_server_lost_is_made_again(inbox_ground: Ground, spark: SparkSession) -> None:
    """Pitfall 14: after a failover to a server that lacks the last commit, epoch and owner are as before, and only the
    offset that a batch starts from tells that the one before it is missing."""
    ground = inbox_ground
    ground.send(150)
    run = Run(ground, spark, max_offsets=60)
    lost: list[Committed] = []

    def lose_the_first(done: Committed) -> None:
        if not lost:
            for table in ("tallymark.inbox", "tallymark.applications", "tallymark.ingested", "effect"):
                ground.query(f"delete from {table} returning 1")
            ground.query("update account set balance = 0 returning 1")
            ground.query("update tallymark.positions set next_offset = 0, kept = 0 returning 1")
        lost.append(done)

    run.note = lose_the_first
    run()
    assert len(lost) > 2
    assert ground.compare().is_clean
    assert ground.value("select sum(kept) from tallymark.positions") == 150


def test_positions_go_by_offsets_and_not_by_rows(inbox_ground: Ground, spark: SparkSession) -> None:
    """Pitfall 20: an aborted transaction leaves offsets without rows."""
    ground = inbox_ground
    ground.send(20)
    producer = Producer(
        {"bootstrap.servers": ground.servers, "transactional.id": str(new_id()), "log_level": 0}
    )
    producer.init_transactions(30)
    producer.begin_transaction()
    for number in range(30):
        producer.produce(ground.topic, value=b"{}", key=str(number).encode())
    producer.flush(30)
    producer.abort_transaction(30)
    Run(ground, spark)()
    assert ground.compare().is_clean
    assert ground.positions() == ends(ground.servers, ground.topic, 3)


def test_one_bad_message_stops_its_key_and_nothing_else(inbox_ground: Ground, spark: SparkSession) -> None:
    """S5: the statement for all of them fails; what is bad is found by halves."""
    ground = inbox_ground
    good = ground.send(200)
    bad = str(new_id())
    ground.send_raw([(b"account-1", b"{not json", headers(bad))])
    behind = ground.send(3, account="account-1")
    others = ground.send(40, account="account-2")
    done = Run(ground, spark, max_offsets=400)()
    assert sum(each.queued for each in done) == 1 + len(behind)
    effects = {row[0] for row in ground.query("select message_id from effect")}
    assert effects == {*good, *others}
    ((id_, state, reason),) = ground.query(
        "select id::text, state, reason from tallymark.queue where attempts > 0"
    )
    assert (id_, state) == (bad, "retrying")
    assert "json" in reason
    waiting = [row[0] for row in ground.query("select id::text from tallymark.queue order by seq")]
    assert waiting == [bad, *behind]
    # The next run keeps what comes for that key, and does not apply it (pitfall 23).
    (late,) = ground.send(1, account="account-1")
    Run(ground, spark)()
    assert [row[0] for row in ground.query("select id::text from tallymark.queue order by seq")][-1] == late
    # Somebody takes the bad one out of the way: the others follow in their order.
    ground.query("delete from tallymark.queue where id = %s returning 1", bad)
    Run(ground, spark)()
    found = [row[0] for row in ground.query("select message_id from effect order by seq")]
    assert found[-4:] == [*behind, late]
    assert ground.value("select count(*) from tallymark.queue") == 0


def test_a_function_is_given_the_transaction_and_the_batch(inbox_ground: Ground, spark: SparkSession) -> None:
    ground = inbox_ground
    ids = ground.send(25)
    seen: list[int] = []

    def apply(tx: Any, batch: Messages) -> None:
        seen.append(batch.count)
        tx.execute(f"insert into effect (message_id) select id::text from {batch.relation}")

    Run(ground, spark, FunctionEffect(apply, [ground.topic]))()
    assert sum(seen) == 25
    assert {row[0] for row in ground.query("select message_id from effect")} == set(ids)


def test_ids_that_come_twice_and_ids_that_are_reused(inbox_ground: Ground, spark: SparkSession) -> None:
    ground = inbox_ground
    value = json.dumps({"n": 1, "account": "account-1", "amount": 5}).encode()
    twice, reused = str(new_id()), str(new_id())
    ground.send_raw(
        [
            (b"account-1", value, headers(twice)),
            (b"account-1", value, headers(twice)),
            (b"account-1", value, headers(reused)),
            (b"account-1", value.replace(b"5", b"6"), headers(reused)),
        ]
    )
    done = Run(ground, spark)()
    assert [sum(getattr(each, name) for each in done) for name in ("kept", "repeated", "quarantined")] == [
        2,
        1,
        1,
    ]
    ((id_, reason, offset),) = ground.query('select id::text, reason, "offset" from tallymark.dead_letters')
    assert (id_, offset is not None) == (reused, True)
    assert "used before" in reason
    assert ground.value("select count(*) from effect") == 2


def test_ids_from_the_future_are_set_apart(inbox_ground: Ground, spark: SparkSession) -> None:
    ground = inbox_ground
    future = "09" + str(new_id())[2:]
    value = json.dumps({"n": 1, "account": "account-1", "amount": 5}).encode()
    ground.send_raw([(b"account-1", value, headers(future))])
    good = ground.send(5)
    Run(ground, spark)()
    assert ground.query("select id::text from tallymark.dead_letters") == [(future,)]
    assert {row[0] for row in ground.query("select message_id from effect")} == set(good)


def test_foreign_messages_have_the_same_ids_as_in_the_service(
    inbox_ground: Ground, spark: SparkSession
) -> None:
    """No headers, repeated headers, no key, no value, ids that are not UUIDs: by the same code on every way in."""
    ground = inbox_ground
    ground.send_raw(
        [
            (None, b"x", None),
            (b"k", None, [("ce_id", b"order-1"), ("ce_source", b"/shop")]),
            (b"k", b"v", [("ce_id", b"first"), ("ce_id", b"last"), ("a", b"\xff"), ("b", b"b")]),
            (b"k", b"v", [("ce_id", str(new_id()).encode()), ("tm_position", b"17")]),
        ]
    )
    Run(ground, spark, NoEffect([ground.topic]))()
    columns = 'id, source, named, topic, partition, "offset", position, key, value, headers::text, logged_at'
    kept = {(row[3], row[4], row[5]): row for row in ground.query(f"select {columns} from tallymark.inbox")}
    log = _records(ground)
    assert len(kept) == len(log) == 4
    for record in log:
        wanted = received(
            record.topic(),
            record.partition(),
            record.offset(),
            record.key(),
            record.value(),
            record.headers(),
            record.timestamp()[1],
        )
        assert tuple(kept[wanted.topic, wanted.partition, wanted.offset]) == tuple(wanted)


def test_an_expired_range_stops_it_and_is_named(
    inbox_ground: Ground, spark: SparkSession, admin: AdminClient
) -> None:
    """S2, B4: deleted before it was read; nothing is skipped."""
    ground = inbox_ground
    ground.send(60)
    Run(ground, spark)()
    ground.send(60)
    at = ends(ground.servers, ground.topic, 3)
    deleted(admin, TopicPartition(ground.topic, 0, at[0]))
    before = ground.positions()
    with pytest.raises(Problem, match=rf"offsets {before[0]} to {at[0] - 1} were deleted") as stopped:
        Run(ground, spark)()
    assert "inbox seek" in stopped.value.remedy
    assert ground.positions() == before
    assert "were deleted" in ground.value("select halted from tallymark.positions where partition = 0")


def test_a_topic_made_anew_stops_it(inbox_ground: Ground, spark: SparkSession, admin: AdminClient) -> None:
    """S6."""
    ground = inbox_ground
    ground.send(30)
    Run(ground, spark)()
    before = topic_ids(admin, [ground.topic])
    admin.delete_topics([ground.topic])[ground.topic].result(30)

    def made() -> bool:
        try:
            admin.create_topics([NewTopic(ground.topic, 3, 3)])[ground.topic].result(30)
        except Exception as error:  # noqa: BLE001 - it is still being deleted
            return "already exists" not in str(error) and "marked for deletion" not in str(error)
        return True

    wait_for(made, what="the topic is made anew")
    wait_for(
        lambda: set(topic_ids(admin, [ground.topic]).values()) - set(before.values()),
        what="the new topic is known",
    )
    wait_for_leaders(admin, ground.topic, 3)
    with pytest.raises(Problem, match="deleted and made anew"):
        Run(ground, spark)()


def test_partitions_that_are_added_are_read_from_their_beginning(
    inbox_ground: Ground, spark: SparkSession, admin: AdminClient
) -> None:
    ground = inbox_ground
    ground.send(20)
    Run(ground, spark)()
    admin.create_partitions([NewPartitions(ground.topic, 5)])[ground.topic].result(30)
    wait_for_leaders(admin, ground.topic, 5)
    value = json.dumps({"n": 1, "account": "account-1", "amount": 5}).encode()
    for partition in (3, 4):
        ground.send_raw([(b"account-1", value, headers(str(new_id())))], partition=partition)
    Run(ground, spark)()
    assert set(ground.positions()) == {0, 1, 2, 3, 4}
    assert ground.applied() == 22


@pytest.mark.parametrize("kind", [OwnerKind.SERVICE, OwnerKind.SPARK])
def test_who_holds_the_positions_is_not_pushed_aside(
    inbox_ground: Ground, spark: SparkSession, kind: OwnerKind
) -> None:
    """Pitfall 23. The owner is a process that runs, on this machine; a run that was killed is not waited for."""
    import os
    import socket

    ground = inbox_ground
    ground.send(10)
    Run(ground, spark)()
    store = PostgresInboxStore(ground.url, ground.name)
    wanted = [Wanted(ground.topic, partition, "", 0) for partition in range(3)]
    holder = of_this_machine(f"{socket.gethostname()}:{os.getppid()}:0123456789")
    store.take(holder, kind, 60, wanted)
    ground.send(10)
    with pytest.raises(Held, match=f"is held by {holder}"):
        Run(ground, spark)()
    assert ground.applied() == 10
    store.release(holder, {place: each.epoch for place, each in store.positions().items()})
    if kind is OwnerKind.SPARK:
        store.take(of_this_machine(f"{socket.gethostname()}:999999999:0123456789"), kind, 60, wanted)
    Run(ground, spark)()
    assert ground.applied() == 20
    store.close()


def _records(ground: Ground) -> list[Any]:
    from confluent_kafka import Consumer

    consumer = Consumer(
        {
            "bootstrap.servers": ground.servers,
            "group.id": str(new_id()),
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(ground.topic, partition, 0) for partition in range(3)])
    found: list[Any] = []
    ended: set[int | None] = set()

    def drained() -> bool:
        message = consumer.poll(1)
        if message is None:
            return False
        error = message.error()
        if error is None:
            found.append(message)
        elif error.code() == KafkaError._PARTITION_EOF:
            ended.add(message.partition())
        return len(ended) == 3

    wait_for(drained, what="the log is read to its end")
    consumer.close()
    return found


def test_a_handler_that_hangs_in_a_batch_counts_as_failed(inbox_ground: Ground, spark: SparkSession) -> None:
    """Fault C9: the batch is begun anew without it, in the same run."""
    ground, release, calls = inbox_ground, threading.Event(), list[bytes | None]()
    ground.send(20)
    bad = ground.send(1, account="account-1")[0]

    def apply(message: Message, tx: Any) -> None:
        if str(message.id) == bad:
            calls.append(message.key)
            release.wait(120)

    handlers = Handlers(Defaults().changed(handler_timeout=5.0, backoff=(60, 60)))
    handlers.handler(ground.topic)(apply)
    try:
        done = Run(ground, spark, HandlersEffect(handlers))()
    finally:
        release.set()
    assert sum(each.applied for each in done) == 20
    assert ground.query("select id::text, state, attempts from tallymark.queue") == [(bad, "retrying", 1)]
    assert len(calls) == 1
