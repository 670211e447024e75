"""How the process is set for batches: the collector, the switch between threads, what becomes of freed memory.

Of the whole process, so each setting leaves alone what somebody has chosen otherwise, where that can be told.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from contextlib import suppress

# A batch is tens of thousands of tuples that live for a moment and hold no cycles. At its own pace the collector looks
# at all of them again and again, and takes as much time as everything else that is done to a message.
_COLLECT_EVERY = 50_000
# After each piece that it has written, the thread that keeps asks for the interpreter again. At Python's own 5 ms it
# waits for the one that reads: a tenth of the rate.
_SWITCH_S = 0.001
# What is larger is a mapping of its own, and given back when it is freed. By itself glibc raises this bound to what it
# has seen freed, a batch among it, and keeps all that is smaller: a tenth of the process's memory.
_MAPPED_FROM = 128 * 1024
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


def tune_for_batches() -> None:
    """Once per process is enough; again does no harm."""
    _collect_rarely()
    _switch_often()
    _give_back()


def _collect_rarely() -> None:
    young, middle, old = gc.get_threshold()
    if 0 < young < _COLLECT_EVERY:  # somebody who chose more, or switched it off, knows why
        gc.set_threshold(_COLLECT_EVERY, middle, old)


def _switch_often() -> None:
    if sys.getswitchinterval() > _SWITCH_S:
        sys.setswitchinterval(_SWITCH_S)


def _give_back() -> None:
    if any(name.startswith("MALLOC_") for name in os.environ) or "glibc.malloc" in os.environ.get(
        "GLIBC_TUNABLES", ""
    ):
        return
    with suppress(OSError, AttributeError):  # another C library
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, _MAPPED_FROM)
        mallopt(_M_TRIM_THRESHOLD, _MAPPED_FROM)
