"""The pull loop: one look at Kafka at a time, handed over in bounded batches; it never waits for the database.

It goes on polling while nothing may be read, so that the group keeps us: partitions are paused while batches pile up
(the database is slow or away, fault C12) or while an operator says so.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from typing import NamedTuple

from tallymark.crashpoint import reached
from tallymark.inbox.book import Book
from tallymark.inbox.config import InboxConfig
from tallymark.inbox.custody import Custody
from tallymark.inbox.handover import Batch, Handover
from tallymark.inbox.logport import Log, Polled
from tallymark.inbox.ports import Place
from tallymark.inbox.stride import Stride
from tallymark.inbox.tuning import tune_for_batches

log = logging.getLogger("tallymark.inbox")

_POLL_S = 0.1
# How long to wait for the keeper before partitions are paused. Meanwhile Kafka does not hear from us.
_ROOM_S = 1.0
# A batch of fewer than these is done in a moment: it is waited for, so long, before the next is read.
_SMALL = 500
_MOMENT_S = 0.25
# Markers alone do not hurry: their offsets go with the next messages, or after this time.
_MARKERS_S = 1.0
_FIRST_ASK = 500
_TAKE_AGAIN_S = 1.0
# A try that took longer than this was not answered, and may have left a session waiting in the server: seldom, then.
_UNANSWERED_S = 3.0
_TAKE_SELDOM_S = 30.0


class Unreadable(NamedTuple):
    """Something in a partition that is ours, under this epoch, that cannot be read."""

    epoch: int
    at: int
    said: str


class Receiver:
    """Reads for the keeper."""

    def __init__(
        self,
        kafka: Log,
        book: Book,
        custody: Custody,
        handover: Handover,
        config: InboxConfig,
        *,
        stride: Stride,
        held_back: threading.Event,
    ) -> None:
        self._kafka = kafka
        self._book = book
        self._custody = custody
        self._handover = handover
        self._config = config
        self._held_back = held_back  # an operator paused this consumer
        self._paused: set[Place] = set()
        self._was_held_back = False
        self._stride = stride
        self._ask = min(_FIRST_ASK, stride.fitting)
        # Ends that were seen without messages, and the epochs under which they were.
        self._markers: dict[Place, tuple[int, int]] = {}
        self._markers_since = 0.0
        self._take_at = 0.0
        self._take_pause_s = _TAKE_AGAIN_S
        self._unreadable: dict[Place, Unreadable] = {}
        tune_for_batches()

    def run_once(self, timeout_s: float = _POLL_S) -> int:
        """One look; gives back how many messages were handed over."""
        self._pause_or_resume()
        self._handover.let_finish(_SMALL, _MOMENT_S)
        polled = self._kafka.poll(min(self._ask, self._stride.fitting), timeout_s)
        now = time.monotonic()
        if polled.lost:
            self._custody.misplaced(polled.lost)
        epochs = self._book.epochs()
        for place, (at, said) in polled.unreadable.items():
            if place in epochs:
                self._unreadable.setdefault(place, Unreadable(epochs[place], at, said))
        if self._unreadable:
            polled = readable(polled, {place: each.at for place, each in self._unreadable.items()})
        batch = self._batch(polled, now)
        self._halt_unreadable()
        # After the batch is made: what was polled for a place before it was taken lies elsewhere in its log.
        self._take_waiting()
        if batch is None:
            return 0
        reached("inbox.after_poll")
        self._handover.put(batch)
        self._adapt(polled)
        return len(batch.messages)

    def _halt_unreadable(self) -> None:
        """A place stands still at what cannot be read, once all before it is kept: whoever passes it passes it alone."""
        if not self._unreadable:
            return
        held = self._book.held()
        for place, each in list(self._unreadable.items()):
            if place not in held or held[place].epoch != each.epoch:
                del self._unreadable[place]  # whoever has it now finds the same
            elif held[place].committed == held[place].read and not self._markers.get(place):
                del self._unreadable[place]
                self._custody.unreadable({place: each.said})

    def _take_waiting(self) -> None:
        began = time.monotonic()
        if not self._book.waiting() or began < self._take_at:
            return
        offsets = self._custody.take_waiting()
        done = time.monotonic()
        unanswered = done - began > _UNANSWERED_S
        self._take_pause_s = min(2 * self._take_pause_s, _TAKE_SELDOM_S) if unanswered else _TAKE_AGAIN_S
        self._take_at = done + self._take_pause_s
        if offsets:
            self._kafka.add(offsets)

    def _pause_or_resume(self) -> None:
        # A pause throws away what the client has read ahead, to be read again: not for a batch that is done in a moment.
        full = not self._handover.wait_for_room(_ROOM_S)
        held = set(self._book.epochs())
        held_back = self._held_back.is_set()
        wanted = held if full or held_back else set()
        # Every time: what was taken anew since the last look is read again, and may not be. What is not ours now, though
        # Kafka assigns it to us, would be read to be dropped; whoever takes it reads it on.
        self._kafka.pause(wanted | self._book.waiting().keys())
        if less := (self._paused & held) - wanted:
            self._kafka.resume(less)
        self._paused = wanted
        if held_back != self._was_held_back:
            # Said here, where it is so: nothing is read from now on.
            log.info("paused" if held_back else "resumed", extra={"action": "inbox.pause"})
            self._was_held_back = held_back

    def _batch(self, polled: Polled, now: float) -> Batch | None:
        """What was read for places that are ours, with the markers passed before it."""
        held = self._book.held()
        ends = {place: end for place, end in polled.ends.items() if place in held and end > held[place].read}
        if not polled.messages:
            if ends and not self._markers:
                self._markers_since = now
            self._markers.update({place: (end, held[place].epoch) for place, end in ends.items()})
            if not self._markers or now - self._markers_since < _MARKERS_S:
                return None
        messages = [
            each
            for each in polled.messages
            if (place := (each.topic, each.partition)) in held and (each.offset or 0) >= held[place].read
        ]
        passed = {
            place: end
            for place, (end, epoch) in self._markers.items()
            if place in held
            and epoch == held[place].epoch
            and end > max(held[place].read, ends.get(place, 0))
        }
        self._markers.clear()
        ends = {**ends, **passed}
        if not ends:
            return None
        self._book.note_read(ends)
        return Batch(
            messages,
            {place: held[place].read for place in ends},
            ends,
            {place: epoch for place, epoch in polled.leader_epochs.items() if place not in passed},
            {place: held[place].epoch for place in ends},
            polled.bytes,
        )

    def _adapt(self, polled: Polled) -> None:
        """Ask for as many as fit into a batch's bytes, going by what came last."""
        if polled.messages:
            average = max(1, polled.bytes // len(polled.messages))
            fitting = max(1, self._config.batch_bytes // average)
            self._ask = min(self._stride.fitting, fitting, self._ask * 4)


def readable(polled: Polled, bad: Mapping[Place, int]) -> Polled:
    """What lies before the first offset, by place, that cannot be read. Pure."""
    return polled._replace(
        messages=[
            each
            for each in polled.messages
            if (at := bad.get((each.topic, each.partition))) is None or (each.offset or 0) < at
        ],
        ends={place: min(end, bad.get(place, end)) for place, end in polled.ends.items()},
    )
