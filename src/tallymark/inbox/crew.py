"""Threads that apply, and a watch over them: one whose handler hangs is left behind, and another takes its place.

A hung thread cannot be stopped. Its database session is ended instead, so that nothing it does can commit when it
wakes; the message that it hung on counts as a failed attempt, and the work goes on with a fresh thread.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from tallymark.apply.watch import Watch
from tallymark.errors import Problem
from tallymark.inbox.ports import InboxStore, Queued

log = logging.getLogger("tallymark.inbox")

# Threads that hang still. They cannot be ended one by one: with more of them the process ends, and is started again.
MOST_LEFT_BEHIND = 32


class Hand(Protocol):
    """A keeper or a worker."""

    store: InboxStore
    watch: Watch
    trouble: str | None

    def suspect(self, messages: Sequence[Queued], reason: str) -> None:
        """These messages hung in the thread that this one replaces."""


@dataclass(slots=True)
class _Place:
    name: str
    make: Callable[[], Hand]
    run: Callable[[Hand], None]
    hand: Hand
    thread: threading.Thread


class Crew:
    """Some hands, each in a thread of its own."""

    def __init__(self) -> None:
        self._places: list[_Place] = []
        self._left_behind: list[threading.Thread] = []

    def hire(self, name: str, make: Callable[[], Hand], run: Callable[[Hand], None]) -> None:
        """Start a thread that does `run` with what `make` gives; the same again where one hangs."""
        hand = make()
        place = _Place(name, make, run, hand, threading.Thread())
        self._start(place)
        self._places.append(place)

    @property
    def troubles(self) -> list[str]:
        return [place.hand.trouble for place in self._places if place.hand.trouble]

    @property
    def alive(self) -> bool:
        return all(place.thread.is_alive() for place in self._places)

    def look_after(self) -> int:
        """Leave behind whoever hangs; gives back how many did. Raises where too many hang: only an end frees them."""
        hung = 0
        for place in self._places:
            overdue = place.hand.watch.overdue(time.monotonic())
            if overdue is not None and self._replace(place, overdue):
                hung += 1
        self._left_behind = [thread for thread in self._left_behind if thread.is_alive()]
        if len(self._left_behind) > MOST_LEFT_BEHIND:
            raise Problem(
                f"{len(self._left_behind)} threads hang in their handlers, and each holds what it holds",
                remedy="give what the handlers wait for a time-out of its own; started again, the inbox goes on",
            )
        return hung

    def join(self, timeout_s: float) -> bool:
        """Whether all of them ended in time."""
        deadline = time.monotonic() + timeout_s
        for place in self._places:
            place.thread.join(max(0.05, deadline - time.monotonic()))
        return not any(place.thread.is_alive() for place in self._places)

    def _start(self, place: _Place) -> None:
        place.thread = threading.Thread(target=place.run, args=(place.hand,), name=place.name, daemon=True)
        place.thread.start()

    def _replace(self, place: _Place, overdue: Queued) -> bool:
        handling = place.hand.watch.abandon(overdue)
        if handling is None:
            return False  # it came back after all
        first = handling.messages[0].message
        reason = f"its handler did not come back within {handling.timeout_s:g} s"
        log.critical(
            "%s/%d offset %s, id %s: %s; the thread is left behind, its transaction is ended",
            first.topic,
            first.partition,
            first.offset,
            first.named or first.id,
            reason,
            extra={"action": "inbox.hung"},
        )
        old = place.hand.store
        fresh = place.make()
        fresh.suspect(handling.messages, reason)
        self._left_behind.append(place.thread)
        place.hand = fresh

        def take_over(hand: Hand) -> None:
            # First the old session must be gone: until then it holds the rows that the new one needs.
            while True:
                try:
                    old.abort_other()
                    break
                except Exception as error:  # noqa: BLE001 - the batch or key must not be left to nobody
                    log.warning("cannot end the old session yet: %s", error, extra={"action": "inbox.hung"})
                    time.sleep(1.0)
            place.run(hand)

        place.thread = threading.Thread(target=take_over, args=(fresh,), name=place.name, daemon=True)
        place.thread.start()
        return True
