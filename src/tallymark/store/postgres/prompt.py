"""A connection that waits only so long for an answer: for a thread that others wait for.

A server that stands still (a frozen machine, a stalled disk) keeps its connections and says nothing, and neither
keepalives nor its own time-outs tell. Who gives up has lost the connection: what was asked may still be done. The server
is asked to end it, for it does not notice that nobody waits: each try would leave a session behind, until it has no more.
"""

from __future__ import annotations

import logging
import time
from typing import Any, TypeVar

import psycopg
from psycopg.abc import PQGen

from tallymark.store.postgres.connection import Connection, connect

log = logging.getLogger("tallymark.store")

ANSWER_S = 5
_CANCEL_S = 1

_RV = TypeVar("_RV")


class PromptConnection(psycopg.Connection[tuple[Any, ...]]):
    """Each statement is answered within ANSWER_S, or the connection is closed and an OperationalError raised."""

    def wait(self, gen: PQGen[_RV], *args: Any, **kwargs: Any) -> _RV:
        return super().wait(self._within(gen, time.monotonic() + ANSWER_S), *args, **kwargs)

    def _within(self, gen: PQGen[_RV], deadline: float) -> PQGen[_RV]:
        """The same steps. psycopg takes one whenever the socket is ready, and every tenth of a second at least."""
        try:
            waits_for = next(gen)
            while True:
                ready = yield waits_for
                if not ready and time.monotonic() > deadline:
                    self._give_up()
                    raise psycopg.OperationalError(f"no answer within {ANSWER_S} seconds")
                waits_for = gen.send(ready)
        except StopIteration as ended:
            answer: _RV = ended.value
            return answer

    def _give_up(self) -> None:
        """What waits for a lock or for a standby ends so; what waits for a disk does not."""
        if psycopg.capabilities.has_cancel_safe():  # an older libpq would wait for the server without end
            try:
                self.cancel_safe(timeout=_CANCEL_S)
            except psycopg.Error as error:
                log.debug("could not cancel: %s", error, extra={"action": "store.cancel"})
        self.close()


def connect_promptly(url: str, *, application: str, autocommit: bool = True) -> Connection:
    """As `connect`; the same holds for being let in."""
    return connect(
        url, application=application, autocommit=autocommit, timeout_s=ANSWER_S, kind=PromptConnection
    )
