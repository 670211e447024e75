"""After a handler that ended its transaction past the guard, under Spark: what inbox/salvage.py does for the service.

Its commit has kept all of a micro-batch, with the marks of what was done before, and neither queued the rest nor moved
the positions. Read again everything counts as known, and would never be applied. So what was being handed over becomes
dead letters, for nobody knows how much of it was made, and the rest goes to the queue, in order.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tallymark.apply.applied import Applied, TransactionBroken
from tallymark.apply.applier import Applier
from tallymark.apply.failure import Verdict
from tallymark.errors import Problem, TransactionEnded, said
from tallymark.inbox.keeper import put_off
from tallymark.inbox.ports import Failed, InboxTx, Queued
from tallymark.inbox.salvage import Name, name_of
from tallymark.store.postgres.staged import PIECE, Staged


@dataclass(slots=True)
class AtHand:
    """How far a micro-batch has come within its transaction."""

    applied: Applied = field(default_factory=Applied)
    # How many are dead letters by now: they were written as they came.
    dead: int = 0
    # Taken out before anything was applied: it waits behind its keys.
    later: list[Queued] = field(default_factory=list)
    # What is being handed over: from where to where in the batch's order, once that is known. What is before is done.
    part: tuple[int, int] | None = None
    # One by one: these are its rows. None: as a whole.
    rows: list[Queued] | None = None


class BatchBroken(Problem):
    """A handler, a statement or a function ended the transaction of its micro-batch."""

    def __init__(self, at_hand: AtHand, mark: str | None, cause: Exception) -> None:
        super().__init__(said(cause))
        self.at_hand = at_hand
        self.mark = mark
        self.cause = cause

    def suspects(self) -> dict[Name, Exception | None]:
        """What is not to be called again as it was, where nothing was committed."""
        if not isinstance(self.cause, TransactionBroken):
            return {}
        failed = self.cause.failed
        return {
            name_of(each.queued.message): self.cause.cause if len(failed) == 1 else None for each in failed
        }


def write_mended(tx: InboxTx, staged: Staged, broken: BatchBroken, applier: Applier) -> None:
    """Give everything that was kept its mark or its place in the queue. Whoever reads it again has nothing to do."""
    at_hand, cause = broken.at_hand, broken.cause
    failed, behind, waiting = list(at_hand.applied.failed), list(at_hand.applied.behind), list(at_hand.later)
    if isinstance(cause, TransactionBroken):
        inner = cause.applied
        tx.record(inner.applications)
        known = {name_of(row.message) for row in (*inner.done, *inner.behind)}
        known |= {name_of(each.queued.message) for each in (*inner.failed, *cause.failed)}
        failed += [*inner.failed, *cause.failed]
        behind += inner.behind
        waiting += [row for row in at_hand.rows or () if name_of(row.message) not in known]
    else:
        # As a whole: it may be large.
        low, high = at_hand.part or (0, staged.number())
        for start in range(low, high, PIECE):
            rows = _queued(applier, staged, start, min(start + PIECE, high))
            put_off(tx, Applied(failed=[_dead(applier, row, cause) for row in rows]), [])
    if at_hand.part is not None:
        waiting += [Queued(each, applier.key_hash(each)) for each in staged.outlines(at_hand.part[1])]
    put_off(tx, Applied(failed=failed, behind=behind), waiting)


def _queued(applier: Applier, staged: Staged, low: int, high: int) -> list[Queued]:
    return [Queued(each, applier.key_hash(each)) for each in staged.rows(low, high)]


def _dead(applier: Applier, row: Queued, cause: Exception) -> Failed:
    handler = applier.handlers.of(row.message.topic)
    ended = cause if isinstance(cause, TransactionEnded) else TransactionEnded(said(cause))
    return applier.failure(handler, row, ended, Verdict.PERMANENT)
