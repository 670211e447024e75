"""What `tally verify` says of certificates after somebody has been at the stations, or at the chain: on real stations."""

from __future__ import annotations

from typing import Any

from confluent_kafka import TopicPartition

from tallymark.broker.kafka import AdminClient
from tallymark.broker.reach import admin_client
from tallymark.pipeline.reconcilesources import Sources
from tallymark.store.postgres.inboxoperators import InboxOperators
from tests.deleting import deleted
from tests.inbox.conftest import MakeInboxGround
from tests.tally.ground import Journey
from tests.tally.test_running import verified
from tests.tally.test_snapshots import live, tallied


def certified(spark: Any, journey: Journey) -> None:
    """Two windows, and a third one that is open."""
    journey.add([f"key-{n % 20}" for n in range(500)])
    journey.send()
    journey.receive()
    assert tallied(spark, live(journey), keep=True).certified == 2
    assert verified(spark, journey).holds


def test_certificates_outlive_the_consumer_and_its_successor_is_certified(
    spark: Any, journey: Journey, make_inbox_ground: MakeInboxGround
) -> None:
    certified(spark, journey)
    InboxOperators(journey.ledger.url).retire(journey.ledger.name, who="ann", reason="moved")
    found = verified(spark, journey)
    assert (found.wrong, found.recomputed) == ([], 2)
    successor = Journey(journey.bank, make_inbox_ground(like=journey.ledger))
    successor.receive()
    client = {"bootstrap.servers": journey.bank.servers}
    databases = {"ledger": journey.ledger.url, "successor": successor.ledger.url}
    both = Sources({"bank": journey.bank.url}, databases, client, admin_client(client))
    first, second = (tallied(spark, both, keep=True) for _ in range(2))
    assert (first.found, first.windows, first.certified) == (0, 3, 2)
    assert (second.windows, second.certified) == (1, 0)
    # Nor is anybody told to name its database.
    assert not [each for each in (*first.remarks, *second.remarks) if "was not asked" in each]


def test_what_was_deleted_of_the_log_and_of_the_chain_is_named(
    spark: Any, journey: Journey, admin: AdminClient
) -> None:
    certified(spark, journey)
    partition, first = min((record.partition, record.offset) for record in journey.bank.log())
    deleted(admin, TopicPartition(journey.bank.topic, partition, first + 1))
    found = verified(spark, journey)
    assert [(each["window"], each["what"]) for each in found.wrong] == [
        ([0, 200], f"the log has dropped some of it before its time: {journey.bank.topic}/{partition}")
    ]
    assert found.past == 0
    chain_only = ("tally", "verify", "--chain-only", *journey.databases)
    assert journey.tallymark(*chain_only)[0] == 0
    for number in (2, 1):
        journey.on_bank("delete from tallymark.certificates where number = %s", number)
        code, said = journey.tallymark(*chain_only)
        assert (code, [each["certificate"] for each in said["wrong"]]) == (1, [2])
