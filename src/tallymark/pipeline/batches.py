"""The micro-batches of one query, as Spark calls for them: each is loaded, then handed in to be committed.

Every query has its own, with its own folder of offsets. A call that comes late, from a query that was stopped, finds its
own to be over: it can neither read the next query's offsets nor end it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from tallymark.crashpoint import reached
from tallymark.errors import TallymarkError
from tallymark.inbox.ports import Place
from tallymark.pipeline import failures, kafkasource
from tallymark.pipeline.committing import Range
from tallymark.pipeline.loading import Loaded, load
from tallymark.pipeline.onebehind import OneBehind
from tallymark.pipeline.tenure import Tenure
from tallymark.store.postgres.pipelinestore import PipelineStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

LOOK_S = 1
# What is loaded when the query is to end is waited for so long. It may wait for executors that never come.
GRACE_S = 30.0

Committing = Callable[[Loaded, list[Range], float], None]


class Batches:
    """One query's. With `enough` set no further one is begun: what comes is for the next query."""

    def __init__(
        self,
        checkpoint: Path,
        store: PipelineStore,
        tenure: Tenure,
        commits: OneBehind,
        committing: Committing,
        *,
        stop: threading.Event,
        enough: threading.Event | None = None,
    ) -> None:
        self._checkpoint = checkpoint
        self._store = store
        self._tenure = tenure
        self._commits = commits
        self._committing = committing
        self._stop = stop
        self._enough = enough or threading.Event()
        # What went wrong with a batch.
        self.failure: TallymarkError | None = None
        self._busy = threading.Lock()
        # Asked to end, and ended.
        self._asked = self._over = False
        self._loading = self._cancelled = False
        # Where the next batch starts: behind what was handed in, committed or not.
        self._ahead: dict[Place, int] = {}
        # Which of the staging tables is loaded next.
        self._turn = 0

    def run_once(self, source: DataFrame, number: int) -> None:
        """What Spark calls for each micro-batch. Whatever is raised here ends the query, and nothing is skipped."""
        try:
            with self._busy:
                if not self._over:
                    self._one(source, number)
        except BaseException as error:
            self._over = True
            if not self._cancelled:  # else whatever ended the query is what went wrong
                self.failure = self._store.explained(error) or failures.explain(error)
            raise

    def end(self, meanwhile: Callable[[], object], cancel: Callable[[], object]) -> None:
        """What was handed in is finished, and nothing more is. `cancel` ends Spark's work on what is not handed in."""
        self._asked = True
        patient_until = time.monotonic() + GRACE_S
        while not self._busy.acquire(timeout=LOOK_S):
            meanwhile()
            # A commit is never cut short: what was handed in before is seen out first.
            if self._loading and time.monotonic() > patient_until and self._commits.is_over(0):
                self._cancelled = True
                cancel()
        self._over = True
        self._busy.release()

    def _one(self, source: DataFrame, number: int) -> None:
        reached("pipeline.offsets_written")
        if self._enough.is_set():
            self._over = True
            return
        while self._tenure.paused.is_set():
            if self._stop.wait(LOOK_S) or self._asked:
                # Spark takes this one for done: a later one would be committed as if this one had been.
                self._over = True
                return
        ranges = self._ranges(number)
        if not ranges:
            return  # a first look that found nothing
        began = time.monotonic()
        self._loading = True
        try:
            loaded = load(source, self._store.url, self._store.stagings[self._turn])
        finally:
            self._loading = False
        load_s = time.monotonic() - began
        self._commits.hand_in(lambda: self._committing(loaded, ranges, load_s))
        self._ahead |= {each.place: each.end for each in ranges}
        self._turn = 1 - self._turn

    def _ranges(self, number: int) -> list[Range]:
        """From where the batch before it ends to where Spark's own log says that this one does (pitfall 20)."""
        ends = kafkasource.log_of((self._checkpoint / "offsets" / str(number)).read_text())
        held = self._tenure.positions()
        if added := ends.keys() - held.keys():
            self._tenure.add(added)
            held = self._tenure.positions()
        starts = {place: self._ahead.get(place, position.next_offset) for place, position in held.items()}
        return [
            Range(place, held[place].epoch, starts[place], end)
            for place, end in sorted(ends.items())
            if end != starts[place]
        ]
