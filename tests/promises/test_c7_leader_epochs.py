"""C7, B3: a new leader between two owners. Beside an old leader's epoch an offset seems to be of a log that was cut."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from tallymark.local.cluster import LocalCluster
from tallymark.message import new_id
from tests.inbox.ground import Ground, ends, headers
from tests.leaders import leader_of, wait_for_leaders, wait_for_markers
from tests.pipeline.grounds import pipeline
from tests.waiting import wait_for

pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]


def test_from_the_service_to_spark_and_back_with_a_new_leader_between(
    inbox_ground: Ground, tmp_path: Path, cluster: LocalCluster, admin: AdminClient
) -> None:
    ground = inbox_ground
    # Not in a transaction: the last thing before the position is a message, whose leader's epoch is known.
    producer = Producer({"bootstrap.servers": ground.servers, "log_level": 0})
    _produce(producer, ground, 30)
    producer.flush(30)
    ground.apply_all(30)
    stood = ground.query("select partition, leader_epoch from tallymark.positions where next_offset > 0")
    assert stood
    assert all(epoch is not None for _, epoch in stood), "each is checked when it is taken again"
    _new_leaders(cluster, admin, ground.topic)
    ground.send(60)
    with pipeline(ground, tmp_path, available_now=False, lease_seconds=10.0) as spark:
        wait_for(lambda: ground.applied() >= 90 or not spark.is_alive(), within=240, what="Spark goes on")
        assert spark.is_alive(), spark.output
        with ground.inbox(lease_seconds=10.0) as service:
            service.wait_output("is held by")
            spark.terminate()
            assert spark.wait(240) == 0, spark.output
            ground.send(30)
            ground.wait_applied(120, service)
            assert "truncation" not in service.output
    found = ground.compare()
    assert (found.expected, found.is_clean) == (120, True), found


def test_markers_of_a_new_leader_behind_messages_of_the_old_one(
    inbox_ground: Ground, cluster: LocalCluster, admin: AdminClient
) -> None:
    ground = inbox_ground
    settings = {"bootstrap.servers": ground.servers, "transactional.id": str(new_id()), "log_level": 0}
    producer = Producer(settings)
    producer.init_transactions(30)
    producer.begin_transaction()
    _produce(producer, ground, 30)
    producer.flush(30)
    _new_leaders(cluster, admin, ground.topic)
    producer.commit_transaction(60)
    wait_for_markers(ground.servers, ground.topic)
    with ground.inbox() as service:
        ground.wait_applied(30, service)
        at_the_end = ends(ground.servers, ground.topic, 3)
        wait_for(lambda: ground.positions() == at_the_end, what="the markers are passed")
        service.terminate()
        assert service.wait() == 0, service.output
    ground.send(30)
    # By fixed partitions: what Kafka's client is given so is looked at before it is read.
    said = ground.apply_all(60, assign=[[ground.topic, partition] for partition in range(3)])
    assert "truncation" not in said
    found = ground.compare()
    assert (found.expected, found.is_clean) == (60, True), found


def _produce(producer: Producer, ground: Ground, count: int) -> None:
    for _ in range(count):
        ground.sent += 1
        account = f"account-{ground.sent % 12}"
        value = json.dumps({"n": ground.sent, "account": account, "amount": 5}).encode()
        producer.produce(ground.topic, value, account.encode(), headers=list[Any](headers(str(new_id()))))
        producer.poll(0)


def _new_leaders(cluster: LocalCluster, admin: AdminClient, topic: str) -> None:
    """Each partition has another leader than before, and so a higher epoch."""
    for leader in sorted({leader_of(admin, topic, partition) for partition in range(3)}):
        cluster.broker(leader).kill()
        try:
            wait_for(partial(_led_by_others, admin, topic, leader), what="the others lead")
        finally:
            cluster.broker(leader).start()
        wait_for_leaders(admin, topic, 3)


def _led_by_others(admin: AdminClient, topic: str, broker: int) -> bool:
    return all(leader_of(admin, topic, partition) != broker for partition in range(3))
