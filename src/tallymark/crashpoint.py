"""Named points at which a test can stop or kill this very process.

Off in production: `reached` is then a function that does nothing. Armed by the environment:

    TALLYMARK_CRASHPOINT=relay.before_mark          kill -9 ourselves the first time we get there
    TALLYMARK_CRASHPOINT=relay.before_mark:3        ... the third time
    TALLYMARK_CRASHPOINT=relay.before_mark:1:stop   SIGSTOP instead: a test can look around, then continue us
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable

VARIABLE = "TALLYMARK_CRASHPOINT"

_SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "term": signal.SIGTERM}


def _nothing(_point: str) -> None:
    return None


def armed(spec: str) -> Callable[[str], None]:
    """The function that fires at the point that `spec` names."""
    name, _, rest = spec.partition(":")
    count, _, action = rest.partition(":")
    remaining = int(count or 1)
    sign = _SIGNALS[action or "kill"]
    lock = threading.Lock()

    def fire(point: str) -> None:
        nonlocal remaining
        if point != name:
            return
        with lock:
            remaining -= 1
            due = remaining == 0
        if due:
            sys.stderr.write(f"crash point {point}: {sign.name}\n")
            sys.stderr.flush()
            # To this very thread: one for the process may be taken by another thread while this one runs on.
            signal.pthread_kill(threading.get_ident(), sign)

    return fire


reached: Callable[[str], None] = armed(os.environ[VARIABLE]) if os.environ.get(VARIABLE) else _nothing
