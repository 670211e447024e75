"""The metrics: one typed list of names with their help, and the registry that counts them.

A metric that is not in `ALL` does not exist. prometheus-client is imported when the first registry is made;
where it is not installed (a service with the outbox alone) counting costs nothing and shows nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
_SIZES = (1.0, 10.0, 100.0, 500.0, 1000.0, 2000.0, 5000.0, 10000.0, 20000.0, 50000.0)


class Kind(StrEnum):
    """What a metric does over time."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric: its name in Prometheus form, what it means, and by what it is split."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


BUILD_INFO = Metric("tallymark_build_info", Kind.GAUGE, "Always 1; the version is its label.", ("version",))

RELAY_SENT = Metric(
    "tallymark_relay_sent_total", Kind.COUNTER, "Messages marked as sent.", ("outbox", "lane")
)
RELAY_BATCHES = Metric(
    "tallymark_relay_batches_total", Kind.COUNTER, "Batches marked as sent.", ("outbox", "lane")
)
RELAY_BATCH_SIZE = Metric(
    "tallymark_relay_batch_messages", Kind.HISTOGRAM, "Messages per batch.", ("outbox",), _SIZES
)
RELAY_BATCH_SECONDS = Metric(
    "tallymark_relay_batch_seconds", Kind.HISTOGRAM, "From claim to mark of one batch.", ("outbox",), _SECONDS
)
RELAY_BACKLOG = Metric(
    "tallymark_relay_backlog_messages", Kind.GAUGE, "Messages added and not yet sent.", ("outbox",)
)
RELAY_OLDEST_PENDING = Metric(
    "tallymark_relay_oldest_pending_seconds",
    Kind.GAUGE,
    "Age of the oldest message that waits to be sent.",
    ("outbox",),
)
RELAY_LANES_OWNED = Metric(
    "tallymark_relay_lanes_owned", Kind.GAUGE, "Lanes that this process holds a lease on.", ("outbox",)
)
RELAY_IN_DOUBT = Metric(
    "tallymark_relay_in_doubt_resolved_total",
    Kind.COUNTER,
    "Batches whose outcome was unknown and was read from the receipt.",
    ("outbox", "outcome"),
)
RELAY_FENCED = Metric(
    "tallymark_relay_fenced_total",
    Kind.COUNTER,
    "Writes refused because another owner, epoch or version had come first.",
    ("outbox", "by"),
)
RELAY_PARKED = Metric(
    "tallymark_relay_parked_messages",
    Kind.GAUGE,
    "Messages that failed on their own and wait for someone.",
    ("outbox",),
)
RELAY_HELD_TOPICS = Metric(
    "tallymark_relay_held_topics", Kind.GAUGE, "Topics held because all of them fail.", ("outbox",)
)
RELAY_RETRIES = Metric(
    "tallymark_relay_retries_total", Kind.COUNTER, "Batches tried again after a retriable error.", ("outbox",)
)
RELAY_OLDEST_FLOOR = Metric(
    "tallymark_relay_oldest_floor_seconds",
    Kind.GAUGE,
    "Age of the oldest writing transaction that holds the reader back.",
    ("outbox",),
)
RELAY_ACCEPTED_RISKS = Metric(
    "tallymark_relay_accepted_risks",
    Kind.GAUGE,
    "Safety rules switched off by option.",
    ("outbox",),
)

ALL: tuple[Metric, ...] = tuple(value for value in list(vars().values()) if isinstance(value, Metric))


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

    def render(self) -> bytes:
        """The Prometheus text form of everything counted so far."""
        if self._registry is None:
            return b"# prometheus-client is not installed: pip install 'tallymark[kafka]'\n"
        from prometheus_client import generate_latest

        return generate_latest(self._registry)
