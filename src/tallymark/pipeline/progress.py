"""How a run is doing, for Prometheus: counts from each commit, lag and rates from Spark's own progress."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tallymark.inbox.ports import Place
from tallymark.observe import names
from tallymark.observe.metrics import Metrics
from tallymark.pipeline.committing import Committed
from tallymark.pipeline.kafkasource import offsets_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("tallymark.pipeline")


class Gauges:
    """The metrics of one run."""

    def __init__(self, metrics: Metrics, consumer: str) -> None:
        self._metrics = metrics
        self._consumer = consumer
        # Kafka's time of the last message kept, by place, in milliseconds.
        self._logged_ms: dict[Place, int] = {}

    def note(self, done: Committed) -> None:
        """A micro-batch was committed."""
        add, consumer = self._metrics.add, self._consumer
        add(names.INBOX_KEPT, done.kept, consumer=consumer)
        add(names.INBOX_REPEATED, done.repeated, consumer=consumer)
        add(names.INBOX_APPLIED, done.applied, consumer=consumer)
        add(names.INBOX_DEAD, done.dead, consumer=consumer)
        add(names.INBOX_QUARANTINED, done.quarantined, consumer=consumer)
        self._metrics.observe(names.INBOX_BATCH_SIZE, done.read, consumer=consumer)
        self._metrics.observe(names.INBOX_BATCH_SECONDS, done.load_s + done.commit_s, consumer=consumer)
        self._logged_ms |= done.logged_ms

    def listen(self, spark: SparkSession) -> None:
        """Hear of each micro-batch from Spark, and how far the log's end was then."""
        from pyspark.sql.streaming.listener import StreamingQueryListener

        gauges = self

        class Listener(StreamingQueryListener):
            def onQueryStarted(self, event: Any) -> None: ...

            def onQueryProgress(self, event: Any) -> None:
                try:
                    gauges.progressed(json.loads(event.progress.json))
                except Exception:  # a figure that is missing must not end the run
                    log.exception("progress", extra={"action": "pipeline.progress"})

            def onQueryIdle(self, event: Any) -> None: ...

            def onQueryTerminated(self, event: Any) -> None: ...

        spark.streams.addListener(Listener())

    def progressed(self, progress: dict[str, Any]) -> None:
        """Spark's report of one trigger."""
        for source in progress.get("sources", ()):
            behind = behind_of(source)
            self._metrics.set(names.INBOX_LAG, sum(behind.values()), consumer=self._consumer)
            late = late_s(behind, self._logged_ms, time.time())
            if late is not None:
                self._metrics.set(names.INBOX_LAG_SECONDS, late, consumer=self._consumer)


def behind_of(source: dict[str, Any]) -> dict[Place, int]:
    """Offsets between where a trigger ended and where the log did, by place; where there are any. Pure."""
    ends, latest = (_offsets(source.get(name)) for name in ("endOffset", "latestOffset"))
    behind = {place: offset - ends.get(place, 0) for place, offset in latest.items()}
    return {place: offsets for place, offsets in behind.items() if offsets > 0}


def late_s(behind: Mapping[Place, int], logged_ms: Mapping[Place, int], now: float) -> float | None:
    """Age of the last message kept where it is oldest among what is behind; None where none was kept there. Pure."""
    if not behind:
        return 0.0
    kept = [logged_ms[place] for place in behind if place in logged_ms]
    return max(0.0, now - min(kept) / 1000) if kept else None


def _offsets(given: Any) -> dict[Place, int]:
    if given is None:
        return {}
    return offsets_of(given if isinstance(given, str) else json.dumps(given))
