"""How a run is doing, for Prometheus: counts, rate and positions from each commit, the logs' ends from Spark's progress.

Lag is counted from what is committed. Spark's own counts from what is loaded, which may never be.
"""

from __future__ import annotations

import json
import logging
import threading
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
        # Where the positions stand, and where the logs ended when Spark last looked.
        self._committed: dict[Place, int] = {}
        self._latest: dict[Place, int] = {}
        # Batches are noted by the thread that commits, progress by Spark's.
        self._lock = threading.Lock()

    def begin(self, positions: Mapping[Place, int]) -> None:
        """Where the positions stood when they were taken."""
        with self._lock:
            self._committed = dict(positions)

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
        if done.rate is not None:
            self._metrics.set(names.INGEST_RATE, done.rate, consumer=consumer)
        with self._lock:
            self._logged_ms |= done.logged_ms
            self._committed |= done.ends
            self._tell()  # a topic that stands still has no further progress to tell of

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
        with self._lock:
            for source in progress.get("sources", ()):
                self._latest |= _offsets(source.get("latestOffset"))
            self._tell()

    def _tell(self) -> None:
        behind = behind_of(self._committed, self._latest)
        self._metrics.set(names.INBOX_LAG, sum(behind.values()), consumer=self._consumer)
        late = late_s(behind, self._logged_ms, time.time())
        if late is not None:
            self._metrics.set(names.INBOX_LAG_SECONDS, late, consumer=self._consumer)


def behind_of(committed: Mapping[Place, int], latest: Mapping[Place, int]) -> dict[Place, int]:
    """Offsets between what is committed and where the log ended, by place; where there are any. Pure.

    A partition that was added since begins at 0.
    """
    behind = {place: offset - committed.get(place, 0) for place, offset in latest.items()}
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
