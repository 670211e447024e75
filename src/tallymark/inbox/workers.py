"""Workers take from the queue: what was deferred, what failed and is due again, and what waits behind it.

A worker locks some keys, reads their lowest unfinished rows, applies them and takes them out, in one transaction
(pitfall 17): within a key in order, across keys side by side, in one process or many. One that is killed has changed
nothing, and its keys are free at once.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from tallymark.apply.applied import SessionLost
from tallymark.apply.applier import Applied, Applier, HandlerFailed, HandlerHung, TransactionBroken
from tallymark.apply.failure import Verdict, is_deferred_violation, is_spoilt, verdict_of
from tallymark.apply.watch import Watch
from tallymark.crashpoint import reached
from tallymark.errors import OutcomeUnknown
from tallymark.inbox.config import InboxConfig
from tallymark.inbox.keeper import PATIENCE
from tallymark.inbox.obituary import tell
from tallymark.inbox.ports import ClaimBounds, InboxStore, InboxTx, Queued, Received
from tallymark.inbox.salvage import Name, Salvage, name_of
from tallymark.observe.retrying import told_again

log = logging.getLogger("tallymark.inbox")

# A worker that finds nothing rests so many times as long as it has looked, up to a few seconds.
_SHARE = 20
_LONGEST_S = 5.0
# So many keys are remembered as slow, the latest ones: where more are, all are, and none stands in another's way.
_SLOW_KEYS = 10_000


@dataclass(frozen=True, slots=True)
class Round:
    """What one claim came to."""

    claimed: int
    applied: int = 0
    failed: int = 0
    dead: int = 0
    # The first message that was applied, and when it had been kept, where that is known.
    first: Received | None = None
    first_kept_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Noticed:
    """What the workers of one process tell each other: each of them may have the key next."""

    # Messages that hung or ended their transaction, with what was seen.
    suspects: dict[Name, Exception | None] = field(default_factory=dict)
    # How often a message, claimed alone, has cost its transaction: one worker's luck with others is no comfort to it.
    lost: dict[Name, int] = field(default_factory=dict)
    # Keys whose messages took long, the latest last: each is claimed with no other.
    slow: OrderedDict[int, None] = field(default_factory=OrderedDict)


class Worker:
    """One thread's way through the queue, over a connection of its own."""

    def __init__(
        self,
        store: InboxStore,
        applier: Applier,
        config: InboxConfig,
        stop: threading.Event,
        *,
        held_back: threading.Event,
        noticed: Noticed,
        note: Callable[[Round], None] = lambda _round: None,
    ) -> None:
        self.store = store
        self.watch = Watch(notes_slow=True)
        self.trouble: str | None = None
        self._applier = applier
        self._config = config
        self._stop = stop
        self._held_back = held_back
        self._suspects = noticed.suspects
        self._lost = noticed.lost
        self._slow = noticed.slow
        self._note = note
        # Each begins its round somewhere else, so that workers do not run after each other.
        self._after = random.randint(-(2**63), 2**63 - 1)  # noqa: S311 - a place to begin is no secret
        self._rows = min(32, config.claim_rows)
        # The last claim, and whether it is to be looked at message by message when it comes again.
        self._claimed: Sequence[Queued] = ()
        self._mark: str | None = None
        self._careful = self._patience_over = False
        self._transient = 0

    def run(self, woken: threading.Condition) -> None:
        """Rounds until told to stop; waits where there is nothing to do."""
        attempt = 0
        while not self._stop.is_set() and not self.watch.is_abandoned():
            if self._held_back.is_set():  # an operator paused this consumer
                self._stop.wait(self._config.idle_s)
                continue
            began = time.monotonic()
            try:
                done = self.run_round()
            except Exception as error:  # noqa: BLE001 - whatever it was, the queue still has everything
                if self.watch.is_abandoned():
                    break
                attempt += 1
                self.store.close()  # a SET without LOCAL, committed with an earlier claim, would outlive it
                self._wait_out(error, attempt)
                continue
            if done is None:
                continue
            attempt, self.trouble = 0, None
            self._note(done)
            if not done.claimed:
                # Looking goes from key to key past all that are dead or due later: where they are many, less often.
                took = time.monotonic() - began
                with woken:
                    woken.wait(min(_LONGEST_S, max(self._config.idle_s, _SHARE * took)))
        self.store.close()

    def run_round(self) -> Round | None:
        """As run_once; None, after a moment, where it failed and the next round goes about it in another way."""
        try:
            return self.run_once()
        except TransactionBroken as broken:
            return self._salvage(broken)
        except Exception as error:
            if self.watch.is_abandoned() or not self._is_understood(error):
                raise
            self._wait_out(error, 1)
            return None

    def run_once(self) -> Round:
        """Claim, apply, commit. Gives back how it went; an empty round means that nothing is due."""
        began, before = time.monotonic(), self._after
        self._claimed = ()
        topics = self._applier.due(self._config.topics)
        if not topics:
            return Round(0)
        with self.store.begin() as tx:
            claim = tx.claim(
                self._after,
                ClaimBounds(
                    topics,
                    keys=self._config.claim_keys,
                    rows=self._rows,
                    max_bytes=self._config.batch_bytes,
                    apart=self._slow,
                ),
            )
            self._claimed, self._mark = claim.rows, tx.mark
            if not claim.rows:
                self._after = claim.after
                return Round(0)
            reached("worker.after_claim")
            applied = self._apply(tx, claim.rows, began + self._config.claim_s)
            tx.finish(applied.done)
            tx.fail(applied.failed)
            tx.record(applied.applications)
            reached("worker.before_commit")
        reached("worker.after_commit")
        tell(applied.failed)
        # Only now: what failed is claimed again, at the same place.
        self._after = claim.after if self._after == before else self._after
        self._careful = self._patience_over = False
        self._transient = 0
        for queued in (*applied.done, *(each.queued for each in applied.failed)):
            self._suspects.pop(name_of(queued.message), None)
            self._lost.pop(name_of(queued.message), None)
        alone = {row.key_hash for row in claim.rows} <= self._slow.keys()
        self._note_slow(claim.rows)
        if not alone:  # one slow key says nothing of how many others fit
            self._adapt(len(applied.done), time.monotonic() - began)
        return Round(
            len(claim.rows),
            len(applied.done),
            len(applied.failed),
            sum(each.again_in_s is None for each in applied.failed),
            applied.done[0].message if applied.done else None,
            claim.first_kept_at if applied.done and applied.done[0] is claim.rows[0] else None,
        )

    def _is_understood(self, error: Exception) -> bool:
        """Whether the next round will go about it in another way; otherwise it is waited out."""
        if self._claimed and not self._careful and is_deferred_violation(error):
            self._careful = (
                True  # a constraint that is checked at the commit: after each message it says whose it is
            )
            return True
        if self._claimed and (isinstance(error, OutcomeUnknown) or is_spoilt(error)):
            self._note_lost(error)
            return True
        if verdict_of(error) is not Verdict.TRANSIENT:
            return False
        # Counted from where one stands alone: how often a claim had to be halved says nothing of it.
        self._transient = self._transient + 1 if len(self._claimed) == 1 else 0
        self._rows = max(1, self._rows // 2)
        if self._transient > PATIENCE:
            # Whatever raises it, it is not two of us in each other's way: it counts as a failed attempt.
            self._patience_over = True
        return True

    def _note_lost(self, error: Exception) -> None:
        """The session or its transaction was lost in mid-claim: by a server that went down, or by one message's doing."""
        self.store.close()
        self._rows = max(1, self._rows // 2)
        if len(self._claimed) > 1:
            return
        name = name_of(self._claimed[0].message)
        self._lost[name] = times = self._lost.get(name, 0) + 1
        if times > PATIENCE:
            self._suspects[name] = error if is_spoilt(error) else SessionLost.of(times)

    def suspect(self, messages: Sequence[Queued], reason: str) -> None:
        """These hung in another thread: begin with their key; one counts as a failed attempt, a list is tried apart."""
        for each in messages:
            self._suspects[name_of(each.message)] = HandlerHung(reason) if len(messages) == 1 else None
        self._after = messages[0].key_hash - 1

    def _apply(self, tx: InboxTx, rows: Sequence[Queued], until: float) -> Applied:
        def attempt(*, careful: bool) -> Applied:
            return self._applier.apply(
                tx,
                rows,
                careful=careful,
                watch=self.watch,
                suspects=self._suspects,
                alone=any(name_of(row.message) in self._suspects for row in rows),
                until=until,
                patience_over=self._patience_over,
            )

        if self._careful:
            return attempt(careful=True)
        broken: TransactionBroken | None = None
        try:
            with tx.savepoint():
                try:
                    return attempt(careful=False)
                except TransactionBroken as met:
                    broken = met
                    raise
        except HandlerFailed:
            return attempt(careful=True)
        except Exception:
            if broken is not None:  # the savepoint is gone with its transaction, and says so instead
                raise broken from None
            raise

    def _salvage(self, broken: TransactionBroken) -> Round:
        salvage = Salvage(broken, self._mark, self._claimed)
        if not salvage.run(self.store, salvage.write_claimed, self._stop, self._config.backoff):
            self._suspects.update(salvage.suspects())
            return Round(len(self._claimed))
        failed = len(broken.failed)
        return Round(len(self._claimed), len(broken.applied.done), failed, failed)

    def _note_slow(self, rows: Sequence[Queued]) -> None:
        """A slow key stands apart from its first slow message on, and until one claim of it is quick.

        Many come once and never again: the oldest are forgotten for later ones. Others change this beside us.
        """
        slow = self.watch.slow_keys()
        for key in {row.key_hash for row in rows}:
            self._slow.pop(key, None)
        for key in slow:
            self._slow[key] = None
        while len(self._slow) > _SLOW_KEYS:
            self._slow.popitem(last=False)

    def _adapt(self, done: int, seconds: float) -> None:
        """Many quick ones at once, few slow ones: a claim should not last much longer than it may."""
        if seconds < self._config.claim_s / 2 and done >= self._rows:
            self._rows = min(self._config.claim_rows, self._rows * 2)
        elif seconds > self._config.claim_s:
            self._rows = max(1, self._rows // 2)

    def _wait_out(self, error: Exception, attempt: int) -> None:
        delay, self.trouble = told_again(
            log, error, self._config.backoff, attempt, action="inbox.worker", who="a worker"
        )
        self._stop.wait(delay)
