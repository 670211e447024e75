"""What applying came to: the values that the applier gives back, and the errors by which it stops."""

from __future__ import annotations

from dataclasses import dataclass, field

from tallymark.errors import Problem
from tallymark.inbox.ports import Application, Failed, Queued


class HandlerFailed(Problem):
    """A handler raised; `queued` names its message, or the first of its list. Nothing was decided yet."""

    def __init__(self, queued: Queued, cause: Exception) -> None:
        message = queued.message
        super().__init__(
            f"{message.topic}/{message.partition}@{message.offset}: {type(cause).__name__}: {cause}"
        )
        self.queued = queued
        self.cause = cause


class HandlerHung(Problem):
    """A handler took longer than its time-out in an earlier attempt."""


@dataclass(slots=True)
class Applied:
    """What became of each message. Within a key: what is done, then the one that failed, then those behind it."""

    applications: list[Application] = field(default_factory=list)
    done: list[Queued] = field(default_factory=list)
    failed: list[Failed] = field(default_factory=list)
    behind: list[Queued] = field(default_factory=list)
    # Not looked at, because the time was up.
    left: list[Queued] = field(default_factory=list)
