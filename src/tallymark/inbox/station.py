"""One inbox process: a thread that polls, one that keeps, workers for the queue, a heartbeat, and their end.

station.open()       the schema fits, the topics are there, who runs is written down
station.run(stop)    until `stop` is set; then finish the batch begun, give the partitions back, and leave
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

from tallymark.apply.applier import Applier
from tallymark.crashpoint import reached
from tallymark.errors import Problem, TallymarkError
from tallymark.housekeeping import Upkeep, keep_house
from tallymark.inbox.book import Book
from tallymark.inbox.config import InboxConfig
from tallymark.inbox.crew import Crew, Hand
from tallymark.inbox.custody import Custody
from tallymark.inbox.handover import Handover
from tallymark.inbox.keeper import Keeper
from tallymark.inbox.logport import Log
from tallymark.inbox.outcome import Outcome
from tallymark.inbox.ports import InboxStore, Instance, Place
from tallymark.inbox.pulse import Pulse
from tallymark.inbox.receiver import Receiver
from tallymark.inbox.screening import Screen
from tallymark.inbox.stride import Stride
from tallymark.inbox.tallies import Tallies
from tallymark.inbox.workers import Noticed, Worker
from tallymark.observe.metrics import Metrics

log = logging.getLogger("tallymark.inbox")

# How often threads and figures are looked after: not for each of a thousand small batches a second.
_LOOK_S = 0.1


class Station:
    """One process of a consumer."""

    def __init__(
        self,
        stores: Callable[[str], InboxStore],
        kafka: Callable[[], Log],
        applier: Applier,
        config: InboxConfig,
        *,
        version: str,
        metrics: Metrics | None = None,
        upkeep: Upkeep | None = None,
    ) -> None:
        self._stores = stores
        self._make_kafka = kafka
        self._applier = applier
        self._config = config
        self._version = version
        self._upkeep = upkeep
        self._tallies = Tallies(metrics or Metrics(), config.consumer)
        self._control = stores("control")
        self._book = Book()
        self._handover = Handover(config.batch_bytes)
        self._stride = Stride(self._at_most(), config.batch_s)
        self._crew = Crew()
        self._woken = threading.Condition()
        # Set when what was begun is to be left as it is.
        self._abandon = threading.Event()
        # Set while an operator has paused this consumer.
        self._held_back = threading.Event()
        self._noticed = Noticed()
        self._custody: Custody | None = None
        self._pulse: Pulse | None = None
        self._screen = Screen(applier.needs_saved_id, datetime.fromtimestamp(0, UTC), datetime.now(UTC))
        self._following: dict[Place, int] = {}
        self._following_lock = threading.Lock()
        self._followed_at = 0.0

    @property
    def troubles(self) -> list[str]:
        """What stands in the way, for /readyz."""
        waiting = list(self._custody.troubles.values()) if self._custody else ["not started"]
        return waiting + self._crew.troubles

    @property
    def ready(self) -> bool:
        return self._pulse is not None and self._pulse.beating and not self.troubles

    def open(self) -> None:
        """Check that schema, consumer and topics are what they should be."""
        config = self._config
        self._control.enlist(self._instance(), config.lease_s)
        self._screen.look(*self._control.memory())

    def run(self, stop: threading.Event) -> None:
        """Read, keep and apply until told to stop."""
        kafka = self._make_kafka()
        config = self._config
        self._custody = custody = Custody(self._control, kafka, self._book, self._handover, config)
        receiver = Receiver(
            kafka,
            self._book,
            custody,
            self._handover,
            config,
            stride=self._stride,
            held_back=self._held_back,
        )
        self._pulse = pulse = Pulse(
            self._stores("pulse"),
            kafka,
            self._book,
            self._screen,
            self._held_back,
            self._instance(),
            config,
        )
        self._crew.hire("keeper", self._new_keeper, self._keep)
        for number in range(config.workers if config.deferred else 1):
            self._crew.hire(f"worker-{number}", self._new_worker, self._work)
        done = threading.Event()
        background = [
            threading.Thread(target=pulse.run, args=(done, self._tallies), name="pulse", daemon=True),
            threading.Thread(
                target=pulse.watch_topics,
                args=(done, self._stores("look"), self._tallies),
                name="look",
                daemon=True,
            ),
        ]
        if self._upkeep is not None:
            background.append(
                threading.Thread(
                    target=keep_house,
                    args=("inbox", done, self._upkeep, config.upkeep_s),
                    name="upkeep",
                    daemon=True,
                )
            )
        for thread in background:
            thread.start()
        try:
            if config.assign is None:
                # After a kill that takes as long as Kafka waits for the process that is gone.
                log.info("waits for Kafka to give it partitions", extra={"action": "inbox.join"})
                kafka.join(config.topics, custody)
            else:
                kafka.assign(config.assign, custody)
            looked_at = 0.0
            while not stop.is_set():
                receiver.run_once()
                self._follow(kafka)
                if (now := time.monotonic()) - looked_at < _LOOK_S:
                    continue
                looked_at = now
                self._tallies.hung(self._crew.look_after())
                self._tallies.book(self._book, custody)
                if not self._crew.alive or not all(thread.is_alive() for thread in background):
                    raise Problem(
                        "a thread of the inbox ended by itself", remedy="its log says why; start it again"
                    )
        finally:
            self._shut_down(kafka, done)

    def _shut_down(self, kafka: Log, done: threading.Event, within_s: float = 10.0) -> None:
        self._handover.close()
        if not self._handover.wait_while_busy(None, within_s / 2):
            log.warning("the batch begun does not end; it is left", extra={"action": "inbox.stop"})
        self._abandon.set()
        with self._woken:
            self._woken.notify_all()
        self._crew.join(within_s / 2)
        done.set()
        # Both ask the database, which may stand still for longer than anybody waits for us.
        goodbye = threading.Thread(target=self._say_goodbye, args=(kafka,), name="goodbye", daemon=True)
        goodbye.start()
        goodbye.join(within_s / 2)
        if goodbye.is_alive():
            log.warning(
                "nobody hears our goodbye; others go on when our session and our lease have run out",
                extra={"action": "inbox.stop"},
            )

    def _say_goodbye(self, kafka: Log) -> None:
        self._follow(kafka, now=True)
        kafka.close()
        try:
            self._control.leave(self._config.owner)
        except TallymarkError as error:  # others see us gone when our time runs out
            log.warning("could not say goodbye: %s", error, extra={"action": "inbox.stop"})
        self._control.close()

    def _at_most(self) -> int:
        """Messages per batch: where a handler's rate is limited, no more than a second's worth in one transaction."""
        limits = [self._applier.at_most(topic) for topic in self._config.topics]
        slow = [] if self._config.deferred else [limit for limit in limits if limit is not None]
        return min([self._config.batch_messages, *slow])

    def _instance(self) -> Instance:
        config = self._config
        return Instance(
            config.owner,
            config.consumer,
            config.topics,
            str(config.mode),
            self._version,
            socket.gethostname(),
            os.getpid(),
            self._applier.handlers.unordered,
            config.positions,
            self._applier.handlers.versioned,
        )

    def _new_keeper(self) -> Hand:
        return Keeper(
            self._stores("keeper"), self._applier, self._book, self._screen, self._config, self._abandon
        )

    def _new_worker(self) -> Hand:
        return Worker(
            self._stores("worker"),
            self._applier,
            self._config,
            self._abandon,
            held_back=self._held_back,
            noticed=self._noticed,
            note=self._tallies.worked,
        )

    def _work(self, hand: Hand) -> None:
        if isinstance(hand, Worker):
            hand.run(self._woken)

    def _keep(self, hand: Hand) -> None:
        """The keeper's thread."""
        if not isinstance(hand, Keeper):
            return
        while not self._abandon.is_set() and not hand.watch.is_abandoned():
            batch = self._handover.take(0.2)
            if batch is None:
                continue
            began = time.monotonic()
            outcome = hand.run_once(batch)
            if hand.watch.is_abandoned():
                break  # whoever took our place has this batch now
            self._after(outcome)
            self._stride.took(len(batch.messages), time.monotonic() - began)
            self._handover.done(batch)
            self._tallies.kept(outcome, batch.messages, time.monotonic() - began)
        hand.store.close()

    def _after(self, outcome: Outcome) -> None:
        """The database has it. Kafka's own offsets follow, in the thread that polls: a client has but one."""
        if outcome.queued or outcome.failed:
            with self._woken:
                self._woken.notify_all()
        with self._following_lock:
            self._following.update(outcome.ends)

    def _follow(self, kafka: Log, *, now: bool = False) -> None:
        """At once where Kafka's offsets are the position, else at leisure."""
        wait = self._config.positions == "kafka"
        if not now and not wait and time.monotonic() - self._followed_at < self._config.follow_s:
            return
        self._followed_at = time.monotonic()
        with self._following_lock:
            ends, self._following = self._following, {}
        ours = self._book.epochs()
        if ends := {place: end for place, end in ends.items() if place in ours}:
            reached("inbox.before_kafka_commit")
        # With nothing new, too: what Kafka refused is asked for again.
        self._commit(kafka, ends, wait=wait)
        if ends:
            reached("inbox.after_kafka_commit")

    def _commit(self, kafka: Log, ends: Mapping[Place, int], *, wait: bool) -> None:
        try:
            kafka.commit(ends, wait=wait)
        except TallymarkError as error:  # the messages are kept; at worst they are read again, and known
            log.warning("Kafka's own offsets are behind: %s", error, extra={"action": "inbox.follow"})
