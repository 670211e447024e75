"""What a process does now and then beside its work: partitions made ahead, saved ids dropped with the log (P7)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

log = logging.getLogger("tallymark.inbox")

Upkeep = Callable[[], None]


def keep_house(done: threading.Event, upkeep: Upkeep, every_s: float) -> None:
    """Until told that it is over."""
    while not done.wait(every_s):
        try:
            upkeep()
        except Exception:  # tomorrow's partitions must not depend on today's luck
            log.exception("housekeeping", extra={"action": "inbox.upkeep"})
