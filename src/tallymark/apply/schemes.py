"""The three schemes for applying once. Each is chosen per handler, with `once=`.

A redelivered message is stopped before any of them: its id is saved in the inbox, in the transaction of the first
effect. What the second and third add is protection that does not depend on that id: against a producer that sends
the same business fact under two ids, against an id that was dropped with the log, against an older state that arrives
after a newer one.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from tallymark.apply.failure import constraint_of, sqlstate_of
from tallymark.apply.incoming import Message
from tallymark.errors import UsageError, said
from tallymark.inbox.ports import InboxTx

_UNIQUE_VIOLATION = "23505"
_BIGINT = 2**63

# The versions that earlier messages of the same list will write, by what they are versions of.
Promised = dict[Any, int]


class Scheme(Protocol):
    """How a handler's effect is made once."""

    @property
    def needs_savepoint(self) -> bool:
        """Whether the handler's own error may mean *already*, after which the transaction must live on."""

    @property
    def needs_saved_id(self) -> bool:
        """Whether nothing but the saved id stops a second effect."""

    def admits(self, message: Message, tx: InboxTx, promised: Promised) -> bool:
        """Whether the handler is to be called; False means that something newer was applied."""

    def already(self, error: Exception) -> bool:
        """Whether this error of the handler means that the effect was there before."""


@dataclass(frozen=True, slots=True)
class SavedId:
    """The id saved in the same transaction as the effect: the default.

    There is nothing left to do here. The inbox row with (consumer, source, id) as its key *is* the saved id, it was
    written before the handler is called, and the effect commits with it or not at all. A second delivery finds the row.
    """

    needs_savepoint = False
    needs_saved_id = True

    def admits(self, message: Message, tx: InboxTx, promised: Promised) -> bool:  # noqa: ARG002 - the port's shape
        return True

    def already(self, error: Exception) -> bool:  # noqa: ARG002 - the port's shape
        return False


@dataclass(frozen=True, slots=True)
class UniqueConstraint:
    """The handler's own INSERT meets this constraint where the effect is there already.

    All that the handler did for this message is undone then, and the message counts as applied. Any other error is a
    failure, the violation of any other constraint too. Each call has a savepoint of its own.
    """

    name: str

    needs_savepoint = True
    needs_saved_id = False

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise UsageError(
                f"UniqueConstraint({self.name!r}) names no constraint",
                remedy='give its name in the database, as in UniqueConstraint("ledger_entry_pkey")',
            )

    def admits(self, message: Message, tx: InboxTx, promised: Promised) -> bool:  # noqa: ARG002 - the port's shape
        return True

    def already(self, error: Exception) -> bool:
        return sqlstate_of(error) == _UNIQUE_VIOLATION and constraint_of(error) == self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """An older update never overwrites a newer one: the handler is called only for what is newer than what is there.

    Version()                            the message's outbox position, of what was sent again the original's (from a
                                         foreign producer: its offset), remembered per key in a table of ours
    Version(of=lambda m: m.value["rev"]) a business version, remembered there
    Version(table="stock", key="sku", column="version", of=…, value=lambda m: m.value["sku"])
                                         the team's own column, its row locked; the handler writes the new version
    Version(when=lambda message, tx: …)  any precondition that the handler's transaction can answer
    """

    of: Callable[[Message], int] | None = None
    table: str | None = None
    key: str | None = None
    column: str | None = None
    value: Callable[[Message], Any] | None = None
    when: Callable[[Message, Any], bool] | None = None

    needs_savepoint = False
    needs_saved_id = False

    def __post_init__(self) -> None:
        columns = (self.table, self.key, self.column)
        if self.when is not None and (any(columns) or self.of or self.value):
            raise UsageError("Version(when=…) stands alone", remedy="leave the other arguments out")
        if any(columns) != all(columns):
            raise UsageError(
                "Version(table=…) needs table, key and column", remedy="name all three, or none of them"
            )
        if self.value is not None and self.table is None:
            raise UsageError(
                "Version(value=…) says nothing without table=", remedy="name table, key and column too"
            )
        for name in ("table", "key", "column"):
            if not isinstance(getattr(self, name), str | None):
                raise UsageError(f"Version({name}=…) is not a name", remedy="give it as text")
        for name in ("of", "value", "when"):
            given = getattr(self, name)
            if given is not None and (not callable(given) or inspect.iscoroutinefunction(given)):
                raise UsageError(f"Version({name}=…) is not a plain function", remedy=_EXAMPLES[name])

    def admits(self, message: Message, tx: InboxTx, promised: Promised) -> bool:
        if self.when is not None:
            return bool(self.when(message, tx.handed))
        version = self._version(message)
        if self.table is None:
            return tx.raise_version(message.topic, self._line(message), version)
        assert self.key is not None  # noqa: S101 - __post_init__ saw to it
        assert self.column is not None  # noqa: S101
        value = self._value(message)
        # The handler has not yet written what earlier messages of its list bring.
        known = promised.get(value)
        if known is None:
            known = tx.locked_version(self.table, self.key, self.column, value)
        if known is not None and version <= known:
            return False
        promised[value] = version
        return True

    def already(self, error: Exception) -> bool:  # noqa: ARG002 - the port's shape
        return False

    def _version(self, message: Message) -> int:
        if self.of is None:
            version = message.offset if message.position is None else message.position
            if version is None:
                raise UsageError(
                    f"message {message.id} has neither a position nor an offset to go by",
                    remedy="give the business version: Version(of=…)",
                )
            return version
        version = _asked(self.of, "of", message)
        if not isinstance(version, int) or isinstance(version, bool) or not -_BIGINT <= version < _BIGINT:
            raise UsageError(
                f"Version(of=…) gave {type(version).__name__}, not a whole number of 64 bits",
                remedy=_EXAMPLES["of"],
            )
        return version

    def _line(self, message: Message) -> bytes:
        """What the version is a version of."""
        if message.key is None:
            raise UsageError(
                f"message {message.id} has no key, so that it is no version of anything",
                remedy="let its producer give a key, or use another scheme",
            )
        if self.of is not None:
            return message.key
        # Positions of two outboxes, or a position and an offset, cannot be compared: each source has its own line. Nor
        # can offsets of two partitions: a key that moved when some were added would be older for ever.
        line = message.source.encode() + b"\0" + message.key
        return line if message.position is not None else b"\0%d\0" % message.partition + line

    def _value(self, message: Message) -> Any:
        if self.value is not None:
            return _asked(self.value, "value", message)
        if message.key is None:
            raise UsageError(
                f"message {message.id} has no key to find its row in {self.table} by",
                remedy=_EXAMPLES["value"],
            )
        return message.key_text


_EXAMPLES = {
    "of": 'as in Version(of=lambda message: message.value["rev"])',
    "value": 'as in Version(table="stock", key="sku", column="version", value=lambda message: message.value["sku"])',
    "when": "as in Version(when=lambda message, tx: tx.execute(…).fetchone()[0])",
}


def _asked(function: Callable[[Message], Any], name: str, message: Message) -> Any:
    """It sees nothing but the message: what fails once fails always."""
    try:
        return function(message)
    except Exception as error:
        raise UsageError(f"Version({name}=…) failed: {said(error)}", remedy=_EXAMPLES[name]) from error
