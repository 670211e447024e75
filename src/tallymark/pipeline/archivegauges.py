"""How an archive is doing, for Prometheus: what each batch added, and, looked at anew every few seconds, how far behind
the logs it is and when retention would take what it does not hold.

The looks have a thread of their own: a batch may take minutes, and lag grows meanwhile.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tallymark.observe import names
from tallymark.observe.health import HealthServer
from tallymark.observe.metrics import Metrics
from tallymark.pipeline.archive import Archived
from tallymark.pipeline.archivestatus import ArchiveStatus

log = logging.getLogger("tallymark.pipeline")

_LOOK_EVERY_S = 15.0


class ArchiveGauges:
    """The metrics of one run."""

    def __init__(self, metrics: Metrics, folder: Path) -> None:
        self._metrics = metrics
        self._archive = str(folder)

    def note(self, done: Archived) -> None:
        """A batch was archived."""
        self._metrics.add(names.ARCHIVED, done.rows, archive=self._archive)
        self._metrics.observe(names.ARCHIVE_BATCH_SECONDS, done.seconds, archive=self._archive)

    def stands(self, seen: ArchiveStatus) -> None:
        """The archive was looked at beside its logs."""
        self._metrics.set(names.ARCHIVE_LAG, seen.behind, archive=self._archive)
        self._metrics.set(names.ARCHIVE_TROUBLES, len(seen.troubles), archive=self._archive)
        if seen.left_ms is None:
            self._metrics.drop(names.ARCHIVE_RETENTION_LEFT, archive=self._archive)
        else:
            self._metrics.set(names.ARCHIVE_RETENTION_LEFT, seen.left_ms / 1000, archive=self._archive)

    @contextmanager
    def served(
        self, port: int, look: Callable[[], ArchiveStatus], every_s: float = _LOOK_EVERY_S
    ) -> Iterator[HealthServer]:
        """/metrics, /healthz and /readyz on loopback, fresh as long as it is served."""
        over = threading.Event()

        def watch() -> None:
            while True:
                try:
                    self.stands(look())
                except Exception as error:  # noqa: BLE001 - Kafka may be away: the next look may get through
                    log.warning(
                        "the archive could not be looked at: %s", error, extra={"action": "archive.look"}
                    )
                if over.wait(every_s):
                    return

        with HealthServer(self._metrics, port=port) as server:
            thread = threading.Thread(target=watch, name="archive-gauges", daemon=True)
            thread.start()
            try:
                yield server
            finally:
                over.set()
                thread.join()
