"""Keeps the outbox's file in bounds: what was sent, or parked and so copied, is deleted when its time is over.

SQLite has no partitions to drop; rows go a bounded number at a time, and their pages are used again.
"""

from __future__ import annotations

import logging
from datetime import timedelta

from tallymark.errors import TallymarkError
from tallymark.store.sqlite.session import SqliteSession

log = logging.getLogger("tallymark.retention")

_AT_A_TIME = 5_000


class SqliteRetention:
    """One round of housekeeping at a time, on a connection of its own."""

    def __init__(
        self, path: str, *, schema: str = "tallymark", keep: timedelta, keep_names: timedelta | None = None
    ) -> None:
        self._keep_s = keep.total_seconds()
        self._keep_names_s = None if keep_names is None else keep_names.total_seconds()
        self._db = SqliteSession(path, schema=schema, file="relay.sql")

    def run_once(self) -> int:
        """Delete what nobody needs any more; gives back how many messages that were."""
        try:
            gone = 0
            while (step := self._step()) > 0:
                gone += step
            self._db.rows("expire_parked", {"keep": self._keep_s})
            self._db.rows("expire_batches", {"keep": self._keep_s})
            if self._keep_names_s is not None:
                self._db.rows("expire_names", {"keep": self._keep_names_s})
            return gone
        finally:
            self._db.close()

    def run_safely(self) -> None:
        """For a loop that must go on: what goes wrong is logged, and tried again the next time."""
        try:
            gone = self.run_once()
        except TallymarkError as error:
            log.warning("retention: %s", error.sentence, extra={"action": "retention.failed"})
            return
        if gone:
            log.info("deleted %d messages", gone, extra={"action": "retention.drop"})

    def _step(self) -> int:
        with self._db.transaction():
            needed = self._db.row("needed")[0]
            return self._db.count("expire", {"needed": needed, "keep": self._keep_s, "limit": _AT_A_TIME})
