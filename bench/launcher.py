"""Runs one command and reports what it alone used. A script of its own, on purpose: see below.

    launcher.py REPORT COMMAND…     writes {"seconds", "cpu_seconds", "peak_rss", "status"} to the file REPORT

On Linux a process's peak memory starts at that of the process which forked it, so a command started
straight from the benchmark would be charged for the benchmark's own memory. This process imports next to
nothing, and so charges next to nothing. The CPU time covers the command and every descendant that it waited
for.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time

_RSS_UNIT = 1 if sys.platform == "darwin" else 1024  # macOS counts bytes, Linux KiB


def main(report: str, command: list[str]) -> int:
    """Run the command to its end, passing SIGTERM on to it."""
    # Held back until there is somebody to pass it on to: a launcher that dies first orphans the command.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    started = time.monotonic()
    pid = os.posix_spawnp(command[0], command, os.environ, setsigmask=[])
    signal.signal(signal.SIGTERM, lambda number, _frame: os.kill(pid, number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    _, status, usage = os.wait4(pid, 0)
    figures = {
        "seconds": time.monotonic() - started,
        "cpu_seconds": usage.ru_utime + usage.ru_stime,
        "peak_rss": usage.ru_maxrss * _RSS_UNIT,
        "status": os.waitstatus_to_exitcode(status),
    }
    with open(report, "w", encoding="utf-8") as out:
        json.dump(figures, out)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
