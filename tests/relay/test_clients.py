"""What the client library itself bounds or refuses: no lane stands still for it, and nobody has to read a traceback."""

from __future__ import annotations

import dataclasses
import sys
import threading
import time
import uuid
from pathlib import Path

import pytest

from tallymark.broker import fencing
from tallymark.broker.cluster import KafkaCluster
from tallymark.broker.kafka import AdminClient
from tallymark.broker.producers import LaneProducers, PublisherSettings
from tallymark.broker.publisher import KafkaPublisher
from tallymark.broker.remembered import Placing
from tallymark.errors import OutcomeUnknown, SettingsError
from tallymark.lifecycle import BatchKind, Mode
from tallymark.policy import ModePolicy
from tallymark.relay.ports import Batch, Identity, Row, TopicRecord
from tests.children import start_child
from tests.relay.ground import QUICK, Ground, until_idle
from tests.relay.toolarge import set_limit
from tests.waiting import wait_for

NOBODY = "127.0.0.1:1"
LARGEST = 2**31 - 1
BATCH = Batch(0, 0, str(uuid.uuid4()), BatchKind.RANGE, 0, 100, 100, Mode.CALLBACK, 100)


def settings(mode: Mode = Mode.CALLBACK, *, within_s: float = 30.0, **client: str) -> PublisherSettings:
    """Of a lane whose Kafka is not there."""
    ours = {name.replace("_", "."): value for name, value in client.items()}
    return PublisherSettings(
        {"bootstrap.servers": NOBODY, **ours},
        Identity(str(uuid.uuid4()), 1, None),
        0,
        ModePolicy.of(mode),
        "tallymark.",
        within_s,
    )


def topic(limit: int = 1_048_588) -> TopicRecord:
    return TopicRecord("t", "", 1, limit)


def rows_of(count: int) -> list[Row]:
    return [(position, str(uuid.uuid4()), "t", b"k", b"v", "{}", None, 1) for position in range(count)]


@pytest.mark.parametrize("mode", Mode)
def test_a_topic_may_take_more_than_the_client_does(mode: Mode) -> None:
    producers = LaneProducers(settings(mode), [topic(LARGEST)])
    assert producers.fit(topic(LARGEST))
    assert producers.fit(topic(1_000_000_000))
    assert not LaneProducers(settings(mode), [topic()]).fit(topic(LARGEST))
    producers.close()


def test_what_a_topic_takes_finds_room_in_an_empty_queue() -> None:
    """More than a queue that is bounded by bytes may hold would wait for ever."""
    producers = LaneProducers(settings(), [topic(LARGEST)])
    producers.now.produce("t", bytes(300 * 1024 * 1024))
    producers.close()


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize(
    ("name", "value"), [("max.in.flight.requests.per.connection", "10"), ("retries", "0")]
)
def test_settings_that_a_producer_alone_refuses(mode: Mode, name: str, value: str) -> None:
    client = {"bootstrap.servers": NOBODY, name: value}
    identity = Identity(str(uuid.uuid4()), 1, None)
    with pytest.raises(SettingsError, match=r"\[kafka\] client: "):
        KafkaCluster(client).publisher(identity, 0, mode, [])
    with pytest.raises(SettingsError, match=r"\[kafka\] client: "):
        fencing.may_use_transactions(client, identity)


@pytest.mark.parametrize("mode", [Mode.TRANSACTIONAL, Mode.CALLBACK])
def test_they_are_named_at_start(ground: Ground, tmp_path: Path, mode: Mode) -> None:
    lines = ["[kafka]", f'bootstrap_servers = "{ground.servers}"', "[kafka.client]", '"retries" = "0"', ""]
    (tmp_path / "tallymark.toml").write_text("\n".join(lines))
    command = ["-m", "tallymark", "relay", "run", "--database", ground.url, "--mode", str(mode)]
    with start_child(command, cwd=tmp_path) as relay:
        assert relay.wait() == 2, relay.output
        assert "[kafka] client: `retries` must be set >= 1" in relay.output
        assert "Traceback" not in relay.output


def test_a_full_queue_is_waited_for_no_longer_than_any_answer() -> None:
    publisher = KafkaPublisher(settings(within_s=0.2, queue_buffering_max_messages="10"), [topic()])
    with pytest.raises(OutcomeUnknown, match="queue is full"):
        publisher.send(BATCH, rows_of(100))
    publisher.close()


def test_who_waits_for_a_full_queue_hears_that_it_is_to_hurry() -> None:
    publisher = KafkaPublisher(settings(within_s=600.0, queue_buffering_max_messages="10"), [topic()])
    raised: list[Exception] = []

    def send() -> None:
        try:
            publisher.send(BATCH, rows_of(100))
        except OutcomeUnknown as error:
            raised.append(error)

    sending = threading.Thread(target=send, daemon=True)
    sending.start()
    wait_for(lambda: len(publisher._producers.now) == 10, what="the queue is full")
    began = time.monotonic()
    publisher.hurry(0.0)
    sending.join(20)
    assert raised
    assert time.monotonic() - began < 20
    publisher.close()


@pytest.mark.parametrize("mode", Mode)
def test_batches_larger_than_the_queue_go_and_so_does_their_receipt(ground: Ground, mode: Mode) -> None:
    client = {"bootstrap.servers": ground.servers, "queue.buffering.max.messages": "50"}
    config = dataclasses.replace(QUICK, mode=mode, batch_messages=150)
    ground.add(50)  # with the receipt one too many
    with ground.worker(config, kafka=KafkaCluster(client)) as worker:
        until_idle(worker)
        ground.add(150)
        until_idle(worker)
    found = ground.compare()
    assert (found.expected, found.is_clean) == (200, True), found


def test_a_lane_with_such_a_topic_goes_on(ground: Ground, admin: AdminClient) -> None:
    set_limit(admin, ground.topic, LARGEST)
    ground.add(10)
    with ground.worker() as worker:
        until_idle(worker)
    assert ground.compare().is_clean


def test_long_keys_are_placed_and_let_go() -> None:
    key = b"k" * 20_000
    before = sys.getrefcount(key)
    assert Placing(7)[key] in range(7)
    assert sys.getrefcount(key) == before
