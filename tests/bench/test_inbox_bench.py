"""The inbox's benchmarks compare like with like: by hand and by us, the same rows and the same balances."""

from __future__ import annotations

import time
from typing import Any

import psycopg
import pytest
from bench.filled import fill
from bench.inboxchild import by_hand, ours
from bench.ledger import Ledger
from bench.meter import Meter
from bench.payloads import KEYS

from tallymark.local.cluster import LocalCluster
from tallymark.message import kafka_headers
from tests import journal

COUNT = KEYS + 500
KEPT = (
    'select id, source, named, topic, partition, "offset", position, key, value, headers::jsonb, logged_at '
    "from {}.inbox order by position"
)


@pytest.fixture
def ledger(database: str) -> Ledger:
    return Ledger(database)


@pytest.fixture
def filled(bootstrap_servers: str, topic: str) -> str:
    fill(bootstrap_servers, topic, COUNT)
    return topic


def test_both_sides_keep_the_same_rows_and_have_the_same_effect(
    ledger: Ledger, filled: str, bootstrap_servers: str
) -> None:
    for workload in ("each", "batch"):
        found: list[Any] = []
        for schema in ("bare", "tallymark"):
            if schema == "bare":
                sample = by_hand(ledger, bootstrap_servers, filled, COUNT, workload)
            else:
                sample = ours(ledger, bootstrap_servers, filled, COUNT, mode="inline", handler=workload)
            assert sample.count == COUNT
            assert sample.seconds > 0
            with psycopg.connect(ledger.url) as connection:
                kept = connection.execute(KEPT.format(schema)).fetchall()
                balances = connection.execute("select * from account order by id").fetchall()
            found.append((kept, balances))
        assert found[0] == found[1]
        assert ledger.applied() == COUNT


def test_the_log_holds_what_the_relay_would_send(filled: str, bootstrap_servers: str) -> None:
    records = journal.log_records(bootstrap_servers, (filled,))
    assert len(records) == len({each.id for each in records}) == COUNT
    usual = kafka_headers(
        '{"ce_source": "/bench", "ce_type": "transfer.made", "content-type": "application/json"}'
    )
    for each in records:
        assert [*each.headers[:-2]] == usual
        assert [name for name, _ in each.headers[-2:]] == ["ce_id", "tm_position"]


def test_a_meter_counts_our_own_work_as_ours(cluster: LocalCluster) -> None:
    meter = Meter(cluster)
    end = time.process_time() + 0.5
    while time.process_time() < end:
        pass
    stretch = meter.read()
    assert stretch.cpu_seconds >= 0.4
    assert stretch.seconds >= 0.4
    assert stretch.cores >= 0.9 * stretch.cpu_seconds / stretch.seconds - 0.1
