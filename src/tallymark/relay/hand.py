"""A thread that does one thing at a time for another.

Not an executor's: the process would wait for it when it ends, however long a database stands still.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Hand:
    """Started with the first piece of work."""

    def __init__(self, name: str) -> None:
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def submit(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()

        def do() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(work(*args, **kwargs))
            except BaseException as error:  # noqa: BLE001 - whoever asks for the result has it
                future.set_exception(error)

        self._work.put(do)
        if not self._thread.is_alive():
            self._thread.start()
        return future

    def dismiss(self, *, wait: bool = False) -> None:
        """It takes nothing more; what it is at, it ends."""
        self._work.put(None)
        if wait and self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while (do := self._work.get()) is not None:
            do()
            del (
                do
            )  # and with it what came of it, which may be a whole slice: the next work may be long in coming
