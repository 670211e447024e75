"""Free loopback ports for servers that keep theirs from one start to the next.

They are taken below the kernel's range for outgoing connections, so that a remembered port is seldom in use
by an unrelated client when the server comes back. A port can still be lost between the look and the bind:
whoever starts a server must be ready to ask again.
"""

from __future__ import annotations

import random
import socket
from collections.abc import Collection

from tallymark.errors import Problem

HOST = "127.0.0.1"
_LOWEST, _HIGHEST = 20_000, 32_000


def is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As the servers do: connections of an earlier life in TIME_WAIT do not make a port taken.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True


def free_ports(count: int, *, besides: Collection[int] = ()) -> list[int]:
    """`count` different ports that nobody listens on now, none of them among `besides`."""
    found: list[int] = []
    candidates = random.SystemRandom().sample(range(_LOWEST, _HIGHEST), _HIGHEST - _LOWEST)
    for port in candidates:
        if len(found) == count:
            return found
        if port not in besides and is_free(port):
            found.append(port)
    raise Problem(f"no {count} free ports on {HOST} between {_LOWEST} and {_HIGHEST}")
