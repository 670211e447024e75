"""An inbox as a team declares it: its name, where it lives, how it applies, and its handlers. Checked where it is said.

The name is the consumer: its positions, saved ids and Kafka group go by it. Pure; running it is somebody else's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Literal, TypeVar

from tallymark.apply.handlers import Handlers
from tallymark.apply.options import Defaults, OnDead, Order, Permanent
from tallymark.apply.schemes import SavedId, Scheme
from tallymark.errors import UsageError
from tallymark.inbox.config import PositionsIn, Start
from tallymark.inbox.ports import Place
from tallymark.lifecycle import ApplyMode
from tallymark.outbox.outbox import check_topic
from tallymark.policy import Backoff

TxKind = Literal["psycopg", "sqlalchemy", "django"]
F = TypeVar("F", bound=Callable[[Any, Any], object])

_NAME = re.compile(r"[A-Za-z0-9._-]{1,200}")
_SAVED_ID = SavedId()


class Definition:
    """What `tallymark inbox run app:inbox` runs."""

    def __init__(
        self,
        name: str,
        *,
        database: str | None = None,
        tx: TxKind = "psycopg",
        mode: Literal["inline", "deferred"] = "inline",
        positions: PositionsIn = "database",
        assign: Sequence[Place] | None = None,
        start: Start = "beginning",
        workers: int = 8,
        attempts: int | None = None,
        backoff: Backoff | tuple[float, float] | None = None,
        on_dead: OnDead | None = None,
        permanent: Permanent = (),
        handler_timeout: float | timedelta | None = None,
        max_rate: float | None = None,
        dead_letter_topic: str | None = None,
        using: str = "default",
    ) -> None:
        """`using` names Django's database where tx="django"; `database` is a name of the settings, or a URL."""
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise UsageError(
                f"{name!r} is not a consumer's name",
                remedy="use up to 200 letters, digits, dots, underscores and hyphens; it is Kafka's group too",
            )
        self.name = name
        self.database = database
        self.tx: TxKind = _one_of("tx", tx, ("psycopg", "sqlalchemy", "django"))
        self.using = using
        self.mode = ApplyMode(_one_of("mode", mode, ("inline", "deferred")))
        self.positions: PositionsIn = _one_of("positions", positions, ("database", "kafka"))
        self.start: Start = _one_of("start", start, ("beginning", "end"))
        self.assign = None if assign is None else _places(assign)
        if not isinstance(workers, int) or not 1 <= workers <= 256:
            raise UsageError(f"workers={workers!r} cannot be had", remedy="choose from 1 to 256")
        self.workers = workers
        if dead_letter_topic is not None:
            check_topic(dead_letter_topic)
        self.dead_letter_topic = dead_letter_topic
        self.handlers = Handlers(
            Defaults().changed(
                attempts=attempts,
                backoff=backoff,
                on_dead=on_dead,
                permanent=permanent,
                handler_timeout=handler_timeout,
                max_rate=max_rate,
            )
        )

    def handler(
        self,
        topic: str,
        *,
        model: Any = None,
        decode: Callable[..., Any] | None = None,
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
        """Declare the handler of a topic: a function (message, tx), or with batch=True (messages, tx)."""
        return self.handlers.handler(
            topic,
            model=model,
            decode=decode,
            batch=batch,
            once=once,
            order=order,
            permanent=permanent,
            attempts=attempts,
            backoff=backoff,
            on_dead=on_dead,
            handler_timeout=handler_timeout,
            max_rate=max_rate,
        )

    @property
    def topics(self) -> tuple[str, ...]:
        """What it subscribes to."""
        return self.handlers.topics

    def check(self) -> None:
        """Refuse to run what cannot work."""
        if not self.topics:
            raise UsageError(
                f"inbox {self.name} has no handlers", remedy='declare one: @inbox.handler("topic")'
            )
        if self.assign is not None and (foreign := {topic for topic, _ in self.assign} - set(self.topics)):
            raise UsageError(
                f"assign= names topics without a handler: {', '.join(sorted(foreign))}",
                remedy="declare handlers for them, or leave them out",
            )


def _one_of(name: str, value: Any, known: Sequence[str]) -> Any:
    if value not in known:
        allowed = " or ".join(f'"{each}"' for each in known)
        raise UsageError(f"{name}={value!r} is not known", remedy=f"use {allowed}")
    return value


def _places(given: Any) -> tuple[Place, ...]:
    try:
        places = tuple((topic, partition) for topic, partition in given)
    except (TypeError, ValueError):
        places = ()
    if not places or not all(
        isinstance(topic, str) and isinstance(partition, int) and partition >= 0
        for topic, partition in places
    ):
        raise UsageError(
            f"assign={given!r} names no partitions",
            remedy='as in assign=[("transfers", 0), ("transfers", 1)]',
        )
    if twice := sorted(
        {f"{topic}/{partition}" for topic, partition in places if places.count((topic, partition)) > 1}
    ):
        raise UsageError(f"assign= names {', '.join(twice)} twice", remedy="name each partition once")
    return places
