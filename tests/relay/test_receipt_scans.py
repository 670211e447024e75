"""The way to the last receipt may be long: it is gone to its end, and left only where nothing comes or we are to stop."""

from __future__ import annotations

import time

import pytest

from tallymark.broker import receipts
from tallymark.broker.kafka import AdminClient, ConfigResource, NewTopic, Producer, ResourceType
from tallymark.broker.patience import Patience
from tallymark.errors import Inconsistent, OutcomeUnknown
from tallymark.lifecycle import BatchKind, Mode
from tallymark.relay.ports import Batch, Identity, Receipt
from tests.relay.ground import Ground, until_idle
from tests.waiting import wait_for

# One receipt at a time, and a pause behind each.
SLOW = {"queued.min.messages": "1", "fetch.message.max.bytes": "1", "fetch.queue.backoff.ms": "150"}
MANY = 20


def last(ground: Ground, patience: Patience, **client: str) -> Receipt | None:
    settings = {"bootstrap.servers": ground.servers, **client}
    return receipts.last(settings, ground.store().identity(), 0, "tallymark.", None, patience)


def write(ground: Ground, number: int, *, outbox: str | None = None) -> None:
    """A receipt in a record batch of its own."""
    identity = Identity(outbox or ground.outbox_id, 1, None)
    batch = Batch(0, number, f"token {number}", BatchKind.RANGE, 0, 0, 0, Mode.TRANSACTIONAL, 0)
    producer = Producer({"bootstrap.servers": ground.servers, "log_level": 0})
    producer.produce(
        ground.receipts, receipts.written(identity, batch), receipts.key_of(identity, 0), partition=0
    )
    assert producer.flush(20) == 0


@pytest.fixture
def with_many(ground: Ground) -> Ground:
    with ground.worker() as worker:
        until_idle(worker)
    for number in range(1, MANY + 1):
        write(ground, number)
    return ground


def test_a_long_way_is_gone_to_its_end(with_many: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long it takes in all: unknown for ever, it would hide that this is a restored database."""
    monkeypatch.setattr(receipts, "_WAIT_S", 1.5)
    began = time.monotonic()
    found = last(with_many, Patience(60), **SLOW)
    assert found is not None
    assert (found.number, found.token) == (MANY, f"token {MANY}")
    assert time.monotonic() - began > 1.5, "it was not slow enough to show anything"


def test_what_does_not_belong_there_is_found_wherever_it_stands(with_many: Ground) -> None:
    write(with_many, 0, outbox="another")
    write(with_many, MANY + 1)
    with pytest.raises(Inconsistent, match="of outbox another"):
        last(with_many, Patience(60))


def test_who_is_to_stop_does_not_go_on(with_many: Ground) -> None:
    patience = Patience(60)
    patience.hurry(0.0)
    with pytest.raises(OutcomeUnknown, match="could not be read to their end"):
        last(with_many, patience)


def test_its_topic_is_made_in_small_segments_and_one_that_is_not_is_used_all_the_same(
    ground: Ground, admin: AdminClient
) -> None:
    """What is still written to is not compacted: a gigabyte, or a week, of receipts by default."""
    kafka, identity = ground.kafka(), ground.store().identity()
    kafka.prepare_receipts(identity)
    resource = ConfigResource(ResourceType.TOPIC, ground.receipts)
    (settings,) = admin.describe_configs([resource]).values()
    assert settings.result(20)["segment.bytes"].value == str(16 * 2**20)
    admin.delete_topics([ground.receipts])[ground.receipts].result(30)
    config = {"min.insync.replicas": "2", "cleanup.policy": "compact", "segment.bytes": str(2**30)}
    made = NewTopic(ground.receipts, 1, 3, config=config)
    wait_for(
        lambda: admin.create_topics([made])[ground.receipts].exception(30) is None, what="it is made anew"
    )
    wait_for(lambda: ground.receipts in admin.list_topics(timeout=30).topics, what="it is seen")
    assert kafka.prepare_receipts(identity)
