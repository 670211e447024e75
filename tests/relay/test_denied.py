"""Rights that Kafka denies: said in one line with what to grant; nothing is sent, nothing is lost."""

from __future__ import annotations

from pathlib import Path

from confluent_kafka.admin import AclOperation, ResourceType

from tallymark.broker.kafka import NewTopic
from tests import journal
from tests.children import Child, start_child
from tests.relay.conftest import MakeGround
from tests.relay.ground import Ground
from tests.secured import PASSWORD, Secured
from tests.waiting import wait_for


def run_relay(ground: Ground, secured: Secured, folder: Path) -> Child:
    """A relay at the secured broker, which has no second one to copy to."""
    secured.configure(folder)
    risks = ("--accept-risk", "replication.factor", "--accept-risk", "min.insync.replicas")
    return start_child(
        ["-m", "tallymark", "relay", "run", "--database", ground.url, *risks],
        environment={"TALLYMARK_RELAY__LEASE_SECONDS": "1"},
        cwd=folder,
    )


def test_no_right_to_the_transactional_id(ground: Ground, secured: Secured, tmp_path: Path) -> None:
    secured.admin.create_topics([NewTopic(ground.topic, 3, 1)])[ground.topic].result(30)
    ground.add(30)
    with secured.denied(ResourceType.TRANSACTIONAL_ID, f"tallymark.{ground.outbox_id}"):
        with run_relay(ground, secured, tmp_path) as relay:
            assert relay.wait() == 3, relay.output
            assert "Kafka denies the right to this outbox's transactional ids" in relay.output
            assert "grant Write and Describe on TransactionalId" in relay.output
            assert "Traceback" not in relay.output
            assert PASSWORD not in relay.output
        assert ground.query("select 1 from tallymark.batches") == []
        assert ground.query("select 1 from tallymark.parked") == []
    with run_relay(ground, secured, tmp_path) as relay:
        ground.wait_sent()
        # Taken away under a running relay: it waits, and says for what.
        with secured.denied(ResourceType.TRANSACTIONAL_ID, f"tallymark.{ground.outbox_id}"):
            ground.add(30)
            relay.wait_output("grant Write and Describe on TransactionalId")
            assert relay.is_alive(), relay.output
            assert ground.query("select 1 from tallymark.parked") == []
        wait_for(lambda: journal.all_sent(ground.url), what="everything is sent once the right is back")
        relay.terminate()
        assert relay.wait() == 0, relay.output
    records = journal.log_records(secured.plain, [ground.topic])
    found = journal.compare(journal.outbox_entries(ground.url), records)
    assert found.expected == 60
    assert found.is_clean, found


def test_no_right_to_write_receipts(ground: Ground, secured: Secured, tmp_path: Path) -> None:
    """Named at start, and where it is taken away under a running relay: no message is at fault."""
    secured.admin.create_topics([NewTopic(ground.topic, 3, 1)])[ground.topic].result(30)
    but_write = (AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS, AclOperation.READ)
    with run_relay(ground, secured, tmp_path) as relay:
        ground.add(30)
        ground.wait_sent()
        with secured.denied(ResourceType.TOPIC, ground.receipts, *but_write):
            ground.add(30)
            relay.wait_output(f"receipt cannot be written into topic {ground.receipts}")
            assert "grant Write on it" in relay.output
            assert ground.query("select 1 from tallymark.parked") == []
            with run_relay(ground, secured, tmp_path) as refused:
                assert refused.wait() == 3, refused.output
                assert (
                    f"denies the right to write into the receipts topic {ground.receipts}" in refused.output
                )
                assert "grant Write and Describe on topic" in refused.output
                assert "Traceback" not in refused.output
        wait_for(lambda: journal.all_sent(ground.url), what="everything is sent once the right is back")
        relay.terminate()
        assert relay.wait() == 0, relay.output
    records = journal.log_records(secured.plain, [ground.topic])
    found = journal.compare(journal.outbox_entries(ground.url), records)
    assert found.expected == 60
    assert found.is_clean, found


def test_the_rights_that_are_documented_suffice(ground: Ground, secured: Secured, tmp_path: Path) -> None:
    """docs/relay.md, 'Rights in Kafka': a new outbox, and a relay that takes over."""
    secured.admin.create_topics([NewTopic(ground.topic, 3, 1)])[ground.topic].result(30)
    look = (AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS)
    with (
        secured.denied(ResourceType.TOPIC, ground.topic, *look, AclOperation.WRITE),
        secured.denied(
            ResourceType.TOPIC,
            ground.receipts,
            *(*look, AclOperation.READ, AclOperation.WRITE, AclOperation.CREATE, AclOperation.ALTER),
        ),
        secured.denied(
            ResourceType.TRANSACTIONAL_ID,
            f"tallymark.{ground.outbox_id}",
            *(AclOperation.DESCRIBE, AclOperation.WRITE),
        ),
        secured.denied(ResourceType.GROUP, "tallymark-reader", AclOperation.DESCRIBE),
    ):
        for _ in range(2):
            with run_relay(ground, secured, tmp_path) as relay:
                ground.add(10)
                ground.wait_sent()
                relay.terminate()
                assert relay.wait() == 0, relay.output
                assert "WARNING" not in relay.output


def test_no_right_to_write_holds_the_topic_and_the_others_go_on(
    make_ground: MakeGround, secured: Secured, tmp_path: Path
) -> None:
    """It may be described all the same: in a transaction nothing but this look would tell which topic it is."""
    ground = make_ground(topics=2)
    made = secured.admin.create_topics([NewTopic(topic, 3, 1) for topic in ground.topics])
    for future in made.values():
        future.result(30)
    denied, other = ground.topics
    with run_relay(ground, secured, tmp_path) as relay:
        with secured.denied(ResourceType.TOPIC, denied, AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS):
            ground.add(10, topic=denied)
            ground.add(10, topic=other)
            wait_for(
                lambda: ground.query("select topic from tallymark.topic_holds") == [(denied,)],
                what="the topic is held",
            )
            wait_for(
                lambda: len(journal.log_records(secured.plain, [other])) == 10, what="the other one is sent"
            )
            relay.wait_output("grant Write on it")
        wait_for(
            lambda: ground.query("select 1 from tallymark.topic_holds") == [], what="the topic has caught up"
        )
        ground.wait_sent()
    records = journal.log_records(secured.plain, ground.topics)
    found = journal.compare(journal.outbox_entries(ground.url), records)
    assert found.expected == 20
    assert found.is_clean, found
