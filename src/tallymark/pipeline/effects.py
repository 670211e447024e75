"""What is done with the messages of a micro-batch: one SQL statement for all, one function for all, or a handler each.

The first two work at Spark's width: they see the batch as a relation, in the transaction that keeps it. Each can also be
given a single message, in the same form: that is how a batch that failed is tried apart, and how what failed is tried
again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tallymark.apply.handlers import Handlers
from tallymark.apply.incoming import Message
from tallymark.apply.options import Defaults
from tallymark.errors import UsageError
from tallymark.inbox.ports import InboxTx
from tallymark.store.postgres.staged import one_row

PLACEHOLDER = "{batch}"


@dataclass(frozen=True, slots=True)
class Messages:
    """What a function is given beside the transaction."""

    # To select from: id, source, topic, partition, "offset", position, key, value, headers, logged_at, named.
    relation: str
    count: int


Whole = Callable[[InboxTx, Messages], None]


class Effect(Protocol):
    """How messages are applied."""

    @property
    def handlers(self) -> Handlers:
        """How one message is applied."""

    @property
    def whole(self) -> Whole | None:
        """How many are applied at once; None where only one after the other is possible."""


class SqlEffect:
    """A statement with {batch} where the messages are."""

    def __init__(self, statement: str, topics: Sequence[str]) -> None:
        if PLACEHOLDER not in statement:
            raise UsageError(
                f"the SQL to apply does not name {PLACEHOLDER}",
                remedy=f"select from it: insert into … select … from {PLACEHOLDER}",
            )
        self._statement = statement
        self.handlers = _of_each(topics, self._one)

    def over(self, relation: str) -> str:
        """The statement for these messages."""
        return self._statement.replace(PLACEHOLDER, relation)

    def whole(self, tx: InboxTx, batch: Messages) -> None:
        tx.handed.execute(self.over(batch.relation), prepare=False)

    def _one(self, message: Message, tx: Any) -> None:
        tx.execute(self.over(one_row(message.received, tx)), prepare=False)


class FunctionEffect:
    """`def apply(tx, batch)`, with `batch.relation` and `batch.count`."""

    def __init__(self, function: Callable[[Any, Messages], object], topics: Sequence[str]) -> None:
        if not callable(function):
            raise UsageError("what is to apply is not a function", remedy="declare def apply(tx, batch)")
        self._function = function
        self.handlers = _of_each(topics, self._one)

    def whole(self, tx: InboxTx, batch: Messages) -> None:
        self._function(tx.handed, batch)

    def _one(self, message: Message, tx: Any) -> None:
        self._function(tx, Messages(one_row(message.received, tx), 1))


class HandlersEffect:
    """The handlers of an inbox, one message (or one list) at a time: the same code as in the service, and slower."""

    whole = None

    def __init__(self, handlers: Handlers) -> None:
        self.handlers = handlers


class NoEffect:
    """Messages are kept, and that is all."""

    def __init__(self, topics: Sequence[str]) -> None:
        self.handlers = _of_each(topics, lambda _message, _tx: None)

    def whole(self, tx: InboxTx, batch: Messages) -> None:
        """There is nothing to do."""


def _of_each(topics: Sequence[str], function: Callable[[Message, Any], None]) -> Handlers:
    handlers = Handlers(Defaults())
    for topic in topics:
        # The value is the statement's to understand: nothing is decoded before.
        handlers.handler(topic, decode=lambda value: value)(function)
    return handlers
