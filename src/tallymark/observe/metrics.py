"""The registry that counts the metrics of names.py.

prometheus-client is imported when the first registry is made; where it is not installed (a service with the outbox
alone) counting costs nothing and shows nothing.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from tallymark.observe.metric import Kind, Metric
from tallymark.observe.names import ALL

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """A registry with every metric of the list. `set`, `add` and `observe` take the metric and its labels."""

    def __init__(self) -> None:
        self._registry: CollectorRegistry | None = None
        self._series: dict[str, Any] = {}
        if find_spec("prometheus_client") is not None:
            self._build()

    def _build(self) -> None:
        from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

        self._registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        for metric in ALL:
            if metric.kind is Kind.HISTOGRAM:
                self._series[metric.name] = Histogram(
                    metric.name, metric.help, metric.labels, buckets=metric.buckets, registry=registry
                )
            else:
                make = Counter if metric.kind is Kind.COUNTER else Gauge
                self._series[metric.name] = make(metric.name, metric.help, metric.labels, registry=registry)

    def _child(self, metric: Metric, labels: dict[str, str]) -> Any:
        series = self._series[metric.name]
        return series.labels(**labels) if metric.labels else series

    def add(self, metric: Metric, amount: float = 1, /, **labels: str) -> None:
        """Count up."""
        if self._series:
            self._child(metric, labels).inc(amount)

    def set(self, metric: Metric, value: float, /, **labels: str) -> None:
        """The value now."""
        if self._series:
            self._child(metric, labels).set(value)

    def observe(self, metric: Metric, value: float, /, **labels: str) -> None:
        """One measurement of a distribution."""
        if self._series:
            self._child(metric, labels).observe(value)

    def drop(self, metric: Metric, /, **labels: str) -> None:
        """Forget one series: a lane that is no longer ours must not keep its last value for ever."""
        if self._series and metric.labels:
            self._series[metric.name].remove_by_labels(labels)

    def clear(self, metric: Metric, /) -> None:
        """Forget every series of a metric: what is told anew each time must not keep what is gone."""
        if self._series and metric.labels:
            self._series[metric.name].clear()

    def render(self) -> bytes:
        """The Prometheus text form of everything counted so far."""
        if self._registry is None:
            return b"# prometheus-client is not installed: install Tallymark with its extra [kafka]\n"
        from prometheus_client import generate_latest

        return generate_latest(self._registry)
