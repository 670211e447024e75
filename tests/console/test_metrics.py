"""The numbers of the whole system: right when things run, and right when a consumer is stopped."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import replace

import httpx
import psycopg
import pytest

from tallymark.broker.kafka import AdminClient
from tallymark.console.gauges import Gauges
from tallymark.console.lag import Lag
from tallymark.console.world import World
from tallymark.lifecycle import Role, TokenRole
from tallymark.observe.metric import Kind
from tallymark.observe.names import ALL
from tallymark.outbox.outbox import Outbox
from tallymark.store.postgres.inboxoperators import ConsumerStatus
from tallymark.store.postgres.migrations import migrate
from tallymark.store.postgres.writer import PostgresWriter
from tests.children import Child
from tests.console.ground import ROWS, SENDING, Service, serve
from tests.inbox.ground import TABLES
from tests.inbox.ground import Ground as InboxGround
from tests.relay.ground import Ground as RelayGround
from tests.waiting import wait_for


def numbers(service: Service) -> dict[str, float]:
    """Every series with its labels, as told now."""
    answer = service.get("/metrics")
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = [line.rpartition(" ") for line in answer.text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in lines}


def values(found: dict[str, float], name: str, label: str = "") -> list[float]:
    return [each for series, each in found.items() if re.match(rf"{name}(\{{|$)", series) and label in series]


def value(found: dict[str, float], name: str, label: str = "") -> float:
    matching = values(found, name, label)
    assert len(matching) == 1, (name, matching)
    return matching[0]


def test_a_consumer_whose_positions_are_elsewhere_has_no_lag_rather_than_none() -> None:
    world = World({})
    # With no partition to ask for, Kafka is not asked.
    gauges = Gauges(world, Lag({"bootstrap.servers": "nowhere:1"}))
    status = ConsumerStatus("ledger", ["t"], "inline", False, 3, 0, 0, 0, 0, 0, 0.0)
    gauges._consumers([("main", status), ("other", replace(status, queued=7))])
    told = world.metrics.render().decode()
    # Two of one name are told apart.
    assert 'tallymark_consumer_queued_messages{consumer="ledger",database="main"} 3' in told
    assert 'tallymark_consumer_queued_messages{consumer="ledger",database="other"} 7' in told
    assert "tallymark_consumer_lag_messages{" not in told
    assert "tallymark_consumer_lag_seconds{" not in told


def test_what_the_database_holds_is_told(looking: Service) -> None:
    found = numbers(looking)
    assert value(found, "tallymark_relay_backlog_messages") == ROWS - SENDING
    assert value(found, "tallymark_relay_parked_messages") == 1
    assert value(found, "tallymark_relay_delayed_messages") == 5
    assert value(found, "tallymark_relay_lanes_unowned") == 1
    assert value(found, "tallymark_relay_oldest_pending_seconds") > 60
    dead = looking.value("select count(*) from tallymark.dead_letters")
    assert value(found, "tallymark_consumer_dead_letters", 'consumer="ledger"') == dead
    assert value(found, "tallymark_consumer_processes", 'consumer="ledger"') == 0
    assert value(found, "tallymark_findings", 'verdict="late"') == 5
    assert value(found, "tallymark_database_up", 'database="main"') == 1
    assert value(found, "tallymark_pool_connections", 'database="main"') == 8
    assert not any(name.startswith("tallymark_kafka_up") for name in found if "{" in name)


def test_every_name_that_is_told_is_on_the_list(looking: Service) -> None:
    looking.get("/v1/outboxes")
    known = {
        metric.name.removesuffix("_total") if metric.kind is Kind.COUNTER else metric.name for metric in ALL
    }
    told = re.findall(r"^# TYPE (\S+) ", looking.get("/metrics").text, re.MULTILINE)
    ours = {
        name.removesuffix("_total").removesuffix("_created") for name in told if name.startswith("tallymark")
    }
    assert ours <= known
    assert {metric.name.removesuffix("_total") for metric in ALL} <= ours


def test_labels_are_bounded_whatever_is_asked(looking: Service) -> None:
    for number in range(30):
        looking.get(f"/v1/nonsense-{number}")
        looking.get(f"/v1/messages/{number}")
    routes = {series for series in numbers(looking) if series.startswith("tallymark_api_requests_total{")}
    assert len(routes) < 60
    assert not any("nonsense" in series for series in routes)


def scraped(child: Child) -> str:
    """What a process with --metrics-port tells of itself."""
    child.wait_output("serving metrics")
    found = re.search(r"address=(\S+)", child.output)
    assert found is not None
    return httpx.get(f"http://{found.group(1)}/metrics", timeout=30).text


def count(text: str, name: str) -> float:
    return sum(
        float(value) for value in re.findall(rf"^{name}_count(?:\{{.*\}})? (\S+)$", text, re.MULTILINE)
    )


def test_stations_tell_how_long_messages_took(
    database: str, make_database: Callable[[], str], bootstrap_servers: str, topic: str, admin: AdminClient
) -> None:
    url = make_database()
    made = migrate(url, role=Role.PRODUCER)
    assert made.outbox_id is not None
    bank = RelayGround(url, bootstrap_servers, made.outbox_id, [topic])
    migrate(database, role=Role.CONSUMER)
    with psycopg.connect(database) as connection:
        connection.execute(TABLES.encode())
    outbox = Outbox("/bank", writer=PostgresWriter())
    with psycopg.connect(url) as connection:
        for number in range(30):
            outbox.add(connection, topic, {"n": number, "account": "account-1", "amount": 1}, key="account-1")
    with bank.relay("--metrics-port", "0") as relay:
        bank.wait_sent()
        told = wait_for(lambda: count(scraped(relay), "tallymark_relay_added_to_log_seconds"))
        assert told >= 1
    admin.delete_topics([bank.receipts])[bank.receipts].exception(30)
    ledger = InboxGround(database, bootstrap_servers, topic)
    with ledger.inbox("--metrics-port", "0", mode="deferred") as inbox:
        ledger.wait_applied(30, inbox)
        wait_for(
            lambda: count(scraped(inbox), "tallymark_inbox_kept_to_applied_seconds"), what="kept to applied"
        )
        text = scraped(inbox)
        assert count(text, "tallymark_inbox_log_to_kept_seconds") >= 1
        assert count(text, "tallymark_inbox_added_to_applied_seconds") >= 1


def test_without_kafka_the_rest_is_told_in_time(own: Service, acting_database: str) -> None:
    service = serve(acting_database, bootstrap_servers="127.0.0.1:1", suffix="-alone")
    with service.child:
        began = time.monotonic()
        found = numbers(service)
        assert time.monotonic() - began < 9  # Prometheus gives up after ten seconds
        assert value(found, "tallymark_kafka_up") == 0
        assert value(found, "tallymark_relay_parked_messages") == 1
        assert service.get("/v1/consumers/ledger").json()["lag"] is None


@pytest.mark.timeout(120)
def test_lag_of_a_consumer_that_is_stopped(database: str, bootstrap_servers: str, topic: str) -> None:
    migrate(database, role=Role.CONSUMER)
    with psycopg.connect(database) as connection:
        connection.execute(TABLES.encode())
    ground = InboxGround(database, bootstrap_servers, topic)
    ground.send(100)
    with ground.inbox("--metrics-port", "0") as child:
        ground.wait_applied(100, child)
        child.terminate()
        assert child.wait() == 0, child.output
    service = serve(database, bootstrap_servers=bootstrap_servers)
    with service.child:
        # Where Kafka does not answer in time, lag is left out, and looked for again ten seconds later.
        wait_for(lambda: value(numbers(service), "tallymark_kafka_up") == 1, what="Kafka is asked")
        found = numbers(service)
        assert value(found, "tallymark_consumer_lag_messages", 'consumer="ledger"') <= 3  # markers
        assert value(found, "tallymark_consumer_lag_seconds", 'consumer="ledger"') == 0
        ground.send(50)
        wait_for(
            lambda: (
                values(numbers(service), "tallymark_consumer_lag_messages", 'consumer="ledger"') >= [50.0]
            ),
            what="the lag is seen",
        )
        found = numbers(service)
        assert value(found, "tallymark_consumer_lag_seconds", 'consumer="ledger"') > 0
        left = value(found, "tallymark_consumer_retention_left_seconds", 'consumer="ledger"')
        assert 6.9 * 86400 < left < 7 * 86400
        consumer = service.get("/v1/consumers/ledger", TokenRole.VIEWER).json()
        assert consumer["lag"] >= 50
        assert all(each["lag"] is not None for each in consumer["positions"])
        with ground.inbox() as child:
            ground.wait_applied(150, child)
            wait_for(
                lambda: (
                    values(numbers(service), "tallymark_consumer_lag_seconds", 'consumer="ledger"') == [0.0]
                    and value(numbers(service), "tallymark_consumer_processes", 'consumer="ledger"') == 1
                ),
                what="the lag is gone",
            )
