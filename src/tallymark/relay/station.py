"""A lane's thread: steps for as long as the lane is ours, waits when there is nothing, and knows when to stop.

What passes (Kafka away, PostgreSQL restarted, an outcome unknown) is waited out with a growing back-off, for ever: a
message is never given up because something was away. What does not pass (taken over, inconsistent) ends the thread.
"""

from __future__ import annotations

import logging
import random
import threading
import time

from tallymark.errors import Inconsistent, Problem, Stale, TallymarkError
from tallymark.observe import names
from tallymark.observe.metrics import Metrics
from tallymark.observe.waiting import since_id
from tallymark.relay.bell import Bell
from tallymark.relay.config import RelayConfig
from tallymark.relay.lane import Did, LaneWorker
from tallymark.relay.ports import Lane

log = logging.getLogger("tallymark.relay")

# So long a lane that is told to stop waits for Kafka to finish what was begun.
_FINISH_S = 4.0


class Station:
    """One lane with its thread."""

    def __init__(
        self, worker: LaneWorker, config: RelayConfig, metrics: Metrics, outbox: str, bell: Bell
    ) -> None:
        lane = worker.lane
        self.number, self.epoch = lane.lane, lane.epoch
        self.trouble: str | None = None
        self._worker = worker
        self._config = config
        self._metrics = metrics
        self._outbox = outbox
        self._bell = bell
        self._stop = threading.Event()
        self._lost = False
        # A series that is born at 1 shows no increase: the first fence would go unnoticed.
        metrics.add(names.RELAY_FENCED, 0, outbox=outbox, by="lease")
        self._thread = threading.Thread(target=self._run, name=f"lane-{self.number}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def lane(self) -> Lane:
        return self._worker.lane

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def ask_to_stop(self, *, lost: bool = False) -> None:
        """Finish what was begun and release the lane; `lost` means that it is not ours to release any more."""
        self._lost = self._lost or lost
        self._stop.set()
        self._worker.dispatcher.hurry(_FINISH_S)
        self._bell.ring()

    def join(self, timeout_s: float) -> bool:
        """Whether the thread has ended."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._work()
            if self._lost:
                # The heartbeat may notice before the next write does: a lane taken over is counted all the same.
                self._worker.ledger.recheck()
            else:
                self._worker.finish()
                self._worker.ledger.store.release(self._worker.lane)
        except Stale as stale:
            self._metrics.add(names.RELAY_FENCED, outbox=self._outbox, by="lease")
            log.error("%s", stale, extra={"action": "relay.fenced", "lane": self.number, "epoch": self.epoch})
            self._count_fenced()
        except Inconsistent as finding:
            self.trouble = str(finding)
            log.critical("lane %d stops: %s", self.number, finding.sentence, extra={"action": "relay.halt"})
            self._halt(finding.sentence)
        except TallymarkError as error:  # while finishing: whoever takes the lane next settles it
            log.warning("lane %d ended in doubt: %s", self.number, error, extra={"action": "relay.stop"})
            self._give_back()
        finally:
            self._worker.close()

    def _halt(self, found: str) -> None:
        try:
            self._worker.ledger.store.halt(self._worker.lane, found)
        except TallymarkError as error:  # whoever takes the lane next finds the same, and says so
            log.warning("lane %d is not halted: %s", self.number, error, extra={"action": "relay.halt"})

    def _give_back(self) -> None:
        """What was begun is in doubt, and nobody need wait for our lease to find out."""
        self._worker.reset()
        try:
            self._worker.ledger.store.release(self._worker.lane)
        except TallymarkError as error:  # then it is free when the lease has run out
            log.warning("lane %d is not given back: %s", self.number, error, extra={"action": "relay.stop"})

    def _work(self) -> None:
        attempt = 0
        while not self._stop.is_set():
            began, in_doubt, heard = time.monotonic(), self._worker.in_doubt, self._bell.rings
            try:
                step = self._worker.run_once()
            except (Stale, Inconsistent):
                raise
            except TallymarkError as error:
                attempt += 1
                self._wait_out(error, attempt)
                continue
            except Exception as error:
                # A fault of ours, told loudly: nothing is passed over, the lane settles anew.
                attempt += 1
                log.exception("lane %d failed", self.number, extra={"action": "relay.bug"})
                self._wait_out(Problem(f"{type(error).__name__}: {error}"), attempt)
                continue
            attempt, self.trouble = 0, None
            if self._worker.in_doubt > in_doubt:
                self._metrics.add(
                    names.RELAY_IN_DOUBT,
                    self._worker.in_doubt - in_doubt,
                    outbox=self._outbox,
                    outcome="resolved",
                )
            if step.messages:
                self._count(step.messages, time.monotonic() - began)
            if step.did is Did.IDLE:
                self._bell.wait(heard, self._config.idle_s)
            elif step.did is Did.PAUSED:
                self._stop.wait(self._config.refresh_s)

    def _wait_out(self, error: TallymarkError, attempt: int) -> None:
        delay = self._config.backoff.delay(attempt, random.random())  # noqa: S311 - jitter is no secret
        self.trouble = str(error)
        self._metrics.add(names.RELAY_RETRIES, outbox=self._outbox)
        log.warning(
            "lane %d tries again in %.1f s: %s",
            self.number,
            delay,
            error.sentence.replace("\n", ". "),
            extra={"action": "relay.retry", "lane": self.number, "attempt": attempt},
        )
        self._worker.reset()
        self._stop.wait(delay)

    def _count(self, messages: int, seconds: float) -> None:
        outbox, lane = self._outbox, str(self.number)
        self._metrics.add(names.RELAY_SENT, messages, outbox=outbox, lane=lane)
        self._metrics.add(names.RELAY_BATCHES, outbox=outbox, lane=lane)
        self._metrics.observe(names.RELAY_BATCH_SIZE, messages, outbox=outbox)
        self._metrics.observe(names.RELAY_BATCH_SECONDS, seconds, outbox=outbox)
        first, self._worker.dispatcher.landed = self._worker.dispatcher.landed, None
        if first is not None and (waited := since_id(first, time.time())) is not None:
            self._metrics.observe(names.RELAY_ADDED_TO_LOG, waited, outbox=outbox)

    def _count_fenced(self) -> None:
        try:
            self._worker.ledger.store.count_fenced(self.number)
        except TallymarkError as error:  # the count is for status only; the log line above stands
            log.warning("could not count it: %s", error, extra={"action": "relay.fenced"})
