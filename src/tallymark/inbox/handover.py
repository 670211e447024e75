"""Batches on their way from the thread that reads Kafka to the one that keeps them: in order, bounded in bytes.

The batch being kept stays here until it is done, so that whoever takes over from a keeper that hangs finds it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from tallymark.inbox.ports import Place, Received


@dataclass(frozen=True, slots=True)
class Batch:
    """Messages in the order of the log, with where each place stands before and after them.

    The start is where the batch before it ended, or where the position was taken: one that starts elsewhere than the
    position stands has something missing before it, and is refused (pitfall 15).
    """

    messages: Sequence[Received]
    starts: Mapping[Place, int]
    ends: Mapping[Place, int]
    leader_epochs: Mapping[Place, int]
    # The epochs under which they were read.
    epochs: Mapping[Place, int]
    bytes: int = 0

    def only(self, places: Collection[Place]) -> Batch:
        """The part of it that belongs to these places."""
        if len(places) == len(self.epochs):
            return self
        return Batch(
            [each for each in self.messages if (each.topic, each.partition) in places],
            {place: start for place, start in self.starts.items() if place in places},
            {place: end for place, end in self.ends.items() if place in places},
            self.leader_epochs,
            {place: epoch for place, epoch in self.epochs.items() if place in places},
        )

    def halves(self) -> tuple[Batch, Batch]:
        """Two smaller ones, the first to be kept before the second."""
        middle = len(self.messages) // 2
        head, tail = self.messages[:middle], self.messages[middle:]
        ends = {(each.topic, each.partition): (each.offset or 0) + 1 for each in head}
        # What the first half brings to its end is no part of the second: a step of nothing says nothing.
        left = {place: end for place, end in self.ends.items() if end > ends.get(place, self.starts[place])}
        return (
            Batch(
                head,
                {place: self.starts[place] for place in ends},
                ends,
                self.leader_epochs,
                {place: self.epochs[place] for place in ends},
            ),
            Batch(
                tail,
                {place: ends.get(place, self.starts[place]) for place in left},
                left,
                self.leader_epochs,
                {place: self.epochs[place] for place in left},
            ),
        )


class Handover:
    """A short queue between two threads."""

    def __init__(self, max_bytes: int, max_batches: int = 1) -> None:
        self._max_bytes = max_bytes
        self._max_batches = max_batches
        self._waiting: deque[Batch] = deque()
        self._current: Batch | None = None
        self._taken_at = 0.0
        self._closed = False
        self._changed = threading.Condition()

    @property
    def full(self) -> bool:
        """Whether the reader should stop reading for now."""
        with self._changed:
            return self._is_full()

    def wait_for_room(self, timeout_s: float) -> bool:
        """Until the reader may read on; False where there is still no room then."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._is_full(), timeout_s)

    def let_finish(self, fewer_than: int, within_s: float) -> None:
        """Wait for a small batch that is being kept: what comes meanwhile is then one batch, and not several.

        A transaction of many partitions arrives in pieces. Read as they come, each would wait for those before it.
        """
        with self._changed:
            current = self._current
            if current is None or len(current.messages) >= fewer_than:
                return
            left = self._taken_at + within_s - time.monotonic()
            if left > 0:
                self._changed.wait_for(lambda: self._current is not current, left)

    def _is_full(self) -> bool:
        waiting = sum(batch.bytes for batch in self._waiting)
        return len(self._waiting) >= self._max_batches or waiting >= self._max_bytes

    def put(self, batch: Batch) -> None:
        with self._changed:
            self._waiting.append(batch)
            self._changed.notify_all()

    def take(self, timeout_s: float) -> Batch | None:
        """The next batch to keep (again the same one, if nobody said that it is done)."""
        with self._changed:
            if self._current is None:
                if not self._waiting:
                    self._changed.wait(timeout_s)
                if not self._waiting or self._closed:
                    return None
                self._current, self._taken_at = self._waiting.popleft(), time.monotonic()
                self._changed.notify_all()
            return self._current

    def close(self) -> None:
        """Begin nothing more. What waits was not kept, so its position has not moved: it is read again."""
        with self._changed:
            self._closed = True
            self._waiting.clear()
            self._changed.notify_all()

    def done(self, batch: Batch) -> None:
        """It is kept, or no longer ours to keep. From a keeper that was replaced it counts for nothing."""
        with self._changed:
            if self._current is batch:
                self._current = None
                self._changed.notify_all()

    def wait_while_busy(self, places: Collection[Place] | None, timeout_s: float) -> bool:
        """Until the batch being kept has nothing of these places (None: of any); False when it took too long.

        After the end, for which all were waited, nobody waits for some of them again: the epoch refuses what comes late.
        """
        deadline = time.monotonic() + (0.0 if self._closed and places is not None else timeout_s)

        def busy() -> bool:
            if self._current is None:
                return False
            return places is None or not self._current.epochs.keys().isdisjoint(places)

        with self._changed:
            while busy():
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                self._changed.wait(left)
        return True
