"""What a process does now and then beside its work: partitions made ahead, old ones dropped (P7).

In a thread of its own: housekeeping may wait for a lock, heartbeats may not.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

Upkeep = Callable[[], None]


def keep_house(station: str, done: threading.Event, upkeep: Upkeep, every_s: float) -> None:
    """Until told that it is over."""
    log = logging.getLogger(f"tallymark.{station}")
    while not done.wait(every_s):
        try:
            upkeep()
        except Exception:  # tomorrow's partitions must not depend on today's luck
            log.exception("housekeeping failed", extra={"action": f"{station}.upkeep"})
