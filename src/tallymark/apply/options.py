"""What a handler may choose about failure and pace, and what an inbox chooses for all of its handlers.

None means: as the inbox says. Every value is checked where it is given, with what to write instead.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal

from tallymark.errors import UsageError
from tallymark.policy import Backoff

OnDead = Literal["hold-key", "skip"]
Order = Literal["key", "any"]

Permanent = type[Exception] | tuple[type[Exception], ...]


@dataclass(frozen=True, slots=True)
class Defaults:
    """How an inbox's handlers fail and how fast they go, unless one says otherwise."""

    # After this many failed attempts a message is dead.
    attempts: int = 10
    backoff: Backoff = field(default_factory=lambda: Backoff(first_s=1.0, cap_s=300.0))
    # Whether a dead message's key waits for an operator, or goes on without it.
    on_dead: OnDead = "hold-key"
    # Errors after which trying again is of no use.
    permanent: tuple[type[Exception], ...] = ()
    # A call that takes longer is reported, and its transaction ended.
    handler_timeout_s: float = 60.0
    # Messages a second, per handler and process.
    max_rate: float | None = None

    def changed(
        self,
        *,
        attempts: int | None = None,
        backoff: Backoff | tuple[float, float] | None = None,
        on_dead: OnDead | None = None,
        permanent: Permanent = (),
        handler_timeout: float | timedelta | None = None,
        max_rate: float | None = None,
    ) -> Defaults:
        """The same with what was given instead; permanent errors are added to those that are named already."""
        return Defaults(
            attempts=self.attempts if attempts is None else _attempts(attempts),
            backoff=self.backoff if backoff is None else _backoff(backoff),
            on_dead=self.on_dead if on_dead is None else _on_dead(on_dead),
            permanent=self.permanent + _permanent(permanent),
            handler_timeout_s=self.handler_timeout_s
            if handler_timeout is None
            else _timeout(handler_timeout),
            max_rate=self.max_rate if max_rate is None else _max_rate(max_rate),
        )


def checked_order(order: Any) -> Order:
    if order == "key":
        return "key"
    if order == "any":
        return "any"
    raise UsageError(f"order={order!r} is not known", remedy='use "key" or "any"')


def _attempts(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise UsageError(f"attempts={value!r} is not a number from 1 up", remedy="as in attempts=10")
    return value


def _backoff(value: Any) -> Backoff:
    if isinstance(value, tuple) and len(value) == 2 and all(map(_is_number, value)):
        value = Backoff(first_s=float(value[0]), cap_s=float(value[1]))
    if not isinstance(value, Backoff) or not 0 < value.first_s <= value.cap_s or not 0 <= value.jitter <= 1:
        raise UsageError(
            f"backoff={value!r} is no back-off",
            remedy="give the first and the longest wait in seconds, as in backoff=(1, 300)",
        )
    return value


def _on_dead(value: Any) -> OnDead:
    if value == "hold-key":
        return "hold-key"
    if value == "skip":
        return "skip"
    raise UsageError(f"on_dead={value!r} is not known", remedy='use "hold-key" or "skip"')


def _permanent(value: Any) -> tuple[type[Exception], ...]:
    given = value if isinstance(value, tuple | list | set | frozenset) else (value,)
    for each in given:
        if not isinstance(each, type) or not issubclass(each, Exception):
            raise UsageError(
                f"permanent={each!r} is not an exception class",
                remedy="as in permanent=(UnknownAccount, ValueError)",
            )
    return tuple(given)


def _timeout(value: Any) -> float:
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if not _is_number(seconds) or seconds <= 0:
        raise UsageError(
            f"handler_timeout={value!r} is no time",
            remedy="give seconds or a timedelta, as in handler_timeout=30",
        )
    return float(seconds)


def _max_rate(value: Any) -> float:
    if not _is_number(value) or value <= 0:
        raise UsageError(
            f"max_rate={value!r} is no rate", remedy="give messages a second, as in max_rate=100"
        )
    return float(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value < float("inf")
