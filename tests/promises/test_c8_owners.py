"""C5, C8: who may read a partition, and from where: rebalances beside waiting places, leases run out, first starts."""

from __future__ import annotations

import os
import threading

import pytest
from confluent_kafka import Consumer

from tallymark.broker.consumer import KafkaLog
from tallymark.broker.kafka import AdminClient, TopicPartition
from tallymark.inbox.book import Book
from tallymark.inbox.config import InboxConfig
from tallymark.inbox.custody import Custody
from tallymark.inbox.handover import Handover
from tallymark.inbox.ports import Instance, Received
from tallymark.inbox.receiver import Receiver
from tallymark.inbox.stride import Stride
from tallymark.store.postgres.inboxstore import PostgresInboxStore
from tests.deleting import deleted
from tests.inbox.ground import Ground
from tests.promises.test_c8_taken_and_given_back import owner
from tests.waiting import wait_for


def test_a_place_that_waits_through_a_rebalance_is_read_from_its_position(inbox_ground: Ground) -> None:
    """It had been read ahead when it was set aside. Another one joins, and it is taken again in the callback."""
    ground = inbox_ground
    ground.send(60)
    config = InboxConfig(ground.name, (ground.topic,), lease_s=60)
    store = PostgresInboxStore(ground.url, ground.name)
    store.enlist(Instance(config.owner, ground.name, config.topics, "inline", "0", "here", os.getpid()), 60)
    book, handover = Book(), Handover(2**30, max_batches=1_000_000)
    kafka = KafkaLog({"bootstrap.servers": ground.servers}, group=ground.name, session_timeout_ms=6000)
    other = Consumer(
        {
            "bootstrap.servers": ground.servers,
            "group.id": ground.name,
            "partition.assignment.strategy": "cooperative-sticky",
            "session.timeout.ms": 6000,
            "log_level": 0,
        }
    )
    custody = Custody(store, kafka, book, handover, config)
    receiver = Receiver(
        kafka, book, custody, handover, config, stride=Stride(100, 2.0), held_back=threading.Event()
    )
    try:
        kafka.join(config.topics, custody)
        wait_for(lambda: receiver.run_once() >= 0 and _handed(handover) == 60, what="all is read ahead")
        while (batch := handover.take(0)) is not None:
            handover.done(batch)
        book.set_aside(book.epochs())
        other.subscribe([ground.topic])
        receiver._take_at = float("inf")  # not by its own look, once a second: in the callback

        def rebalanced() -> bool:
            other.poll(0.1)
            receiver.run_once()
            return bool(book.epochs())

        wait_for(rebalanced, what="what is left to us is taken again")
        records = ground.log()
        found: list[Received] = []

        def read() -> bool:
            receiver.run_once()
            other.poll(0)
            while (batch := handover.take(0)) is not None:
                found.extend(batch.messages)
                handover.done(batch)
            ours = {partition for _, partition in book.epochs()}  # a rebalance has several rounds
            wanted = {record.id for record in records if record.partition in ours}
            return bool(ours) and {str(each.id) for each in found if each.partition in ours} == wanted

        wait_for(read, what="all of it is read again, from the position on")
    finally:
        other.close()
        kafka.close()
        store.close()


def _handed(handover: Handover) -> int:
    return sum(len(batch.messages) for batch in handover._waiting)


def test_two_processes_that_begin_a_consumer_share_its_beginning(
    inbox_ground: Ground, admin: AdminClient
) -> None:
    """Retention took the log's start before anybody read: for a new consumer nothing is lost, in whichever half."""
    ground = inbox_ground
    ground.send(60)
    deleted(admin, *(TopicPartition(ground.topic, partition, 2) for partition in range(3)))
    left = len(ground.log())
    with (
        ground.inbox(assign=[(ground.topic, 0)]) as first,
        ground.inbox(assign=[(ground.topic, 1), (ground.topic, 2)]) as second,
    ):
        ground.wait_applied(left, first, second)
    assert ground.query("select halted from tallymark.positions where halted is not null") == []
    assert ground.compare().is_clean


@pytest.mark.full
def test_a_lease_that_ran_out_is_free(inbox_ground: Ground) -> None:
    """A standby took the partitions and was killed: the first one, refused until then, takes them back."""
    ground = inbox_ground
    fixed = [(ground.topic, partition) for partition in range(3)]
    ground.send(20)
    # Long enough for a crowded machine: a heartbeat that comes late is a lease that ran out.
    with ground.inbox(assign=fixed, lease_seconds=8) as first:
        ground.wait_applied(20, first)
        with ground.inbox(assign=fixed, lease_seconds=8) as second:
            wait_for(lambda: owner(ground) == {second.pid}, what="the second one has taken them")
            ground.send(20)
            ground.wait_applied(40, first, second)
            second.kill()
        ground.send(20)
        ground.wait_applied(60, first)
        assert owner(ground) == {first.pid}
    assert ground.compare().is_clean
