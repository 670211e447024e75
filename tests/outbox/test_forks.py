"""Servers that fork their workers (gunicorn, Celery, uWSGI): two messages of one id are one message to a consumer."""

from __future__ import annotations

import subprocess
import sys

WORKERS, EACH = 4, 1000
# Workers forked from a process that has drawn before; what they drew, 16 bytes each.
FORKING = f"""
import os, sys
from tallymark.message import new_id
new_id()
for _ in range({WORKERS}):
    if os.fork() == 0:
        os.write(1, b"".join(new_id().bytes for _ in range({EACH})))
        os._exit(0)
for _ in range({WORKERS}):
    os.wait()
"""


def test_p1_workers_of_one_fork_draw_ids_of_their_own() -> None:
    ran = subprocess.run([sys.executable, "-c", FORKING], capture_output=True, check=True)
    drawn = [ran.stdout[at : at + 16] for at in range(0, len(ran.stdout), 16)]
    assert len(drawn) == WORKERS * EACH
    # The halves that chance decides: the other one is the clock's, and two workers share a millisecond often enough.
    assert len({each[8:] for each in drawn}) == len(drawn)
