"""What a process does now and then beside its work: partitions made ahead, old ones dropped (P7).

In a thread of its own: housekeeping may wait for a lock, heartbeats may not.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

Upkeep = Callable[[], None]


def keep_house(station: str, done: threading.Event, upkeep: Upkeep, every_s: float) -> None:
    """At once, for writers may have waited for it, and then now and then until told that it is over."""
    log = logging.getLogger(f"tallymark.{station}")
    pause_s = 0.0
    while not done.wait(pause_s):
        pause_s = every_s
        try:
            upkeep()
        except Exception:  # tomorrow's partitions must not depend on today's luck
            log.exception("housekeeping failed", extra={"action": f"{station}.upkeep"})
