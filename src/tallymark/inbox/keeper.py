"""Keeps a batch: saved ids, effects and the position in one transaction (P4, P5); sorts out whatever comes of it.

- A handler failed: roll back, run again with a savepoint per message; the one that fails goes to the queue with its
  key, the others stay.
- A handler ended the transaction past the guard: salvage.py gives what it committed its marks; the batch runs again.
- Deadlock, serialization failure: run again in halves; nobody's attempt is counted (pitfall 27).
- Another owner has come: what was read for that place is dropped; the rest of the batch runs again.
- The connection was lost: the outcome is unknown. The position says whether it committed: read, never guessed.
- Our own statements fail after a handler has used the transaction (a role, read only, a time-out that it has set): as
  if the session was lost.
- The database is away: wait, for as long as it takes. Nothing is skipped.
"""

from __future__ import annotations

import logging
import random
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from tallymark.apply.applied import SessionLost
from tallymark.apply.applier import Applied, Applier, HandlerFailed, HandlerHung, TransactionBroken
from tallymark.apply.failure import Verdict, is_deferred_violation, is_spoilt, verdict_of
from tallymark.apply.watch import Watch
from tallymark.crashpoint import reached
from tallymark.errors import OutcomeUnknown
from tallymark.inbox.book import Book
from tallymark.inbox.config import InboxConfig
from tallymark.inbox.handover import Batch
from tallymark.inbox.obituary import tell
from tallymark.inbox.outcome import Outcome
from tallymark.inbox.ports import Application, InboxStore, InboxTx, Move, Queued, Received, StalePositions
from tallymark.inbox.salvage import Salvage
from tallymark.inbox.screening import Screen
from tallymark.inbox.settling import Settler
from tallymark.observe.retrying import told_again

log = logging.getLogger("tallymark.inbox")

# So often a single message may meet a deadlock or a serialization failure in a row.
PATIENCE = 10


@dataclass(slots=True)
class _Tries:
    """What was met so far in keeping what is at hand."""

    careful: bool
    # In a row: errors that were waited out, deadlocks of one message alone, transactions lost or spoilt midway.
    waited: int = 0
    transient: int = 0
    lost: int = 0

    def over(self) -> None:
        """It was kept."""
        self.waited = self.transient = self.lost = 0


class Keeper:
    """Works on one batch at a time, over a connection of its own."""

    def __init__(
        self,
        store: InboxStore,
        applier: Applier,
        book: Book,
        screen: Screen,
        config: InboxConfig,
        stop: threading.Event,
    ) -> None:
        self.store = store
        self.watch = Watch()
        self.trouble: str | None = None
        # Messages whose handler hung or ended its transaction in an earlier attempt at this batch, with what was seen.
        self.suspects: dict[tuple[str, object], Exception | None] = {}
        # The transaction that handlers work in, and what it has kept: for a handler that ends it.
        self._mark: str | None = None
        self._new: Sequence[Queued] = ()
        self._alone = self._patience_over = False
        self._applier = applier
        self._book = book
        self._screen = screen
        self._config = config
        self._stop = stop
        self._settler = Settler(store, book, ours=config.positions != "kafka")

    def suspect(self, messages: Sequence[Queued], reason: str) -> None:
        """These hung in another thread: one counts as a failed attempt; a list is tried one by one to find which."""
        self._alone = True
        if len(messages) == 1:
            self.suspects[messages[0].message.source, messages[0].message.id] = HandlerHung(reason)

    def run_once(self, batch: Batch) -> Outcome:
        """Keep all of a batch that is still ours; returns when it is committed, or no longer ours."""
        outcome = Outcome()
        todo = deque([batch])
        tries = _Tries(careful=bool(self.suspects))
        while todo and not self._stop.is_set() and not self.watch.is_abandoned():
            part = todo[0].only(self._book.ours(todo[0].epochs))
            if not part.ends:
                todo.popleft()
                continue
            moves = self._settler.moves(part)
            try:
                self._transact(part, moves, outcome, careful=tries.careful)
            except (HandlerFailed, TransactionBroken) as failed:
                log.info(
                    "a handler failed, the batch runs again: %s", failed, extra={"action": "inbox.rerun"}
                )
                self._salvage(failed, outcome)
                tries.careful = True
                outcome.reruns += 1
            except StalePositions as stale:
                if not self.watch.is_abandoned() and self._settler.settled(
                    part, moves, outcome, stale.places
                ):
                    todo.popleft()
            except Exception as error:  # noqa: BLE001 - each kind is dealt with; none skips a message
                if self.watch.is_abandoned():
                    break  # another thread has this batch now: whatever we met is ours alone
                todo.popleft()
                todo.extendleft(reversed(self._again(error, part, moves, tries, outcome)))
            else:
                tries.over()
                self._patience_over = False
                self.trouble = None
                self._settler.committed(part, outcome)
                todo.popleft()
        self.suspects.clear()
        self._alone = False
        self._new = ()  # while the next batch is made, this one is memory that nobody needs
        return outcome

    def _again(
        self, error: Exception, part: Batch, moves: Sequence[Move], tries: _Tries, outcome: Outcome
    ) -> Sequence[Batch]:
        """What is left to do of a part that was not committed, after a moment: all of it, its halves, or nothing."""
        verdict = verdict_of(error)
        if verdict is Verdict.TRANSIENT:
            outcome.reruns += 1
            return self._deadlocked(part, tries)
        if not tries.careful and is_deferred_violation(error):
            # A constraint that is checked at the commit: looked at after each message it says whose it is.
            tries.careful = True
            outcome.reruns += 1
            return [part]
        tries.waited += 1
        self.store.close()  # a SET without LOCAL, committed with an earlier batch, would outlive it
        self._wait_out(error, tries.waited)
        spoilt = is_spoilt(error)
        if verdict is not Verdict.LOST and not spoilt:
            return [part]
        if self._settler.settled(part, moves, outcome):
            return []
        # Lost on the way, and not for want of a database: something may end what takes long (transaction_timeout).
        tries.lost += spoilt or isinstance(error, OutcomeUnknown)
        if tries.lost > 1 and len(part.messages) > 1:
            tries.lost = 1  # counted anew, for it may stand alone now
            return part.halves()
        if tries.lost > PATIENCE and part.messages:
            # It costs its transaction every time: a failed attempt, or nothing behind it would ever be kept.
            message = part.messages[0]
            self.suspects[message.source, message.id] = error if spoilt else SessionLost.of(tries.lost)
            tries.careful = True
        return [part]

    def _deadlocked(self, part: Batch, tries: _Tries) -> Sequence[Batch]:
        """A deadlock or a serialization failure: in halves, after a moment; one message alone not for ever."""
        # Counted from where it stands alone: how often a batch had to be halved says nothing of it (pitfall 27).
        tries.transient = tries.transient + 1 if len(part.messages) <= 1 else 0
        delay = self._config.backoff.delay(max(1, tries.transient), random.random())  # noqa: S311 - jitter is no secret
        self._stop.wait(delay / 10)
        if len(part.messages) > 1:
            return part.halves()
        if tries.transient > PATIENCE and part.messages:
            # Whatever raises it, it is not two of us in each other's way: it counts as a failed attempt.
            tries.careful = self._patience_over = True
        return [part]

    def _transact(self, part: Batch, moves: Sequence[Move], outcome: Outcome, *, careful: bool) -> None:
        with self.store.begin() as tx:
            counted, applications = self._keep(tx, part.messages, careful=careful)
            tx.advance(moves, applications)
            reached("inbox.before_commit")
        reached("inbox.after_commit")
        tell(counted.failures)
        outcome.kept += counted.kept
        outcome.repeated += counted.repeated
        outcome.applied += counted.applied
        outcome.queued += counted.queued
        outcome.failures += counted.failures
        outcome.quarantined += counted.quarantined

    def _keep(
        self, tx: InboxTx, messages: Sequence[Received], *, careful: bool
    ) -> tuple[Outcome, Sequence[Application]]:
        """Everything but the positions, and the effects that are still to be recorded."""
        if not messages:
            return Outcome(), ()
        reached("inbox.before_keep")
        good, odd = self._screen.sort(messages)
        kept = tx.keep(good)
        reached("inbox.after_keep")
        odd += [(good[index], "its id was used before, for other contents") for index in kept.reused]
        if odd:
            tx.quarantine(odd)
        new = [good[index] for index in kept.new]
        now, later = self._divided(tx, new)
        self._mark = tx.mark
        applied = self._applier.apply(
            tx,
            now,
            careful=careful,
            watch=self.watch,
            suspects=self.suspects,
            alone=self._alone,
            patience_over=self._patience_over,
        )
        put_off(tx, applied, later)
        counted = Outcome(
            kept=len(new),
            repeated=len(kept.repeated),
            applied=len(applied.done),
            queued=len(later) + len(applied.behind),
            quarantined=len(odd),
            failures=applied.failed,
        )
        return counted, applied.applications

    def _divided(self, tx: InboxTx, new: Sequence[Received]) -> tuple[list[Queued], list[Queued]]:
        """What to apply now, and what waits in the queue: all of it, or what is behind its key's unfinished."""
        key_hash, make = self._applier.key_hash, Queued._make
        self._new = queued = [make((each, key_hash(each), None, 0)) for each in new]
        if self._config.deferred:
            return [], queued
        if not queued or not tx.any_queued():
            return queued, []
        held = tx.held({each.key_hash for each in queued})
        return (
            [each for each in queued if each.key_hash not in held],
            [each for each in queued if each.key_hash in held],
        )

    def _salvage(self, broken: HandlerFailed | TransactionBroken, outcome: Outcome) -> None:
        """At once, whoever owns the places by now: to all others these messages are known already."""
        if isinstance(broken, HandlerFailed):
            return  # rolled back: nothing of it is left
        salvage = Salvage(broken, self._mark, self._new)
        if salvage.run(self.store, salvage.write_kept, self._stop, self._config.backoff):
            outcome.kept += len(self._new)
            outcome.applied += len(broken.applied.done)
            outcome.queued += len(self._new) - len(broken.applied.done)
            outcome.failures += broken.failed
        else:
            self._alone = True
            self.suspects.update(salvage.suspects())

    def _wait_out(self, error: Exception, attempt: int) -> None:
        delay, self.trouble = told_again(log, error, self._config.backoff, attempt, action="inbox.retry")
        self._stop.wait(delay)


def put_off(tx: InboxTx, applied: Applied, later: Sequence[Queued]) -> None:
    """Queue what is not done. What failed goes first, so that those of its key stand behind it."""
    waiting = [each.queued for each in applied.failed] + list(applied.behind) + list(later)
    if not waiting:
        return
    seqs = tx.enqueue(waiting)
    tx.fail(
        [
            each._replace(queued=each.queued._replace(seq=seq))
            for each, seq in zip(applied.failed, seqs, strict=False)
        ]
    )
