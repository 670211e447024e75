"""Work that is one step behind: at most one piece is under way, in a thread of its own, and whoever hands in the next one
waits for it first. What went wrong with a piece is raised to whoever comes next, and nothing is done after it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress

Work = Callable[[], object]


class OneBehind:
    """A line of at most one."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._last: Future[None] | None = None
        self._lock = threading.Lock()

    def hand_in(self, work: Work) -> None:
        """Do this next, after what is under way; raises what went wrong there, and then this is not done."""
        with self._lock:
            self.settle()
            self._begin(work)

    def if_idle(self, work: Work) -> None:
        """Do this where nothing is under way and nobody waits to hand something in; else leave it."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            if self._last is None or self._last.done():
                self.settle()
                self._begin(work)
        finally:
            self._lock.release()

    def settle(self) -> None:
        """Wait for what is under way, and raise what went wrong."""
        if (error := self.finish()) is not None:
            raise error

    def refuse_failed(self) -> None:
        """Raise what went wrong already; waits for nothing."""
        if self._last is not None and self._last.done():
            self.settle()

    def is_over(self, within_s: float) -> bool:
        """Whether what is under way ends in this time."""
        with suppress(TimeoutError):
            self.finish(within_s)
            return True
        return False

    @property
    def failure(self) -> BaseException | None:
        """What went wrong with the last piece, where it is over; waits for nothing."""
        return self._last.exception(0) if self._last is not None and self._last.done() else None

    def finish(self, within_s: float | None = None) -> BaseException | None:
        """Wait for what is under way. Gives back what went wrong; whoever begins anew has heard of it."""
        return None if self._last is None else self._last.exception(within_s)

    def leave_behind(self, error: BaseException) -> None:
        """Nobody waits any more for what is under way: it counts as ended, by this error."""
        if self._last is not None:
            with suppress(InvalidStateError):  # it came back in the last moment
                self._last.set_exception(error)

    def begin_anew(self) -> None:
        """Forget how the last piece went: it is over."""
        self.finish()
        self._last = None

    def _begin(self, work: Work) -> None:
        # A daemon: what hangs must not keep the process from ending.
        self._last = Future()
        threading.Thread(target=_done, args=(work, self._last), name=self._name, daemon=True).start()


def _done(work: Work, told: Future[None]) -> None:
    error = None
    try:
        work()
    except BaseException as met:  # noqa: BLE001 - raised to whoever comes next
        error = met
    with suppress(InvalidStateError):  # left behind meanwhile
        told.set_result(None) if error is None else told.set_exception(error)
