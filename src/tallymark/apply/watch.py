"""What one thread is handling now, for another thread to see: a handler that hangs cannot say so itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from tallymark.inbox.ports import Queued

Clock = Callable[[], float]

# A call that takes longer is slow: others should not wait for their turn behind it.
SLOW_S = 0.05


class Handling(NamedTuple):
    """One call of a handler that has not come back yet. `messages` are several where the handler takes lists."""

    messages: Sequence[Queued]
    since: float
    timeout_s: float


class Watch:
    """Written by the thread that applies, read by one that watches. One assignment each way: no lock is needed.

    `notes_slow` is for who asks for `slow_keys` after each round: where nobody does, they would pile up.
    """

    __slots__ = ("_abandoned", "_clock", "_handling", "_notes_slow", "_slow")

    def __init__(self, clock: Clock = time.monotonic, *, notes_slow: bool = False) -> None:
        self._clock = clock
        self._handling: Handling | None = None
        self._notes_slow = notes_slow
        self._slow: set[int] = set()
        # Set by the watcher: nobody waits for this thread any more, and it must call no handler when it wakes.
        self._abandoned = False

    def began(self, messages: Sequence[Queued], timeout_s: float) -> None:
        self._handling = Handling(messages, self._clock(), timeout_s)

    def ended(self) -> None:
        handling, self._handling = self._handling, None
        if not self._notes_slow:
            return
        # A list takes as long as it is: that says nothing of its keys. Without a key nothing comes behind it.
        if handling is None or len(handling.messages) > 1 or handling.messages[0].message.key is None:
            return
        if self._clock() - handling.since > SLOW_S:
            self._slow.add(handling.messages[0].key_hash)

    def slow_keys(self) -> set[int]:
        """Keys of messages that took long since this was asked last. Asked by the thread that applies."""
        slow, self._slow = self._slow, set()
        return slow

    @property
    def handling(self) -> Handling | None:
        """The call under way."""
        return self._handling

    def overdue(self, now: float) -> Queued | None:
        """The message whose handler has taken longer than it may; of a list its first, see `handling`."""
        handling = self._handling
        if handling is None or now - handling.since <= handling.timeout_s:
            return None
        return handling.messages[0]

    def abandon(self, overdue: Queued) -> Handling | None:
        """Give this thread up, which hangs on this message. None where it came back, and is busy with another."""
        handling = self._handling
        if handling is None or handling.messages[0] is not overdue:
            return None
        self._abandoned = True
        return handling

    def is_abandoned(self) -> bool:
        """Whether another thread has taken over: what this one still does counts for nothing."""
        return self._abandoned
