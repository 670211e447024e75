"""Which processes can be known to have ended: those of this boot of this machine, in this space of process numbers.

A host's name says little: containers share one, and a machine that was set up from another's image has it too. Where a
number means nothing, its process may live: its lease decides (pitfall 23).
"""

from __future__ import annotations

import hashlib
import os
import socket
from functools import cache
from pathlib import Path

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_NUMBERS = Path("/proc/self/ns/pid")


def of_this_machine(owner: str) -> str:
    """An owner's name (host, process, token) with this boot and this space of numbers, where they can be told."""
    return f"{owner}-{here}" if (here := _here()) else owner


def lives_here(owner: str) -> bool | None:
    """Whether this process runs; None where nobody here can tell."""
    name, _, token = owner.rpartition(":")
    host, _, pid = name.rpartition(":")
    boot = token.partition("-")[2]
    if not boot or boot != _here() or host != socket.gethostname() or not pid.isdigit():
        return None
    return _runs(int(pid))


def process_here() -> str:
    """This very process, short enough for a file's name: this boot, this space of numbers, its number."""
    return f"{_here() or 'unknown'}-{os.getpid()}"


def has_ended(process: str) -> bool:
    """Whether a process that was named so has ended; False where nobody here can tell."""
    boot, _, pid = process.partition("-")
    return bool(_here()) and boot == _here() and pid.isdigit() and not _runs(int(pid))


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


@cache
def _here() -> str:
    try:
        said = f"{_BOOT.read_text().strip()} {_NUMBERS.readlink()}"
    except OSError:  # no such thing on this system
        return ""
    return hashlib.sha256(said.encode()).hexdigest()[:8]
