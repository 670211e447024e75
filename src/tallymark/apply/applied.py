"""What applying came to: the values that the applier gives back, and the errors by which it stops."""

from __future__ import annotations

from dataclasses import dataclass, field

from tallymark.errors import Problem, TransactionEnded, said
from tallymark.inbox.ports import Application, Failed, Queued


class HandlerFailed(Problem):
    """A handler raised; `queued` names its message, or the first of its list. Nothing was decided yet."""

    def __init__(self, queued: Queued, cause: Exception) -> None:
        message = queued.message
        super().__init__(f"{message.topic}/{message.partition}@{message.offset}: {said(cause)}")
        self.queued = queued
        self.cause = cause


class HandlerHung(Problem):
    """A handler took longer than its time-out in an earlier attempt."""


class SessionLost(Problem):
    """A message that cost its database session each time that it was tried alone."""

    @classmethod
    def of(cls, times: int) -> SessionLost:
        return cls(
            f"its transaction lost the database's session {times} times in a row",
            remedy="look at the server's log for what ends it: a time-out, a proxy, a crash",
        )


@dataclass(slots=True)
class Applied:
    """What became of each message. Within a key: what is done, then the one that failed, then those behind it."""

    applications: list[Application] = field(default_factory=list)
    done: list[Queued] = field(default_factory=list)
    failed: list[Failed] = field(default_factory=list)
    behind: list[Queued] = field(default_factory=list)
    # Not looked at, because the time was up.
    left: list[Queued] = field(default_factory=list)


class TransactionBroken(Problem):
    """A handler ended the transaction: what was done in it before stands or fell with that, and nothing is marked.

    `applied` is what was done before; `failed` the message that was handed over, or all of its list, as dead.
    """

    def __init__(self, applied: Applied, failed: list[Failed], cause: TransactionEnded) -> None:
        message = failed[0].queued.message
        super().__init__(f"{message.topic}/{message.partition}@{message.offset}: {cause}")
        self.applied = applied
        self.failed = failed
        self.cause = cause
