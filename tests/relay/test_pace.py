"""A batch that takes longer to deliver than it is given: a slow link, a quota. It is given more, and lands (P1, P2)."""

from __future__ import annotations

import dataclasses

import pytest

from tallymark.broker.cluster import KafkaCluster
from tallymark.broker.patience import Pace
from tallymark.errors import Unreachable
from tallymark.lifecycle import Mode
from tests.conftest import MakeTopic
from tests.relay.ground import QUICK, Ground, idle_in_the_end, until_idle
from tests.relay.quotas import throttled
from tests.waiting import wait_for


# The ordinary run has the quickest of them: a transaction whose time grows to what it needs takes a minute.
@pytest.mark.parametrize(
    "mode",
    [
        pytest.param(Mode.TRANSACTIONAL, marks=pytest.mark.full),
        pytest.param(Mode.CALLBACK, marks=pytest.mark.full),
        Mode.SYNC,
    ],
)
def test_a_batch_that_needs_longer_than_it_is_given_lands_in_the_end(
    ground: Ground, make_topic: MakeTopic, mode: Mode
) -> None:
    """Seconds for what needs ten, and more where tries have used the quota up. Only its time can change."""
    # Brokers count over ten seconds: a megabyte goes at once, then a small record batch each half second.
    one_leader = make_topic(1, max_message_bytes="50000")
    ground.topics.append(one_leader)
    with throttled(ground.servers, 100_000) as slow:
        client = {"bootstrap.servers": ground.servers, "client.id": slow}
        kafka = KafkaCluster(client, transaction_timeout_s=2 if mode is Mode.TRANSACTIONAL else 6)
        with ground.worker(dataclasses.replace(QUICK, mode=mode, batch_messages=1000), kafka=kafka) as worker:
            wait_for(lambda: idle_in_the_end(worker), what="the lane is settled")
            ground.add(100, topic=one_leader, size=20_000)
            wait_for(lambda: idle_in_the_end(worker), within=120, what="the batch has landed")
    found = ground.compare()
    assert (found.expected, found.missing) == (100, frozenset())
    # Without transactions, slow is not away: it is waited for, not sent again.
    assert found.is_clean, found


def test_quick_batches_have_what_is_usual_again(ground: Ground) -> None:
    """What is left open by a relay that dies, and that no other follows, is in readers' way for that long."""
    kafka = ground.kafka()
    with ground.worker(kafka=kafka) as worker:
        until_idle(worker)
        kafka._paces[0].was_late(30.0)
        worker.reset()
        until_idle(worker)
        assert worker.dispatcher.publisher._settings.transaction_timeout_s == 60.0  # type: ignore[attr-defined]
        ground.add(10)
        until_idle(worker)
        ground.add(10)
        until_idle(worker)
        assert worker.dispatcher.publisher._settings.transaction_timeout_s == 30.0  # type: ignore[attr-defined]
    assert ground.compare().is_clean


def test_no_more_is_asked_for_than_the_brokers_grant(ground: Ground) -> None:
    """transaction.max.timeout.ms is 15 minutes unless set otherwise: beyond it no lane could begin."""
    kafka = ground.kafka()
    with ground.worker(kafka=kafka) as worker:
        kafka._paces[0] = pace = Pace(30.0, longest_s=1600.0)
        pace.was_late(800.0)
        with pytest.raises(Unreachable, match="could not be fenced"):
            worker.run_once()
        assert pace.seconds == 800.0
        worker.reset()
        ground.add(10)
        until_idle(worker)
    assert ground.compare().is_clean


def test_it_grows_up_to_a_bound_and_comes_back() -> None:
    pace, given = Pace(30.0), []
    for _ in range(7):
        pace.was_late(pace.seconds)
        given.append(pace.seconds)
    assert given == [60, 120, 240, 480, 900, 900, 900]
    pace.landed(400.0)
    assert pace.seconds == 900, "its batches still need it"
    pace.landed(2.0)
    assert pace.seconds == 30
    assert Pace(1200.0).seconds == 1200
