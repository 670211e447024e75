"""One lane at work: claim, publish, mark; and after anything uncertain, settle before going on.

`run_once` does one step and says what it was. It raises `Stale` when another relay has the lane, `Inconsistent` when log
and database disagree, and other errors of ours for what passes: `reset`, wait, try again. The worker keeps nothing that
it could not learn again from the database and the log, so `reset` is always safe.
"""

from __future__ import annotations

import enum
import logging
import time
from concurrent.futures import Future
from dataclasses import dataclass, replace

from tallymark.lifecycle import BatchKind, HoldState
from tallymark.relay.config import RelayConfig
from tallymark.relay.dispatch import Dispatcher
from tallymark.relay.frontier import Frontier
from tallymark.relay.hand import Hand
from tallymark.relay.ledger import Ledger
from tallymark.relay.ports import Batch, Hold, Identity, Kafka, Lane, RelayStore, Slice
from tallymark.relay.settle import settle

log = logging.getLogger("tallymark.relay")


class Did(enum.Enum):
    """What a step did."""

    SENT = "sent a batch"
    PASSED = "passed over positions that hold nothing of this lane"
    IDLE = "found nothing to send"
    PAUSED = "is paused"


@dataclass(frozen=True, slots=True)
class Step:
    """The result of one step."""

    did: Did
    messages: int = 0


class LaneWorker:
    """Works one lane for as long as it is ours. Used by one thread."""

    def __init__(
        self,
        lane: Lane,
        *,
        identity: Identity,
        store: RelayStore,
        ahead: RelayStore,
        kafka: Kafka,
        frontier: Frontier,
        config: RelayConfig,
    ) -> None:
        self.ledger = Ledger(lane, store, config)
        self.dispatcher = Dispatcher(self.ledger, identity, kafka, config)
        self.in_doubt = 0
        self._lanes = identity.lanes
        self._store = store
        self._ahead = ahead
        self._kafka = kafka
        self._frontier = frontier
        self._config = config
        self._reader = Hand(f"lane-{lane.lane}-reader")
        self._next: Future[Slice] | None = None
        self._look_for_retries = True
        self._holds_checked = 0.0

    @property
    def lane(self) -> Lane:
        return self.ledger.lane

    def run_once(self) -> Step:
        """One step: settle if that is due, land a batch, or send the next one."""
        if not self.dispatcher.started:
            self.in_doubt += settle(self.ledger, self.dispatcher, self._config)
            self._look_for_retries = True
        if self.ledger.refresh_due() and self.ledger.refresh():
            self._look_for_retries = True
        if self.lane.paused:
            self.dispatcher.drain()
            return Step(Did.PAUSED)
        # Behind, the next batch is claimed while Kafka commits this one; else it waits, and gathers more meanwhile.
        early = self._config.policy.transactional and self._next is not None and not self._look_for_retries
        if self.dispatcher.full and not early:
            return Step(Did.SENT, self.dispatcher.land())
        if special := self._special_batch():
            self.dispatcher.launch(special, self._store.contents(special))
            return Step(Did.SENT, self.dispatcher.drain())
        return self._range(self._next_slice())

    def finish(self) -> None:
        """End in good order: what was begun is finished and marked."""
        if self.dispatcher.started:
            self.dispatcher.drain()
            self.ledger.write_progress()
        self.reset()

    def reset(self) -> None:
        """Forget everything; the next step settles anew."""
        if self._next is not None:
            self._next.cancel()
            self._next = None
        self.dispatcher.stop()
        self.dispatcher.book.forget()
        self._frontier.forget()
        self.ledger.forget()

    def close(self) -> None:
        self.reset()
        self._reader.dismiss(wait=True)
        self._store.close()
        self._ahead.close()

    # The ordinary way: the lane's next rows

    def _next_slice(self) -> Slice:
        if self._next is not None:
            future, self._next = self._next, None
            piece = future.result()
            if piece.after == self.lane.covered:
                return piece
        return self._read(self._store, self.lane.covered)

    def _read(
        self, store: RelayStore, after: int, upto: int | None = None, hold: Hold | None = None
    ) -> Slice:
        """The lane's next rows. A window of positions bounds what is looked at, however long the backlog is."""
        safe = self._frontier.beyond(after) if upto is None else upto
        if safe <= after:
            return Slice(after, after, ())
        config = self._config
        window = min(safe, after + config.batch_messages * self._lanes)
        piece = store.read(self.lane, after, window, config.batch_messages, config.batch_bytes, hold)
        return replace(piece, more=piece.more or window < safe)

    def _range(self, piece: Slice) -> Step:
        left_out = tuple(sorted(hold.topic for hold in self.ledger.holds))
        rows = [row for row in piece.rows if row[2] not in left_out] if left_out else piece.rows
        if not rows:
            if self.dispatcher.flying:
                # Not marked yet: where more came meanwhile, the next claim does it too.
                return Step(Did.SENT, self.dispatcher.land())
            if self.ledger.unmarked:
                self.ledger.mark()
                return Step(Did.SENT)
            self.ledger.pass_over(piece.upto)
            return Step(Did.PASSED if piece.more else Did.IDLE)
        waiting = self.ledger.waiting(rows)
        if waiting:
            rows = [row for row in rows if row[0] not in waiting]
        batch = self.ledger.claim(
            self.ledger.batch(
                BatchKind.RANGE, piece.after, piece.upto, messages=len(rows), without_topics=left_out
            ),
            waiting,
        )
        if piece.more:  # behind: read the next rows while these are being sent
            self._next = self._reader.submit(self._read, self._ahead, piece.upto)
        landed = self.dispatcher.land() if self.dispatcher.full else 0
        late = self.ledger.exclusion_since(batch, rows)
        if late is not None:
            batch, rows = self.ledger.leave_out(batch, rows, late)
        self.dispatcher.launch(batch, rows)
        return Step(Did.SENT, landed)

    # What goes before anything new: parked messages that were freed, a held topic's rows that were passed over

    def _special_batch(self) -> Batch | None:
        if self._look_for_retries:
            self.dispatcher.drain()
            if (retry := self.ledger.claim_retry()) is not None:
                return retry  # and look again: there may be more
            self._look_for_retries = False
        if not self.ledger.holds:
            return None
        self._release_topics()
        return self._catch_up()

    def _release_topics(self) -> None:
        if time.monotonic() - self._holds_checked < self._config.hold_check_s:
            return
        self._holds_checked = time.monotonic()
        for hold in self.ledger.holds:
            if hold.state is not HoldState.HELD:
                continue
            if self.dispatcher.book.judge(self._kafka.inspect(hold.topic))[0] is not None:
                log.info("topic %s is put right", hold.topic, extra={"action": "relay.topic_released"})
                self._store.update_hold(self.lane, replace(hold, state=HoldState.CATCHING_UP))
        self.ledger.holds = self._store.holds(self.lane)

    def _catch_up(self) -> Batch | None:
        for hold in self.ledger.holds:
            if hold.state is not HoldState.CATCHING_UP:
                continue
            self.dispatcher.drain()
            piece = self._read(self._store, hold.start, self.lane.covered, hold)
            while piece.more and not piece.rows:
                piece = self._read(self._store, piece.upto, self.lane.covered, hold)
            if not piece.rows:  # it has caught up: from here on the topic goes with the others again
                self._store.end_hold(self.lane, hold.topic)
                self.ledger.holds = self._store.holds(self.lane)
                self.ledger.look_again()
                continue
            waiting = self.ledger.waiting(piece.rows)
            batch = self.ledger.batch(
                BatchKind.TOPIC,
                hold.start,
                piece.upto,
                topic=hold.topic,
                messages=len(piece.rows) - len(waiting),
            )
            return self.ledger.claim(batch, waiting)
        return None
