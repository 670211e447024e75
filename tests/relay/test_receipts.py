"""Receipts (pitfalls 1 and 2): what cannot be known is unknown, what disagrees stops the lane as a finding."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from confluent_kafka import Producer
from psycopg.conninfo import make_conninfo

from tallymark.broker import receipts
from tallymark.broker.kafka import AdminClient, NewTopic
from tallymark.broker.patience import Patience
from tallymark.errors import Inconsistent, OutcomeUnknown
from tallymark.relay.ports import Receipt
from tests import journal
from tests.cli.conftest import Run
from tests.relay.conftest import MakeGround
from tests.relay.ground import Ground, until_idle
from tests.waiting import wait_for


def _open_transaction(ground: Ground, partition: int) -> Producer:
    """A transaction of somebody else, begun and left open, in a partition of the receipts."""
    producer = Producer(
        {
            "bootstrap.servers": ground.servers,
            "transactional.id": f"stranger-{ground.outbox_id}",
            "log_level": 0,
        }
    )
    producer.init_transactions(20)
    producer.begin_transaction()
    written: list[object] = []
    producer.produce(
        ground.receipts,
        b"not yours",
        b"a key, for the topic is compacted",
        partition,
        on_delivery=lambda error, _message: written.append(error),
    )
    assert producer.flush(20) == 0
    assert written == [None]
    return producer


def test_an_open_transaction_makes_the_last_receipt_unknown_never_not_sent(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ground.worker() as worker:
        ground.add(50)
        until_idle(worker)
        worker.reset()
        stranger = _open_transaction(ground, 0)
        ground.add(50)
        with monkeypatch.context() as impatient:
            impatient.setattr(receipts, "_WAIT_S", 3.0)
            with pytest.raises(OutcomeUnknown, match="could not be read to their end"):
                worker.run_once()
        worker.reset()
        assert len(ground.log()) == 50
        stranger.abort_transaction(20)
        until_idle(worker)
    assert ground.compare().is_clean


def test_another_lanes_open_transaction_hides_nothing(make_ground: MakeGround) -> None:
    """Each lane has a partition of its own: what another one left open is no concern of this one."""
    ground = make_ground(lanes=2)
    with ground.worker() as worker:
        ground.add(60)
        until_idle(worker)
        identity = ground.store().identity()
        stranger = _open_transaction(ground, 1 - worker.lane.lane)
        client = {"bootstrap.servers": ground.servers}
        last = receipts.last(client, identity, worker.lane.lane, "tallymark.", None, Patience(30.0))
        assert last is not None
        assert worker.lane.receipt is not None
        assert (last.number, last.token) == (worker.lane.receipt.number, worker.lane.receipt.token)
        stranger.abort_transaction(20)
    rows = ground.query("select distinct lane from tallymark.batches")
    assert rows == [(worker.lane.lane,)]


def test_a_receipt_of_another_outbox_among_ours_is_a_finding(ground: Ground) -> None:
    with ground.worker() as worker:
        until_idle(worker)
        worker.reset()
        producer = Producer({"bootstrap.servers": ground.servers, "log_level": 0})
        text = b'{"format": 1, "outbox": "another", "lane": 0, "number": 0, "token": "x"}'
        producer.produce(ground.receipts, text, b"another/0", partition=0)
        assert producer.flush(20) == 0
        with pytest.raises(Inconsistent, match="of outbox another"):
            worker.run_once()


def test_a_scan_starts_at_the_receipt_that_was_marked(ground: Ground) -> None:
    with ground.worker() as worker:
        for _ in range(3):
            ground.add(10)
            until_idle(worker)
        marked = worker.lane.receipt
    assert isinstance(marked, Receipt)
    assert marked.offset == ground.value("select receipt_offset from tallymark.lanes") > 0


def test_a_token_that_does_not_match_stops_the_lane(ground: Ground) -> None:
    with ground.worker() as worker:
        ground.add(10)
        until_idle(worker)
    ground.query("update tallymark.lanes set owner = null, receipt_token = gen_random_uuid()")
    with ground.worker() as worker, pytest.raises(Inconsistent, match="the database expects batch 1"):
        worker.run_once()


@pytest.fixture
def restored(ground: Ground) -> Iterator[Ground]:
    """The outbox as it was after 50 messages, while Kafka has 100: a restored backup."""
    name = f"restored_{ground.outbox_id.replace('-', '')[:12]}"
    server = make_conninfo(ground.url, dbname="postgres")
    ground.add(50)
    ground.send_all()
    with psycopg.connect(server, autocommit=True) as connection:
        original = psycopg.conninfo.conninfo_to_dict(ground.url)["dbname"]
        connection.execute(f'create database {name} template "{original}"'.encode())
        ground.add(50)
        ground.send_all()
        yield Ground(make_conninfo(ground.url, dbname=name), ground.servers, ground.outbox_id, ground.topics)
        connection.execute(f"drop database {name} with (force)".encode())


def test_a_restored_database_is_noticed_shown_and_goes_on_when_told(restored: Ground, run: Run) -> None:
    restored.add(30)
    before = len(restored.log())
    with restored.relay() as relay:
        relay.wait_output("lane 0 stops")
        wait_for(
            lambda: restored.value("select halted is not null from tallymark.lanes"),
            what="the lane is halted",
        )
    assert len(restored.log()) == before == 100, "it went on as if nothing had happened"
    shown = run("relay", "status", "--database", restored.url)
    assert shown.code == 0
    assert "lane 0 is halted: the receipts say batch" in " ".join(shown.out.split())
    told = run("relay", "status", "--json", "--database", restored.url).json
    assert "the database expects batch" in told["lanes"][0]["halted"]
    with restored.relay() as relay:  # another one does not touch it either
        wait_for(lambda: restored.value("select count(*) from tallymark.relays") >= 1, what="it has joined")
        assert restored.value("select owner is null from tallymark.lanes")
    # Only a person may say that it goes on, from the last receipt in the log.
    clear = ("relay", "clear", "0", "--forget-receipts", "--reason", "compared", "--database", restored.url)
    cleared = run(*clear)
    assert cleared.code == 0, cleared.err
    assert restored.value("select reason from tallymark.audit where action = 'relay.clear'") == "compared"
    restored.send_all()
    restored.add(30)  # its chain holds: the next relay finds its own receipt
    restored.send_all()
    strangers = restored.compare().strangers
    assert len(strangers) == 50, "what was sent after the backup"
    records = [record for record in restored.log() if record.id not in strangers]
    found = journal.compare(journal.outbox_entries(restored.url), records)
    assert found.expected == 110
    assert found.is_clean, found


def test_a_receipts_topic_that_is_gone_or_recreated_is_noticed_and_can_be_given_up(
    ground: Ground, admin: AdminClient, run: Run
) -> None:
    ground.add(10)
    ground.send_all()
    admin.delete_topics([ground.receipts])[ground.receipts].result(30)
    wait_for(lambda: ground.receipts not in admin.list_topics(timeout=30).topics, what="the topic is deleted")
    ground.add(10)
    with ground.relay() as relay:
        assert relay.wait() == 1
        assert "is gone: what was sent can no longer be told" in relay.output
    config = {"min.insync.replicas": "2", "cleanup.policy": "compact"}
    admin.create_topics([NewTopic(ground.receipts, 1, 3, config=config)])[ground.receipts].result(30)
    wait_for(lambda: ground.receipts in admin.list_topics(timeout=30).topics, what="the topic is made anew")
    with ground.relay() as relay:
        assert relay.wait() == 1
        assert "was recreated" in relay.output
    assert len(ground.log()) == 10
    clear = ("relay", "clear", "0", "--reason", "deleted by mistake", "--database", ground.url)
    assert run(*clear).err.startswith("error: lane 0 is not halted")
    assert run(*clear, "--forget-receipts").code == 0
    ground.send_all()
    ground.add(10)  # its new chain holds: the next relay finds its own receipt
    ground.send_all()
    assert ground.compare().is_clean


def test_receipts_are_not_forgotten_under_a_relay(ground: Ground, run: Run) -> None:
    clear = ("relay", "clear", "0", "--reason", "in haste", "--forget-receipts", "--database", ground.url)
    with ground.worker() as worker:
        until_idle(worker)
        refused = run(*clear)
        assert refused.code == 2
        assert "a relay has lane 0" in refused.err
        worker.reset()
        until_idle(worker)


@pytest.mark.parametrize("value", [b"", b"[]", b"{}", b'{"format": 2}', b"\xff"])
def test_what_is_no_receipt_is_said_to_be_none(value: bytes) -> None:
    with pytest.raises(Inconsistent):
        receipts.read_back(value, 7)
