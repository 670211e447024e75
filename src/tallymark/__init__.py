"""Tallymark: messages on Kafka: none lost, none applied twice, and the tally to prove it.

    from tallymark import Outbox

    outbox = Outbox("/bank")
    outbox.add(tx, "transfers", {"amount": 5}, key="alice", type="transfer.made")

    from tallymark import Inbox

    inbox = Inbox("ledger")

    @inbox.handler("transfers")
    def apply(message, tx):
        tx.execute("update account set balance = balance + %s where id = 'alice'", [message.value["amount"]])

A service that only adds needs psycopg and uuid-utils. The names here are the public ones; each is imported when it is
first asked for, so that the command line starts as quickly as it can.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from tallymark.apply.incoming import Message
    from tallymark.apply.schemes import SavedId, UniqueConstraint, Version
    from tallymark.errors import (
        NotInTransaction,
        Problem,
        SchemaMismatch,
        TallymarkError,
        Unreachable,
        UsageError,
    )
    from tallymark.lifecycle import MessageState
    from tallymark.outbox.outbox import Draft
    from tallymark.outbox.ports import MessageStatus
    from tallymark.service import Inbox
    from tallymark.store.writers import Outbox

__all__ = [
    "Draft",
    "Inbox",
    "Message",
    "MessageState",
    "MessageStatus",
    "NotInTransaction",
    "Outbox",
    "Problem",
    "SavedId",
    "SchemaMismatch",
    "TallymarkError",
    "UniqueConstraint",
    "Unreachable",
    "UsageError",
    "Version",
    "__version__",
]

_HOMES = {
    "Draft": "tallymark.outbox.outbox",
    "Inbox": "tallymark.service",
    "Message": "tallymark.apply.incoming",
    "MessageState": "tallymark.lifecycle",
    "MessageStatus": "tallymark.outbox.ports",
    "NotInTransaction": "tallymark.errors",
    "Outbox": "tallymark.store.writers",
    "Problem": "tallymark.errors",
    "SavedId": "tallymark.apply.schemes",
    "SchemaMismatch": "tallymark.errors",
    "TallymarkError": "tallymark.errors",
    "UniqueConstraint": "tallymark.apply.schemes",
    "Unreachable": "tallymark.errors",
    "UsageError": "tallymark.errors",
    "Version": "tallymark.apply.schemes",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
