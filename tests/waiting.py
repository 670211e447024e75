"""Wait for a condition, with a deadline. Tests never sleep for a guessed time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_LOOK_AGAIN_S = 0.02


def wait_for(condition: Callable[[], T], *, within: float = 20.0, what: str = "") -> T:
    """What `condition` returns, as soon as that is true; after `within` seconds an error that says `what`."""
    deadline = time.monotonic() + within
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            name = what or getattr(condition, "__qualname__", repr(condition))
            raise AssertionError(f"not within {within:g} s: {name} (last seen: {value!r})")
        time.sleep(_LOOK_AGAIN_S)
