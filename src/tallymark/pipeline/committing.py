"""One micro-batch, committed once: counts checked, rows kept, effects made, positions moved, in one transaction.

- Only what the inbox did not have is applied (pitfall 22), and nothing of a key that has unfinished messages (23).
- A statement for the whole batch that fails is tried on halves, until what is bad stands alone: it goes to the queue
  with its key, the rest stays.
- A deadlock or a serialization failure is nobody's fault, and all of it runs again; what meets one again and again is
  looked for by halves too, and at last counts as failed where it stands alone (pitfall 27).
- Positions move from the epoch and the offset that they name, to the ends that Spark's own offset log names (20).
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from typing import Any

from tallymark.apply.applied import Applied, HandlerHung
from tallymark.apply.applier import Applier
from tallymark.apply.failure import Verdict, verdict_of
from tallymark.apply.watch import Watch
from tallymark.crashpoint import reached
from tallymark.inbox.keeper import PATIENCE, put_off
from tallymark.inbox.ports import Move, Place, Queued, Received
from tallymark.inbox.screening import Screen
from tallymark.pipeline.effects import Effect, Messages
from tallymark.pipeline.loading import Loaded
from tallymark.pipeline.mending import AtHand, BatchBroken
from tallymark.store.postgres.inboxtx import PostgresInboxTx
from tallymark.store.postgres.staged import Staged

log = logging.getLogger("tallymark.pipeline")

# What failed as a whole is cut in halves down to so many messages, and then tried one by one.
_FEW = 32
# After so many deadlocks or serialization failures in a row the parts of a batch are tried apart.
_APART_AFTER = 3
# So many are handed over one by one in one transaction, before it is known how long they take.
_HANDED_OVER = 10_000
# Handlers take them one by one from the start: so many are held in memory at a time, and each may be a megabyte.
_MANY = 500

_REUSED = "its id was used before, for other contents"
# What a batch says of each place, where the last word counts.
_BY_PLACE = ("logged_ms", "ends")


@dataclass(frozen=True, slots=True)
class Range:
    """A part of a partition that a micro-batch covers: whose it is, from where to where."""

    place: Place
    epoch: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Committed:
    """What one micro-batch came to."""

    read: int = 0
    kept: int = 0
    repeated: int = 0
    applied: int = 0
    queued: int = 0
    dead: int = 0
    quarantined: int = 0
    load_s: float = 0.0
    commit_s: float = 0.0
    # Kafka's time of the last message, by place, in milliseconds.
    logged_ms: Mapping[Place, int] = field(default_factory=dict)
    # Where it ends, by place: the positions stand there now.
    ends: Mapping[Place, int] = field(default_factory=dict)

    @property
    def rate(self) -> float | None:
        """Messages per second. The longer of the two counts: one batch is loaded while another is committed."""
        spent = max(self.load_s, self.commit_s)
        return self.read / spent if spent else None

    def counts(self) -> dict[str, float]:
        """The figures that add up."""
        return {each.name: getattr(self, each.name) for each in fields(self) if each.name not in _BY_PLACE}

    def __add__(self, other: Committed) -> Committed:
        """Both together, the other the later one."""
        theirs = other.counts()
        sums: dict[str, Any] = {name: figure + theirs[name] for name, figure in self.counts().items()}
        last: dict[str, Any] = {name: {**getattr(self, name), **getattr(other, name)} for name in _BY_PLACE}
        return Committed(**sums, **last)


class Commit:
    """The driver's transaction for one micro-batch."""

    def __init__(self, effect: Effect, screen: Screen, *, run: str, deferred: bool = False) -> None:
        self._effect = effect
        self.applier = Applier(effect.handlers)
        self._screen = screen
        self._run = run
        self._deferred = deferred
        self.watch = Watch()
        # Messages whose handler hung in an earlier attempt at their batch, with what was seen.
        self._suspects: dict[tuple[str, object], Exception | None] = {}
        # What ended its transaction, as a whole or as a list, is looked for one by one.
        self._alone = self._one_by_one = False
        # Deadlocks and serialization failures that this batch has met in a row.
        self._transient = 0

    @property
    def at_most(self) -> int | None:
        """How many messages one transaction should have where they are handed over one by one; None: any number.

        As in the service: what is slow, or waits for its rate, would hold it open for hours, and nobody could stop it.
        """
        if self._deferred or self._effect.whole is not None:
            return None
        limits = [self.applier.at_most(topic) for topic in self._effect.handlers.topics]
        return min([_HANDED_OVER, *(each for each in limits if each is not None)])

    def suspect(self, messages: Sequence[Queued], reason: str) -> None:
        """These hung in a thread that was left behind: one counts as a failed attempt; of a list it is looked for."""
        self.watch = Watch()
        self._alone = True
        if len(messages) == 1:
            self._suspects[messages[0].message.source, messages[0].message.id] = HandlerHung(reason)

    def suspect_ended(self, broken: BatchBroken) -> None:
        """A handler ended the transaction, and nothing was committed: which message it was is known, or looked for."""
        self._alone = self._one_by_one = True
        self._suspects.update(broken.suspects())

    def note_committed(self) -> None:
        """What was suspected stood in this batch: it begins where the one that hung did."""
        self._suspects.clear()
        self._alone = self._one_by_one = False
        self._transient = 0

    def note_transient(self) -> None:
        """The whole transaction met a deadlock or a serialization failure, and runs again."""
        self._transient += 1

    def write(self, tx: PostgresInboxTx, loaded: Loaded, ranges: Sequence[Range], load_s: float) -> Committed:
        """Everything but the commit itself, which ends the caller's transaction."""
        began = time.monotonic()
        staged = tx.staged(self._run, loaded.table, loaded.tokens, loaded.places)
        staged.check()
        self._screen_odd(tx, staged, loaded)
        repeated = staged.keep(lambda reused: tx.quarantine([(each, _REUSED) for each in reused]))
        kept, at_hand = staged.count, AtHand()
        try:
            self._apply(tx, staged, at_hand)
        except Exception as error:
            if tx.lost or not tx.over:
                raise
            raise BatchBroken(at_hand, tx.mark, error) from error
        applied, later = at_hand.applied, at_hand.later
        put_off(tx, applied, later)
        done = Committed(
            read=loaded.rows,
            kept=kept,
            repeated=repeated,
            applied=kept - len(applied.failed) - len(applied.behind) - len(later) - at_hand.dead,
            queued=len(later) + len(applied.behind) + len(applied.failed) + at_hand.dead,
            dead=at_hand.dead,
            # By the age that their ids claim, or because those were used before.
            quarantined=loaded.rows - repeated - kept,
            load_s=load_s,
            logged_ms=loaded.logged_ms,
            ends={each.place: each.end for each in ranges},
        )
        tx.advance(_moves(ranges, loaded.logged_ms))
        done = replace(done, commit_s=time.monotonic() - began)
        staged.write_ledger(
            ranges=json.dumps([[*each.place, each.start, each.end] for each in ranges]),
            read=done.read,
            kept=done.kept,
            applied=done.applied,
            queued=done.queued,
            dead=done.dead,
            load_s=done.load_s,
            commit_s=done.commit_s,
        )
        reached("pipeline.before_commit")
        return done

    def _screen_odd(self, tx: PostgresInboxTx, staged: Staged, loaded: Loaded) -> None:
        """Set apart what cannot be kept as usual by the age that its id claims; nearly always nothing."""
        low, high = self._screen.bounds
        if loaded.low is None or loaded.high is None or (loaded.low >= low and loaded.high < high):
            return
        for piece in staged.drop_odd(low, high):
            good, odd = self._screen.sort(piece)
            staged.put_back(good)
            tx.quarantine(odd)

    def _apply(self, tx: PostgresInboxTx, staged: Staged, at_hand: AtHand) -> None:
        if self._deferred:
            at_hand.later = self._queued(staged.drop_all())
            return
        if tx.any_queued():
            ordered = [topic for topic in self._effect.handlers.topics if self._of(topic) == "key"]
            at_hand.later = self._queued(staged.drop_held(ordered, tx.held))
        if not staged.count:
            return
        if self._tried(tx, Messages(staged.relation(), staged.count)):
            staged.record()
            return
        self._cut(tx, staged, at_hand, 0, staged.number(), tried=True)

    def _cut(
        self,
        tx: PostgresInboxTx,
        staged: Staged,
        at_hand: AtHand,
        low: int,
        high: int,
        *,
        tried: bool = False,
    ) -> None:
        """The range, tried as a whole unless it has been, in halves, and where it is small message by message."""
        if high <= low:
            return
        if high - low > _FEW and self._effect.whole is not None:
            at_hand.part, at_hand.rows = (low, high), None
            if not tried and self._tried(tx, Messages(staged.relation(low, high), high - low)):
                staged.record(low, high)
                return
            middle = (low + high) // 2
            self._cut(tx, staged, at_hand, low, middle)
            self._cut(tx, staged, at_hand, middle, high)
            return
        step = _MANY if self._effect.whole is None else _FEW
        for start in range(low, high, step):
            self._each(tx, staged, at_hand, start, min(start + step, high))

    def _each(self, tx: PostgresInboxTx, staged: Staged, at_hand: AtHand, low: int, high: int) -> None:
        applied = at_hand.applied
        rows = self._queued(staged.rows(low, high))
        at_hand.part, at_hand.rows = (low, high), rows
        found = self.applier.apply(
            tx,
            rows,
            careful=True,
            watch=self.watch,
            suspects=self._suspects,
            alone=self._alone,
            patience_over=self._patience_over,
        )
        # A batch of Spark's may be as large as it likes: what is done is written down at once, and so are dead letters,
        # with their values and tracebacks; what is tried again needs neither.
        tx.record(found.applications)
        dead = [each for each in found.failed if each.again_in_s is None]
        put_off(tx, Applied(failed=dead), [])
        at_hand.dead += len(dead)
        applied.failed += [
            each._replace(queued=_outline(each.queued), traceback="")
            for each in found.failed
            if each.again_in_s is not None
        ]
        applied.behind += map(_outline, found.behind)
        keys = {
            (message.topic, message.key)
            for each in found.failed
            if (message := each.queued.message).key is not None
            and self._of(message.topic) == "key"
            and (each.again_in_s is not None or each.hold_key)
        }
        if keys:
            applied.behind += self._queued(staged.drop_behind(keys, high))

    def _tried(self, tx: PostgresInboxTx, batch: Messages) -> bool:
        """Whether it can be done as a whole, and went well; what it did is undone where not."""
        if self._effect.whole is None or self._one_by_one:
            return False
        try:
            with tx.savepoint():
                self._effect.whole(tx, batch)
                tx.settle_handed(check=True)
        except Exception as error:
            verdict = verdict_of(error, transient=self._transient < _APART_AFTER)
            if verdict in (Verdict.TRANSIENT, Verdict.LOST) or tx.lost or tx.over:
                raise  # nobody's fault: the whole transaction runs again
            # What is bad is found by halves, and kept with its reason.
            log.info(
                "%d messages failed together: %s", batch.count, error, extra={"action": "pipeline.halves"}
            )
            return False
        return True

    @property
    def _patience_over(self) -> bool:
        return self._transient > PATIENCE

    def _queued(self, messages: Sequence[Received]) -> list[Queued]:
        return [Queued(each, self.applier.key_hash(each)) for each in messages]

    def _of(self, topic: str) -> str:
        return self._effect.handlers.of(topic).order


def _outline(queued: Queued) -> Queued:
    return queued._replace(message=queued.message._replace(value=None, headers=""))


def _moves(ranges: Sequence[Range], logged_ms: Mapping[Place, int]) -> list[Move]:
    return [
        Move(*each.place, each.epoch, each.start, each.end, None, _moment(logged_ms.get(each.place)))
        for each in ranges
    ]


def _moment(milliseconds: int | None) -> datetime | None:
    if milliseconds is None or milliseconds < 0:
        return None
    return datetime.fromtimestamp(milliseconds / 1000, UTC)
