"""Says that nobody works for us: a cluster that has no room for an application lets it wait, for ever, without a word."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("tallymark.pipeline")

_LOOK_S = 2.0
# As long as a cluster may take to start executors for us, and more.
_PATIENCE_S = 20.0
_ASKED = ("spark.executor.memory", "spark.executor.cores", "spark.cores.max", "spark.executor.instances")


@dataclass(slots=True)
class Standstill:
    """Since when tasks wait and none runs. Pure."""

    since: float | None = None
    told: bool = False

    def saw(self, *, waiting: bool, running: bool, now: float) -> float | None:
        """How long it has lasted, when that is to be said: once, until tasks run again."""
        if running or not waiting:
            self.since, self.told = None, False
            return None
        if self.since is None:
            self.since = now
        if self.told or now - self.since < _PATIENCE_S:
            return None
        self.told = True
        return now - self.since


@contextmanager
def watched(session: SparkSession, master: str) -> Iterator[None]:
    """While it lasts, a standstill is logged as a warning."""
    done = threading.Event()
    thread = threading.Thread(target=_watch, args=(session, master, done), name="standstill", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join(2 * _LOOK_S)


def _watch(session: SparkSession, master: str, done: threading.Event) -> None:
    context, seen = session.sparkContext, Standstill()
    tracker = context.statusTracker()
    asked = [f"{name}={value}" for name in _ASKED if (value := context.getConf().get(name)) is not None]
    while not done.wait(_LOOK_S):
        try:
            stages = [tracker.getStageInfo(each) for each in tracker.getActiveStageIds()]
        except Exception as error:  # noqa: BLE001 - whoever works with the session says what has become of it
            log.debug("standstill: %s", error, extra={"action": "spark.standstill"})
            return
        running = any(each.numActiveTasks for each in stages if each is not None)
        lasted = seen.saw(waiting=bool(stages), running=running, now=time.monotonic())
        if lasted is not None:
            log.warning(
                "no executor has taken a task of ours for %.0f s: %s has none for us (%s);"
                " look at its page, or ask for less",
                lasted,
                master,
                ", ".join(asked) or "nothing special is asked for",
                extra={"action": "spark.standstill"},
            )
