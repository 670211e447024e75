"""Applies messages inside a transaction that somebody else began, and says what became of each. Writes no marks.

The happy way makes no savepoints (but for UniqueConstraint): the first handler that fails raises HandlerFailed, the
caller rolls back and comes again with `careful=True`. The careful way makes a savepoint per message, or halves a list
until what fails stands alone; the others stay.

Order within a key is kept: once a message has failed, the later ones of its key are `behind` it and are not tried.
What is nobody's fault (a deadlock, a lost connection) always comes out unchanged: the transaction is over. A handler
that ended the transaction itself comes out as TransactionBroken, with what was done before it.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence

from tallymark.apply.applied import Applied, HandlerFailed, HandlerHung, TransactionBroken
from tallymark.apply.calling import Ready, call_list, call_one, ended
from tallymark.apply.failure import Verdict, failed, verdict_of
from tallymark.apply.handlers import Handler, Handlers
from tallymark.apply.incoming import Message
from tallymark.apply.rate import Bucket, Pace
from tallymark.apply.watch import Clock, Watch
from tallymark.errors import TransactionEnded, said
from tallymark.inbox.identity import KeyHashes, key_hash
from tallymark.inbox.ports import Application, Failed, InboxTx, Queued, Received
from tallymark.lifecycle import ApplicationOutcome

__all__ = ["Applied", "Applier", "HandlerFailed", "HandlerHung", "Suspects", "TransactionBroken"]

# (source, id) of a message whose handler hung or ended its transaction, and what was seen; None where it was one of a
# list, and any of them.
Suspects = Mapping[tuple[str, object], Exception | None]

_NOBODYS_FAULT = (Verdict.TRANSIENT, Verdict.LOST)


class Applier:
    """Shared by all threads of a process: what it holds itself are the rates."""

    def __init__(
        self,
        handlers: Handlers,
        *,
        wait: Callable[[float], object] = time.sleep,
        clock: Clock = time.monotonic,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self.handlers = handlers
        self._wait = wait
        self._clock = clock
        self._jitter = jitter
        self._buckets: dict[str, Bucket] = {}
        self._hashes = {
            topic: KeyHashes(topic) for topic in handlers.topics if handlers.of(topic).order == "key"
        }
        for topic in handlers.topics:
            if (rate := handlers.of(topic).max_rate) is not None:
                self._buckets[topic] = Bucket(rate)

    def key_hash(self, message: Received) -> int:
        """What messages share that must stay in order. Where any order will do, each stands alone."""
        known = self._hashes.get(message.topic)
        if known is None or message.key is None:
            return key_hash(message.topic, None, message.id)
        return known[message.key]

    def needs_saved_id(self, topic: str) -> bool:
        """Whether nothing but the saved id stops a second effect of this topic's messages."""
        return self.handlers.of(topic).once.needs_saved_id

    def at_most(self, topic: str) -> int | None:
        """How many of this topic's messages one transaction should have, so that its rate holds it open for a second."""
        bucket = self._buckets.get(topic)
        return None if bucket is None else bucket.second

    def due(self, topics: Sequence[str]) -> tuple[str, ...]:
        """Those whose rate allows a call now."""
        now = self._clock()
        return tuple(
            topic for topic in topics if (bucket := self._buckets.get(topic)) is None or bucket.is_ready(now)
        )

    def apply(
        self,
        tx: InboxTx,
        messages: Sequence[Queued],
        *,
        careful: bool,
        watch: Watch,
        suspects: Suspects | None = None,
        alone: bool = False,
        until: float | None = None,
        patience_over: bool = False,
    ) -> Applied:
        """Hand each message to its topic's handler, in order.

        `alone` gives handlers of lists one message at a time; after `until` no other call begins, and what is not yet
        handed over is `left`. `patience_over` counts a deadlock or a serialization failure as a failed attempt: for
        a message that met one again and again, alone (another database's, or one that a trigger raises).
        """
        pace = Pace(self._buckets, self._wait, self._clock, until)
        applying = _Applying(self, tx, watch, suspects or {}, careful, pace, patient=not patience_over)
        try:
            for topic, rows in _by_topic(messages).items():
                handler = self.handlers.of(topic)
                if handler.batch and not alone:
                    step = pace.at_once(topic) or len(rows)
                    for start in range(0, len(rows), step):
                        applying.list(handler, rows[start : start + step])
                else:
                    applying.each(handler, rows)
        except HandlerFailed:
            pace.runs_again()
            raise
        return applying.applied

    def failure(self, handler: Handler, queued: Queued, error: Exception, verdict: Verdict) -> Failed:
        return failed(
            queued,
            error,
            verdict,
            attempts=handler.attempts,
            backoff=handler.backoff,
            hold_key=handler.on_dead == "hold-key" and handler.order == "key",
            random=self._jitter(),
        )


class _Applying:
    """One run of `apply`."""

    def __init__(
        self,
        applier: Applier,
        tx: InboxTx,
        watch: Watch,
        suspects: Suspects,
        careful: bool,
        pace: Pace,
        *,
        patient: bool,
    ) -> None:
        self.applied = Applied()
        self._applier = applier
        self._tx = tx
        self._watch = watch
        self._suspects = suspects
        self._careful = careful
        self._pace = pace
        self._patient = patient
        self._held: set[int] = set()

    def each(self, handler: Handler, rows: Sequence[Queued]) -> None:
        for queued in rows:
            if self._pace.time_is_up():
                self.applied.left.append(queued)
                continue
            if queued.key_hash in self._held:
                self.applied.behind.append(queued)
                continue
            ready = self._ready(handler, queued)
            if isinstance(ready, Failed):
                self._fail(handler, ready)
                continue
            if not self._pace.turn(handler.topic, 1):
                self.applied.left.append(queued)
                continue
            try:
                if self._careful:
                    with self._tx.savepoint():
                        outcome = call_one(self._tx, handler, ready, self._watch, check=True)
                else:
                    outcome = call_one(self._tx, handler, ready, self._watch)
            except Exception as error:  # noqa: BLE001 - whatever a handler raises is judged
                self._judge(handler, [ready], error)
            else:
                self._done(queued, outcome)

    def list(self, handler: Handler, rows: Sequence[Queued]) -> None:
        """What is known to fail before the handler is called stops its key there; the list runs without it."""
        if self._pace.time_is_up():
            self.applied.left += rows
            return
        listed: list[Ready] = []
        left: list[Queued | Failed] = []
        stopped: set[int] = set()
        for queued in rows:
            if queued.key_hash in stopped:
                left.append(queued)
                continue
            ready = self._ready(handler, queued)
            if isinstance(ready, Failed):
                left.append(ready)
                if _holds(handler, ready):
                    stopped.add(queued.key_hash)
            else:
                listed.append(ready)
        self._list(handler, listed)
        for each in left:
            queued = each.queued if isinstance(each, Failed) else each
            # An earlier one of its key may have failed in the list: then even the undecodable one waits behind it.
            if self._pace.time_is_up():
                self.applied.left.append(queued)
            elif queued.key_hash in self._held or not isinstance(each, Failed):
                self.applied.behind.append(queued)
            else:
                self._fail(handler, each)

    def _list(self, handler: Handler, listed: Sequence[Ready]) -> None:
        free = [each for each in listed if each[0].key_hash not in self._held]
        self.applied.behind += [queued for queued, _ in listed if queued.key_hash in self._held]
        if not free:
            return
        if not self._pace.turn(handler.topic, len(free)):
            self.applied.left += [queued for queued, _ in free]
            return
        try:
            if self._careful:
                with self._tx.savepoint():
                    outcomes = call_list(self._tx, handler, free, self._watch, check=True)
            else:
                outcomes = call_list(self._tx, handler, free, self._watch)
        except Exception as error:  # noqa: BLE001 - whatever a handler raises is judged
            if self._careful and len(free) > 1:
                self._raise_if_over(handler, free, error)
                half = len(free) // 2
                self._list(handler, free[:half])
                self._list(handler, free[half:])
            else:
                self._judge(handler, free, error)
        else:
            self.applied.done += [queued for queued, _ in free]
            self.applied.applications += [
                Application(queued.message, outcome, queued.attempts + 1)
                for (queued, _), outcome in zip(free, outcomes, strict=True)
            ]

    def _ready(self, handler: Handler, queued: Queued) -> Ready | Failed:
        """The message as the handler takes it; Failed where that is known before the handler is called."""
        received = queued.message
        seen = self._suspects.get((received.source, received.id)) if self._suspects else None
        if seen is not None:
            return self._applier.failure(handler, queued, seen, verdict_of(seen))
        if handler.own_decode:  # it may ask a registry, and hang there
            self._watch.began((queued,), handler.handler_timeout_s)
        try:
            value = handler.decoder(received)
        except KeyboardInterrupt:
            raise
        except BaseException as met:  # noqa: BLE001 - also what decode= met outside (a registry that is down)
            error = met if isinstance(met, Exception) else ended(handler, met)
            # No statement was run: the connection has no part in it.
            verdict = verdict_of(error, handler.permanent, lost=False)
            return self._applier.failure(handler, queued, error, verdict)
        finally:
            if handler.own_decode:
                self._watch.ended()
        return queued, Message(received, queued.attempts + 1, value)

    def _judge(self, handler: Handler, called: Sequence[Ready], error: Exception) -> None:
        verdict = self._raise_if_over(handler, called, error)
        queued = called[0][0]
        if not self._careful:
            raise HandlerFailed(queued, error) from error
        self._fail(handler, self._applier.failure(handler, queued, error, verdict))

    def _raise_if_over(self, handler: Handler, called: Sequence[Ready], error: Exception) -> Verdict:
        """What is nobody's fault comes out unchanged. So does the transaction's end, whatever was raised after it."""
        # A thread that was given up has lost its session, whether or not it has noticed yet.
        lost = self._tx.lost or self._watch.is_abandoned()
        verdict = verdict_of(error, handler.permanent, lost=lost, transient=self._patient)
        if verdict in _NOBODYS_FAULT:
            raise error
        if not self._tx.over:
            return verdict
        cause = (
            error
            if isinstance(error, TransactionEnded)
            else TransactionEnded(f"handler {handler.name} ended its transaction, and raised {said(error)}")
        )
        dead = [self._applier.failure(handler, each, cause, Verdict.PERMANENT) for each, _ in called]
        raise TransactionBroken(self.applied, dead, cause) from error

    def _fail(self, handler: Handler, failure: Failed) -> None:
        self.applied.failed.append(failure)
        if _holds(handler, failure):
            self._held.add(failure.queued.key_hash)

    def _done(self, queued: Queued, outcome: ApplicationOutcome) -> None:
        self.applied.applications.append(Application(queued.message, outcome, queued.attempts + 1))
        self.applied.done.append(queued)


def _holds(handler: Handler, failure: Failed) -> bool:
    """Whether the key's later messages wait behind this one."""
    return handler.order == "key" and (failure.again_in_s is not None or failure.hold_key)


def _by_topic(messages: Sequence[Queued]) -> dict[str, list[Queued]]:
    rows: dict[str, list[Queued]] = {}
    for queued in messages:
        rows.setdefault(queued.message.topic, []).append(queued)
    return rows
