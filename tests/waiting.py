"""Wait for a condition, with a deadline. Tests never sleep for a guessed time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

# A look may cost as much as a new session of PostgreSQL: the longer it takes, the less often.
_SOONEST_S, _LATEST_S = 0.01, 0.15
_SHARE = 0.1
_STOOD_STILL_S = 5.0


def wait_for(condition: Callable[[], T], *, within: float = 60.0, what: str = "") -> T:
    """What `condition` returns, as soon as that is true; after `within` seconds an error that says `what`.

    A machine that stands still for longer than a look should take has not waited: what we wait for stood still too.
    """
    waited, looked = 0.0, time.monotonic()
    while True:
        value = condition()
        if value:
            return value
        last, looked = looked, time.monotonic()
        waited += min(looked - last, _STOOD_STILL_S)
        if waited > within:
            name = what or getattr(condition, "__qualname__", repr(condition))
            raise AssertionError(f"not within {within:g} s: {name} (last seen: {value!r})")
        # The only sleep: between two looks at a condition, before its deadline.
        time.sleep(min(max(_SOONEST_S, _SHARE * waited), _LATEST_S))
