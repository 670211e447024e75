"""P1, P2, P3 when what the relay stands on goes away: connections, PostgreSQL, a leader, every broker.

The relay stays the same process throughout: it waits, comes back and settles what was in doubt.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import pytest

from tallymark.broker.kafka import AdminClient
from tallymark.local.cluster import LocalCluster
from tests.children import Child
from tests.leaders import leader_of
from tests.relay.ground import Ground
from tests.relay.toolarge import SMALL, add_large, parked, set_limit
from tests.waiting import wait_for

MESSAGES = 300


@contextmanager
def stopped_relay(ground: Ground, point: str) -> Iterator[Child]:
    """A relay that stands still in mid-batch; the test takes something away, then lets it go on."""
    ground.add(MESSAGES)
    with ground.relay(crash_point=f"{point}:3:stop", lease_seconds=5) as relay:
        relay.wait_stopped()
        yield relay
        relay.cont()
        ground.wait_sent(90)
        ground.add(50)  # and it is as good as new
        ground.wait_sent(90)
        relay.terminate()
        assert relay.wait() == 0, relay.output
    found = ground.compare()
    assert found.expected == MESSAGES + 50
    assert found.is_clean, found


@pytest.mark.parametrize(
    "point",
    [
        pytest.param("relay.after_claim", marks=pytest.mark.full),
        "relay.before_kafka_commit",
        pytest.param("relay.before_mark", marks=pytest.mark.full),
    ],
)
def test_its_connections_are_terminated_between_claim_and_mark(ground: Ground, point: str) -> None:
    with stopped_relay(ground, point):
        ended = ground.value(
            "select count(pg_terminate_backend(pid)) from pg_stat_activity"
            " where datname = current_database() and application_name like 'tallymark relay%%'"
            " and %s",
            True,
        )
        assert ended >= 3


@pytest.mark.parametrize(
    "point", ["relay.before_mark", pytest.param("relay.after_claim", marks=pytest.mark.full)]
)
def test_postgresql_is_killed_in_mid_batch(ground: Ground, cluster: LocalCluster, point: str) -> None:
    with stopped_relay(ground, point):
        cluster.postgres.kill()
        cluster.postgres.start()


def test_postgresql_is_away_for_longer_than_the_lease(ground: Ground, cluster: LocalCluster) -> None:
    """The relay runs while the database is away: it waits, loses its lane to nobody, and goes on."""
    ground.add(MESSAGES)
    with ground.relay(lease_seconds=1, batch_messages=10) as relay:
        wait_for(lambda: ground.value("select sum(sent) from tallymark.lanes") > 20, what="it is at work")
        cluster.postgres.kill()
        relay.wait_output("tries again in")
        cluster.postgres.start()
        ground.wait_sent(90)
        relay.terminate()
        assert relay.wait() == 0, relay.output
    found = ground.compare()
    assert found.is_clean, found


@pytest.mark.full
def test_it_ends_while_the_database_stands_still(ground: Ground, cluster: LocalCluster) -> None:
    """Whoever stops it waits for seconds. What was begun is in doubt, and a goodbye that is not heard loses nothing."""
    ground.add(2000)
    with ground.relay(batch_messages=10) as relay:
        wait_for(lambda: ground.value("select sum(sent) from tallymark.lanes") > 20, what="it is at work")
        cluster.postgres.pause()
        try:
            relay.terminate()
            assert relay.wait(40) == 0, relay.output
        finally:
            cluster.postgres.resume()
        assert "nobody hears our goodbye" in relay.output
        assert "Traceback" not in relay.output
    ground.send_all(within=120)
    assert ground.compare().is_clean


@pytest.mark.full
@pytest.mark.parametrize("point", ["relay.mid_produce", "relay.before_kafka_commit"])
def test_the_leader_is_killed(ground: Ground, cluster: LocalCluster, admin: AdminClient, point: str) -> None:
    leader = leader_of(admin, ground.topic)
    try:
        with stopped_relay(ground, point):
            cluster.broker(leader).kill()
    finally:
        cluster.broker(leader).start()


@pytest.mark.full
def test_every_broker_is_bounced(ground: Ground, cluster: LocalCluster) -> None:
    try:
        with stopped_relay(ground, "relay.before_kafka_commit"):
            for broker in cluster.brokers:
                broker.kill()
            cluster.up()
    finally:
        cluster.up()


@pytest.mark.full
def test_no_broker_for_long_costs_no_memory(ground: Ground, cluster: LocalCluster) -> None:
    """P7: the outbox grows while Kafka is away; the relay waits with what it had, and with nothing more."""
    ground.add(MESSAGES)
    with ground.relay(batch_messages=20_000) as relay:
        ground.wait_sent(90)
        process = psutil.Process(relay.pid)
        try:
            for broker in cluster.brokers:
                broker.kill()
            ground.add(20_000, size=1000)
            relay.wait_output("tries again in", within=120)
            before, tries = process.memory_info().rss, relay.output.count("tries again in")
            for _ in range(10):
                ground.add(20_000, size=1000)  # 200 MB in all
            wait_for(
                lambda: relay.output.count("tries again in") >= tries + 2, within=180, what="it tries again"
            )
            grown = process.memory_info().rss - before
            assert grown < 60_000_000, f"{grown / 1e6:.0f} MB for a backlog of 200 MB"
        finally:
            cluster.up()
        ground.wait_sent(180)
    found = ground.compare()
    assert found.expected == MESSAGES + 220_000
    assert found.is_clean, found


@pytest.mark.full
@pytest.mark.parametrize("point", ["relay.before_kafka_commit", "relay.before_claim"])
def test_it_leaves_in_seconds_though_no_broker_answers(
    ground: Ground, cluster: LocalCluster, point: str
) -> None:
    """In mid-commit, and while it waits to fence: what was begun is left in doubt, and the lane is given back."""
    ground.add(MESSAGES)
    with ground.relay(crash_point=f"{point}:3:stop", lease_seconds=60) as relay:
        relay.wait_stopped()
        try:
            for broker in cluster.brokers:
                broker.kill()
            relay.cont()
            if point == "relay.before_claim":
                relay.wait_output("tries again in", within=120)
            relay.terminate()
            assert relay.wait(15) == 0, relay.output
            assert ground.value("select count(*) from tallymark.lanes where owner is not null") == 0
        finally:
            cluster.up()
    ground.send_all(within=120)
    found = ground.compare()
    assert found.is_clean, found


@pytest.mark.full
@pytest.mark.parametrize("mode", ["transactional", "callback"])
def test_it_leaves_in_seconds_while_it_asks_which_message_was_refused(
    ground: Ground, cluster: LocalCluster, admin: AdminClient, mode: str
) -> None:
    """Kafka refused a batch, and is gone when it is asked once more for whose sake: nobody is parked on a guess."""
    set_limit(admin, ground.topic, SMALL)
    add_large(ground, "key-3")
    with ground.relay(crash_point="relay.mid_produce:2:stop", mode=mode) as relay:
        relay.wait_stopped()
        try:
            for broker in cluster.brokers:
                broker.kill()
            relay.cont()
            relay.terminate()
            assert relay.wait(15) == 0, relay.output
            assert parked(ground) == {}
        finally:
            cluster.up()
    with ground.relay(mode=mode):
        wait_for(lambda: parked(ground) == {"failed": 1}, within=90, what="the next one learns it")
    assert ground.log() == []
