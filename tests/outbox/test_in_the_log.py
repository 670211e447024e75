"""What was added is what a consumer of Kafka reads: CloudEvents' own library is the judge of the headers."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import psycopg
from cloudevents.core.bindings.kafka import KafkaMessage, from_binary
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent

from tallymark import Draft, MessageState, Outbox
from tallymark.broker.cluster import KafkaCluster
from tallymark.broker.kafka import Consumer
from tallymark.relay.config import RelayConfig
from tallymark.relay.relay import Relay
from tallymark.store.postgres.relaystore import PostgresRelayStore
from tests.conftest import MakeTopic
from tests.waiting import wait_for

OUTBOX = Outbox("/bank")


@contextmanager
def relaying(url: str, bootstrap_servers: str) -> Iterator[None]:
    """A relay in a thread of this process, until the block ends."""
    kafka = KafkaCluster({"bootstrap.servers": bootstrap_servers})
    relay = Relay(
        lambda name: PostgresRelayStore(url, application=f"relay {name}"), kafka, RelayConfig(lease_s=5)
    )
    stop = threading.Event()
    thread = threading.Thread(target=relay.run, args=(stop,))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(60)
        assert not thread.is_alive()


def consumed(bootstrap_servers: str, topic: str, count: int) -> list[Any]:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": f"reader-{topic}",
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "log_level": 0,
        }
    )
    consumer.subscribe([topic])
    found: list[Any] = []

    def read() -> list[Any]:
        found.extend(consumer.consume(count, 0.5))
        return found

    try:
        wait_for(lambda: len(read()) >= count, what=f"{count} messages in {topic}")
    finally:
        consumer.close()
    assert not [message.error() for message in found if message.error()]
    return found


def test_a_message_is_a_cloud_event_in_the_log(
    bank: str, bootstrap_servers: str, make_topic: MakeTopic
) -> None:
    topic = make_topic(1)
    with psycopg.connect(bank) as tx:
        id_ = OUTBOX.add(
            tx, topic, {"amount": 5}, key="alice", type="transfer.made", headers={"ce_subject": "alice"}
        )
        raw = OUTBOX.add(tx, topic, b"\x00\x01", key=b"\xff", headers={"binary": b"\xfe\xff", "empty": ""})
        tomb = OUTBOX.add(tx, topic, None, key="alice")
        later = OUTBOX.add(tx, topic, "later", key="alice", deliver_after=timedelta(milliseconds=50))
        assert OUTBOX.state(tx, id_) is MessageState.PENDING
    with relaying(bank, bootstrap_servers):
        with psycopg.connect(bank, autocommit=True) as tx:
            wait_for(lambda: OUTBOX.state(tx, later) is MessageState.SENT, what="all are sent")
            assert [OUTBOX.state(tx, each) for each in (id_, raw, tomb)] == [MessageState.SENT] * 3
        messages = consumed(bootstrap_servers, topic, 4)
    first, second, third, fourth = messages
    event = from_binary(
        KafkaMessage(headers=dict(first.headers()), key=first.key(), value=first.value()),
        JSONFormat(),
        CloudEvent,
    )
    assert event.get_id() == str(id_)
    assert (event.get_source(), event.get_type(), event.get_specversion()) == (
        "/bank",
        "transfer.made",
        "1.0",
    )
    assert (event.get_subject(), event.get_datacontenttype()) == ("alice", "application/json")
    assert event.get_data() == {"amount": 5}
    assert json.loads(first.value()) == {"amount": 5}
    headers = dict(second.headers())
    assert (second.key(), second.value()) == (b"\xff", b"\x00\x01")
    assert (headers["binary"], headers["empty"], headers["ce_type"]) == (b"\xfe\xff", b"", topic.encode())
    assert (third.value(), dict(third.headers())["ce_id"]) == (None, str(tomb).encode())
    assert (fourth.value(), dict(fourth.headers())["ce_id"]) == (b"later", str(later).encode())
    positions = [int(dict(message.headers())["tm_position"]) for message in messages]
    assert positions == sorted(positions)


def test_an_explicit_partition_is_kept(bank: str, bootstrap_servers: str, make_topic: MakeTopic) -> None:
    topic = make_topic(3)
    with psycopg.connect(bank) as tx:
        OUTBOX.add_many(tx, [Draft(topic, n, key="alice", partition=n % 3) for n in range(6)])
    with relaying(bank, bootstrap_servers):
        found = {(json.loads(m.value()), m.partition()) for m in consumed(bootstrap_servers, topic, 6)}
    assert found == {(n, n % 3) for n in range(6)}
