"""Handlers: which function applies a topic's messages, and how. Declared once, checked where they are declared.

@inbox.handler("transfers", model=Transfer, once=UniqueConstraint("ledger_entry_pkey"))
def apply(message, tx):
    tx.execute("insert into ledger_entry …")
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

from tallymark.apply.decoding import Decode, Decoder, decoder_for
from tallymark.apply.options import Defaults, OnDead, Order, Permanent, checked_order
from tallymark.apply.schemes import SavedId, Scheme, UniqueConstraint, Version
from tallymark.errors import UsageError
from tallymark.outbox.outbox import check_topic
from tallymark.policy import Backoff

Function = Callable[[Any, Any], object]
F = TypeVar("F", bound=Function)

_SAVED_ID = SavedId()


@dataclass(frozen=True, slots=True)
class Handler:
    """What is done with the messages of one topic."""

    function: Function
    topic: str
    decoder: Decoder
    # Whether that is a function of the team's own, which may do anything.
    own_decode: bool
    # Whether the function takes a list of messages instead of one.
    batch: bool
    once: Scheme
    # Whether a failed message holds up the later ones of its key.
    order: Order
    permanent: tuple[type[Exception], ...]
    attempts: int
    backoff: Backoff
    on_dead: OnDead
    handler_timeout_s: float
    max_rate: float | None

    @property
    def name(self) -> str:
        return getattr(self.function, "__qualname__", type(self.function).__qualname__)


class Handlers:
    """The handlers of one inbox, by topic."""

    def __init__(self, defaults: Defaults | None = None) -> None:
        self.defaults = defaults or Defaults()
        self._handlers: dict[str, Handler] = {}

    @property
    def topics(self) -> tuple[str, ...]:
        """What the inbox subscribes to, in the order of declaration."""
        return tuple(self._handlers)

    @property
    def unordered(self) -> tuple[str, ...]:
        """Topics whose messages may be applied in any order."""
        return tuple(topic for topic, each in self._handlers.items() if each.order == "any")

    @property
    def versioned(self) -> tuple[str, ...]:
        """Topics of which something older is passed over. A precondition (`when=`) may mean anything else."""
        return tuple(
            topic
            for topic, each in self._handlers.items()
            if isinstance(each.once, Version) and each.once.when is None
        )

    def of(self, topic: str) -> Handler:
        """The handler of a topic that has one."""
        found = self._handlers.get(topic)
        if found is None:
            known = ", ".join(self._handlers) or "none at all"
            raise UsageError(f"no handler for topic {topic!r}", remedy=f"there are handlers for: {known}")
        return found

    def handler(
        self,
        topic: str,
        *,
        model: Any = None,
        decode: Decode | None = None,
        batch: bool = False,
        once: Scheme = _SAVED_ID,
        order: Order = "key",
        permanent: Permanent = (),
        attempts: int | None = None,
        backoff: Backoff | tuple[float, float] | None = None,
        on_dead: OnDead | None = None,
        handler_timeout: float | timedelta | None = None,
        max_rate: float | None = None,
    ) -> Callable[[F], F]:
        """Declare a function `(message, tx)` as the handler of a topic; with batch=True it takes `(messages, tx)`."""
        check_topic(topic)
        chosen = self.defaults.changed(
            attempts=attempts,
            backoff=backoff,
            on_dead=on_dead,
            permanent=permanent,
            handler_timeout=handler_timeout,
            max_rate=max_rate,
        )
        decoder = decoder_for(topic, model, decode)
        if not isinstance(batch, bool):
            raise UsageError(f"batch={batch!r} is neither True nor False")
        scheme = _checked_scheme(once, batch)
        ordered = checked_order(order)

        def declare(function: F) -> F:
            _check_function(function, topic, "messages" if batch else "message")
            if topic in self._handlers:
                raise UsageError(
                    f"topic {topic} has two handlers: {self._handlers[topic].name} and "
                    f"{getattr(function, '__qualname__', function)}",
                    remedy="call the second from the first, or give it an inbox of its own",
                )
            self._handlers[topic] = Handler(
                function=function,
                topic=topic,
                decoder=decoder,
                own_decode=decode is not None,
                batch=batch,
                once=scheme,
                order=ordered,
                permanent=chosen.permanent,
                attempts=chosen.attempts,
                backoff=chosen.backoff,
                on_dead=chosen.on_dead,
                handler_timeout_s=chosen.handler_timeout_s,
                max_rate=chosen.max_rate,
            )
            return function

        return declare


def _checked_scheme(once: Any, batch: bool) -> Scheme:
    if isinstance(once, type) or not isinstance(once, SavedId | UniqueConstraint | Version):
        shown = once.__name__ if isinstance(once, type) else repr(once)
        raise UsageError(
            f"once={shown} is not a scheme",
            remedy='use SavedId(), UniqueConstraint("…_pkey") or Version(…)',
        )
    if batch and isinstance(once, Version) and once.when is not None:
        raise UsageError(
            "Version(when=…) cannot look at a list: earlier messages of the list have had no effect yet",
            remedy="leave batch=True out, or use another form of Version",
        )
    return once


def _check_function(function: Any, topic: str, first: str) -> None:
    if not callable(function) or isinstance(function, type):
        raise UsageError(
            f"the handler of topic {topic} is not a function", remedy=f"declare def handle({first}, tx)"
        )
    called = (function, type(function).__call__)
    if any(inspect.iscoroutinefunction(each) or inspect.isasyncgenfunction(each) for each in called):
        raise UsageError(
            f"the handler of topic {topic} is a coroutine function; handlers are plain functions",
            remedy="write def instead of async def: many run side by side in workers, and the transaction is synchronous",
        )
    if any(map(inspect.isgeneratorfunction, called)):
        raise UsageError(
            f"the handler of topic {topic} is a generator: calling it would run none of its body",
            remedy="take the yield out of it",
        )
    try:
        inspect.signature(function).bind(None, None)
    except TypeError:
        raise UsageError(
            f"the handler of topic {topic} does not take ({first}, tx)",
            remedy=f"declare def handle({first}, tx): the second is the transaction to write in",
        ) from None
    except ValueError:  # written in C, and silent about what it takes
        return
