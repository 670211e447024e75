"""One typed list of metrics; what is counted is what is rendered."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest

from tallymark.observe import metrics, names
from tallymark.observe.metric import Kind
from tallymark.observe.metrics import Metrics
from tallymark.observe.names import ALL
from tallymark.relay.bell import Bell
from tallymark.relay.station import Station


def test_every_metric_is_well_named_and_explained() -> None:
    names = [metric.name for metric in ALL]
    assert len(names) == len(set(names))
    for metric in ALL:
        assert re.fullmatch(r"tallymark_[a-z_]+", metric.name)
        assert metric.help.endswith(".")
        assert metric.name.endswith("_total") == (metric.kind is Kind.COUNTER)
        assert bool(metric.buckets) == (metric.kind is Kind.HISTOGRAM)


def test_what_is_counted_is_rendered() -> None:
    counted = Metrics()
    counted.add(names.RELAY_SENT, 5, outbox="o", lane="1")
    counted.add(names.RELAY_SENT, 2, outbox="o", lane="1")
    counted.set(names.RELAY_BACKLOG, 42, outbox="o")
    counted.observe(names.RELAY_BATCH_SECONDS, 0.015, outbox="o")
    text = counted.render().decode()
    assert 'tallymark_relay_sent_total{lane="1",outbox="o"} 7.0' in text
    assert 'tallymark_relay_backlog_messages{outbox="o"} 42.0' in text
    assert 'tallymark_relay_batch_seconds_bucket{le="0.02",outbox="o"} 1.0' in text
    assert "process_resident_memory_bytes" in text
    counted.drop(names.RELAY_BACKLOG, outbox="o")
    assert "tallymark_relay_backlog_messages{" not in counted.render().decode()


def test_without_prometheus_client_counting_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "find_spec", lambda _name: None)
    counted = Metrics()
    counted.add(names.RELAY_SENT, outbox="o", lane="1")
    counted.set(names.RELAY_BACKLOG, 1, outbox="o")
    counted.drop(names.RELAY_BACKLOG, outbox="o")
    assert b"not installed" in counted.render()


def test_a_relay_tells_of_no_fence_before_the_first() -> None:
    """A series that is born at 1 shows no increase."""
    metrics = Metrics()
    worker: Any = SimpleNamespace(lane=SimpleNamespace(lane=0, epoch=1))
    config: Any = None
    Station(worker, config, metrics, "an-outbox", Bell())
    assert 'tallymark_relay_fenced_total{by="lease",outbox="an-outbox"} 0.0' in metrics.render().decode()
