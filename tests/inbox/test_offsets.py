"""What is asked of Kafka beside reading is answered also when the broker that was asked so far is gone."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import confluent_kafka
import pytest

from tallymark.broker import consumer, offsets
from tallymark.broker.consumer import KafkaLog
from tallymark.broker.kafka import AdminClient, Consumer, KafkaError, Message, Producer
from tallymark.broker.look import Look
from tallymark.broker.offsets import bounds, partitions, topic_ids
from tallymark.cli.inboxupkeep import log_starts
from tallymark.inbox.identity import named_id
from tallymark.inbox.ports import Instance, Place, Received, Wanted
from tallymark.inbox.screening import Screen
from tallymark.local.cluster import LocalCluster
from tallymark.store.postgres.inboxoperators import InboxOperators
from tallymark.store.postgres.inboxretention import InboxRetention
from tallymark.store.postgres.inboxstore import PostgresInboxStore
from tests.conftest import MakeTopic
from tests.inbox.ground import Ground
from tests.leaders import leader_of
from tests.waiting import wait_for


def send_with_header(servers: str, topic: str, name: bytes, value: bytes = b"v") -> None:
    """By the library beneath the client, which takes any bytes for a name; the client itself takes text."""
    (path,) = Path(confluent_kafka.__file__).parent.with_suffix(".libs").glob("librdkafka*")
    library = ctypes.CDLL(str(path))
    library.rd_kafka_conf_new.restype = library.rd_kafka_new.restype = ctypes.c_void_p
    said = ctypes.create_string_buffer(500)
    settings = ctypes.c_void_p(library.rd_kafka_conf_new())
    library.rd_kafka_conf_set(settings, b"bootstrap.servers", servers.encode(), said, 500)
    producer = ctypes.c_void_p(library.rd_kafka_new(0, settings, said, 500))
    one, size = ctypes.c_size_t(1), ctypes.c_size_t(len(value))
    # Topic, value, a flag that copies it, a header; 0 ends the list.
    library.rd_kafka_producev(
        *(producer, 1, ctypes.c_char_p(topic.encode()), 4, ctypes.c_char_p(value), size, 7, 2),
        *(9, ctypes.c_char_p(name), ctypes.c_char_p(b"x"), one, 0),
    )
    assert library.rd_kafka_flush(producer, 30_000) == 0
    library.rd_kafka_destroy(producer)


class Beginning:
    """Every partition from its beginning."""

    def given(self, places: Sequence[Place]) -> Mapping[Place, tuple[int, int | None]]:
        return dict.fromkeys(places, (0, None))

    def revoked(self, places: Sequence[Place]) -> None: ...

    def lost(self, places: Sequence[Place]) -> None: ...


@pytest.mark.full
def test_the_broker_that_the_client_takes_for_the_controller_dies(cluster: LocalCluster, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
    before = wait_for(lambda: topic_ids(admin, [topic]), what="every broker knows the topic")
    controller = admin.list_topics(topic, timeout=30).controller_id
    cluster.broker(controller).kill()
    try:
        assert topic_ids(admin, [topic]) == before
        assert len(partitions(admin, [topic])) == 3
        places = [(topic, partition) for partition in range(3)]
        wait_for(lambda: len(bounds(admin, places)) == 3, what="every partition has a leader again")
    finally:
        cluster.broker(controller).start()


@pytest.mark.full
def test_a_partition_that_had_no_leader_has_one_again(cluster: LocalCluster, make_topic: MakeTopic) -> None:
    """The client remembers that there was none, and asks nobody by itself: all partitions asked about, or one of them."""
    narrow, wide = (make_topic(each, replication_factor=1, min_insync_replicas="1") for each in (1, 3))
    admin, other = (
        AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0}) for _ in range(2)
    )
    leader = leader_of(admin, narrow)

    def found(client: AdminClient) -> tuple[int, int]:
        return len(bounds(client, [(wide, each) for each in range(3)])), len(bounds(client, [(narrow, 0)]))

    cluster.broker(leader).kill()
    try:
        wait_for(lambda: found(admin) == (2, 0), what="the client knows that the leader is gone")
    finally:
        cluster.broker(leader).start()
    wait_for(lambda: found(other) == (3, 1), what="another client finds the leader again")
    # At once, and not waited for: a client that happens to reconnect learns of it by itself after a while.
    assert found(admin) == (3, 1)


@pytest.mark.full
def test_a_leader_that_says_nothing_has_no_offsets(
    cluster: LocalCluster, make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client gives no error there but offset -1001: positions would be founded on it, and seem to be past the end."""
    topic = make_topic(3, replication_factor=1, min_insync_replicas="1")
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
    places = [(topic, partition) for partition in range(3)]
    assert bounds(admin, places) == dict.fromkeys(places, (0, 0))
    leader = cluster.broker(leader_of(admin, topic))
    leader.pause()
    try:
        monkeypatch.setattr(offsets, "_WAIT_S", 3.0)
        assert bounds(admin, places) == dict.fromkeys(places[1:], (0, 0))
    finally:
        leader.resume()
    wait_for(lambda: len(bounds(admin, places)) == 3, what="it is asked again")


def test_what_kafka_refused_to_note_is_asked_for_again(bootstrap_servers: str, topic: str) -> None:
    """Nobody waits for these commits, and no later message may come: lag tools would be wrong for ever."""
    client = {"bootstrap.servers": bootstrap_servers}
    place = (topic, 0)
    # While a group has members, Kafka takes no offsets from anybody else.
    member = Consumer({**client, "group.id": f"group-{topic}", "log_level": 0})
    member.subscribe([topic])
    wait_for(lambda: member.poll(0.1) or member.assignment(), what="the group has a member")
    follower = KafkaLog(client, group=f"group-{topic}")
    follower.assign([place], Beginning())
    follower.commit({place: 0}, wait=False)
    # Answers come in order: when this one is there, the other is too.
    follower.commit({(topic, 1): 0}, wait=True)
    assert follower.committed([place]) == {place: None}
    member.close()

    def noted() -> bool:
        follower.poll(1, 0.1)
        follower.commit({}, wait=False)
        return follower.committed([place]) == {place: 0}

    wait_for(noted, what="Kafka has it after all")
    follower.close()


def test_a_topic_that_was_deleted_holds_nothing_back(inbox_ground: Ground, admin: AdminClient) -> None:
    """P7: what was read of it cannot come again, and retention goes on, also where nobody reads the topic any more."""
    store = PostgresInboxStore(inbox_ground.url, inbox_ground.name)
    store.enlist(Instance("me", inbox_ground.name, (inbox_ground.topic,), "inline", "1", "host", 1), 60)
    store.found_topic([Wanted("deleted-long-ago", 0, "id", 7)])
    store.close()
    inbox_ground.send(5)
    starts = log_starts(admin, *InboxRetention(inbox_ground.url).read())
    assert starts == {(inbox_ground.topic, n): 0 for n in range(3)} | {("deleted-long-ago", 0): 2**63 - 1}


def test_a_consumer_that_was_retired_holds_nothing_back(inbox_ground: Ground, admin: AdminClient) -> None:
    """P7: its messages lie among those of the others, and Kafka is asked about its topics as before."""
    ground, here = inbox_ground, {(inbox_ground.topic, n): 0 for n in range(3)}
    store = PostgresInboxStore(ground.url, ground.name)
    store.enlist(Instance("me", ground.name, (ground.topic,), "inline", "1", "host", 1), 60)
    store.found_topic([Wanted(*place, "id", 0) for place in here])
    store.leave("me")
    store.close()
    operators = InboxOperators(ground.url)
    assert operators.retire(ground.name, who="me", reason="it was replaced")
    assert log_starts(admin, *InboxRetention(ground.url).read()) == here
    # And in a topic alone, which it reads no more.
    ground.query("update tallymark.consumers set retired_at = null, topics = '{another}' returning 1")
    assert operators.retire_topic(ground.name, ground.topic, who="me", reason="it reads another")
    assert log_starts(admin, *InboxRetention(ground.url).read()) == here


def test_headers_that_cannot_be_read_stop_neither_process_nor_partition(
    cluster: LocalCluster, make_topic: MakeTopic
) -> None:
    """C9: a name that is not UTF-8 made the client raise, or ended every process that came to it.

    With messages enough before it that the interpreter takes its shortcuts: those notice no error beside a result.
    """
    topic = make_topic(1)
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
    for _ in range(300):
        producer.produce(topic, b"v", headers=[("good", b"x")])
    assert producer.flush(30) == 0
    for name in (b"good", b"\xff\xfe", b"good"):
        send_with_header(cluster.bootstrap_servers, topic, name)
    log = KafkaLog({"bootstrap.servers": cluster.bootstrap_servers}, group=f"group-{topic}")
    seen: list[Received] = []
    unreadable: dict[Place, tuple[int, str]] = {}

    def look() -> bool:
        polled = log.poll(100, 0.2)
        seen.extend(polled.messages)
        unreadable.update(polled.unreadable)
        return len(seen) == 303

    try:
        log.assign([(topic, 0)], Beginning())
        wait_for(look, what="all is read")
    finally:
        log.close()
    assert [each.offset for each in seen] == [*range(303)]
    assert unreadable == {}
    now = datetime.now(UTC)
    good, odd = Screen(lambda _topic: False, now, now).sort(seen)
    assert [each.offset for each in good] == [*range(301), 302]
    ((apart, reason),) = odd
    assert (apart.offset, apart.value, apart.headers) == (301, b"v", "{}")
    assert apart.id == named_id(str(apart.named).encode()), "as one is known that brings no id"
    assert "not UTF-8" in reason


def test_a_log_that_was_cut_back_is_looked_into(topic: str) -> None:
    """Pitfall 14: a position is read on with its leader's epoch, and what Kafka says of it then is not passed over."""
    at = consumer._start((topic, 0), (7, 3))
    assert (at.offset, at.leader_epoch) == (7, 3)
    said = Message(
        topic=topic, partition=0, offset=7, error=KafkaError(KafkaError._LOG_TRUNCATION, "cut back")
    )
    look = Look()
    look.add([said])
    assert look.polled().lost == {(topic, 0): "cut back"}
