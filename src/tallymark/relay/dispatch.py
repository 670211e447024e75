"""Hands batches to Kafka and takes their outcomes: several on their way at once where the mode allows it.

What can never be published leaves its batch before Kafka's commit; what is unknown raises `OutcomeUnknown`, and whoever
asked settles anew.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace

from tallymark.errors import OutcomeUnknown, Problem
from tallymark.lifecycle import Mode
from tallymark.policy import ModePolicy
from tallymark.relay.config import RelayConfig
from tallymark.relay.exclusion import exclusion_of
from tallymark.relay.hand import Hand
from tallymark.relay.ledger import Ledger
from tallymark.relay.ports import (
    Batch,
    Exclusion,
    Identity,
    Kafka,
    Outcome,
    Publisher,
    Receipt,
    Refused,
    Rejected,
    Row,
    Sent,
    Unknown,
)
from tallymark.relay.topicbook import TopicBook


class Dispatcher:
    """One lane's publisher and what is on its way."""

    def __init__(self, ledger: Ledger, identity: Identity, kafka: Kafka, config: RelayConfig) -> None:
        self.book = TopicBook(ledger.store, kafka)
        self._ledger = ledger
        self._identity = identity
        self._kafka = kafka
        self._config = config
        self._publisher: Publisher | None = None
        self._policy = config.policy
        self._flights: deque[tuple[Batch, Sequence[Row]]] = deque()
        # Batches that were sent from here and have not landed: how old each was when it was last tried, by number.
        self._tried: dict[int, float] = {}
        self._hurried: float | None = None
        # Kafka's commit runs here, so that the lane can claim its next batch meanwhile.
        self._hand: Hand | None = None
        self._committing: Future[Outcome] | None = None
        # The id of the first message of the batch that landed last: of all in it, it had waited longest.
        self.landed: str | None = None

    @property
    def started(self) -> bool:
        return self._publisher is not None

    @property
    def publisher(self) -> Publisher:
        if self._publisher is None:
            raise Problem("the lane has no publisher yet")
        return self._publisher

    @property
    def flying(self) -> bool:
        return bool(self._flights)

    @property
    def full(self) -> bool:
        return len(self._flights) >= self._policy.in_flight

    def tried_at(self, batch: Batch) -> float | None:
        """How old a batch was when it was last sent from here; None if it never was."""
        return self._tried.get(batch.number)

    def hurry(self, within_s: float) -> None:
        """Wait for nothing longer than this from now on. From any thread: whoever stops us does not work the lane."""
        self._hurried = within_s
        if (publisher := self._publisher) is not None:
            publisher.hurry(within_s)

    def start(self, mode: Mode) -> None:
        """A new publisher: it fences every earlier one of this lane."""
        self.stop()
        self._policy = ModePolicy.of(mode)
        self._publisher = self._kafka.publisher(
            self._identity, self._ledger.lane.lane, mode, self.book.records()
        )
        self._hand = Hand(f"lane-{self._ledger.lane.lane}-commit")
        if self._hurried is not None:
            self._publisher.hurry(self._hurried)
        self._publisher.fence()
        # Kafka's fence is last-comer-wins, the lease is highest-epoch: a stale claimant that fenced late stops here.
        self._ledger.recheck()

    def stop(self) -> None:
        self._flights.clear()
        if self._committing is not None:
            self._committing.cancel()
            self._committing = None
        if self._hand is not None:
            # Not waited for: a commit that is still under way is fenced by the next publisher, or in doubt.
            self._hand.dismiss()
            self._hand = None
        publisher, self._publisher = self._publisher, None
        if publisher is not None:
            publisher.close()

    def launch(self, batch: Batch, rows: Sequence[Row]) -> None:
        """Send a claimed batch on its way, without the topics that cannot be published into."""
        news, problems = self.book.look_up({row[2] for row in rows})
        if problems:
            batch, rows = self._ledger.leave_out(batch, rows, Exclusion(topics=problems))
        unfit = [record.topic for record in news if not self.publisher.learn(record)]
        if unfit or self.publisher.outgrown():
            self.drain()
            self.start(self._policy.mode)
        self._tried[batch.number] = batch.age_s
        self.publisher.send(batch, rows)
        self._flights.append((batch, rows))
        if self._policy.transactional and self._hand is not None:
            self._committing = self._hand.submit(self.publisher.finish)

    def land(self) -> int:
        """Wait for the oldest batch on its way; gives back how many messages of it are in the log."""
        batch, rows = self._flights.popleft()
        while True:
            committing, self._committing = self._committing, None
            outcome = committing.result() if committing is not None else self.publisher.finish()
            if isinstance(outcome, Refused):
                outcome = self._examined(rows)
            if isinstance(outcome, Unknown):
                raise OutcomeUnknown(f"batch {batch.number} of lane {batch.lane}: {outcome.reason}")
            if isinstance(outcome, Sent):
                self._landed(batch, rows, outcome.receipt)
                self.landed = rows[0][1] if rows else None
                return len(rows)
            exclusion = exclusion_of(
                outcome, rows, hold_key=self._config.hold_key and self._policy.transactional
            )
            batch, rows = self._ledger.leave_out(batch, rows, exclusion)
            if not self._policy.transactional:  # everything else is in the log already
                self._landed(batch, rows, None)
                return len(rows)
            self._ledger.recheck()  # the publisher has fenced anew
            self.publisher.send(batch, rows)

    def _landed(self, batch: Batch, rows: Sequence[Row], receipt: Receipt | None) -> None:
        # As many as there were in it at last: a topic that is held has left it with all its messages.
        self._tried.pop(batch.number, None)
        self._ledger.sent(replace(batch, messages=len(rows)), receipt)

    def _examined(self, rows: Sequence[Row]) -> Rejected | Unknown:
        # To learn which messages it was, the publisher fences anew. A zombie whose messages were refused because it
        # was fenced itself must not shut out the rightful owner for that.
        self._ledger.recheck()
        return self.publisher.examine(rows)

    def drain(self) -> int:
        """Wait for everything on its way, and mark it."""
        messages = 0
        while self._flights:
            messages += self.land()
        self._ledger.mark()
        return messages
