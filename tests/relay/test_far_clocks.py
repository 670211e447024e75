"""A database whose clock is far from the brokers': what they refuse for it, they refuse for all of a batch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tallymark.broker.kafka import AdminClient
from tallymark.lifecycle import Mode
from tests.children import Child
from tests.relay.ground import Ground
from tests.relay.toolarge import change, parked
from tests.waiting import wait_for

# Not 0: brokers then refuse even the markers of transactions.
OLDEST_MS = 4000


def refuse_old(admin: AdminClient, topic: str) -> None:
    change(admin, topic, "message.timestamp.before.max.ms", str(OLDEST_MS))


@contextmanager
def held_too_long(ground: Ground, mode: Mode) -> Iterator[Child]:
    """A relay whose batch has an older time by now than is taken."""
    ground.add(60)
    with ground.relay(
        batch_messages=100, mode=str(mode), crash_point="relay.after_claim:1:stop", lease_seconds=60
    ) as relay:
        relay.wait_stopped()
        old = (
            "select clock_timestamp() - max(claimed_at) > interval '1 ms' * %s from tallymark.batches"
            " where state = 'sending'"
        )
        wait_for(lambda: ground.value(old, OLDEST_MS + 500), what="the batch is too old for the topic")
        relay.cont()
        yield relay
        relay.terminate()
        assert relay.wait() == 0, relay.output


@pytest.fixture
def begun(ground: Ground) -> Ground:
    """A lane that has its first receipt."""
    ground.add(1)
    ground.send_all()
    return ground


def test_receipts_have_the_brokers_own_time(begun: Ground, admin: AdminClient) -> None:
    """Else a lane whose receipt is refused could do nothing at all."""
    refuse_old(admin, begun.receipts)
    with held_too_long(begun, Mode.TRANSACTIONAL) as relay:
        begun.wait_sent()
        assert "tries again" not in relay.output
    assert begun.compare().is_clean


@pytest.mark.parametrize(
    "mode",
    [
        Mode.TRANSACTIONAL,
        *(pytest.param(mode, marks=pytest.mark.full) for mode in (Mode.CALLBACK, Mode.SYNC)),
    ],
)
def test_messages_wait_until_their_time_is_taken(begun: Ground, admin: AdminClient, mode: Mode) -> None:
    """No message is at fault, though Kafka calls each of them invalid. Each try has the time of its own."""
    refuse_old(admin, begun.topic)
    with held_too_long(begun, mode) as relay:
        relay.wait_output("the database's clock is too far from the brokers'")
        begun.wait_sent()
        assert parked(begun) == {}
    assert begun.compare().is_clean
