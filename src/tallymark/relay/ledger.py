"""A lane's records, as its owner keeps them: claims and marks, held keys, held topics.

A mark waits for the next claim, so that both are one commit; `mark` writes it alone where nothing follows. All
that is here can be learnt again from the database, so it may be thrown away at any time.
"""

from __future__ import annotations

import logging
import math
import time
import uuid
from collections.abc import Sequence
from dataclasses import replace

from tallymark.crashpoint import reached
from tallymark.errors import Inconsistent
from tallymark.lifecycle import BatchKind, Mode
from tallymark.relay.config import RelayConfig
from tallymark.relay.exclusion import by_message
from tallymark.relay.ports import Batch, Exclusion, Hold, Key, Lane, Receipt, RelayStore, Row

log = logging.getLogger("tallymark.relay")

# Of a batch whose messages all fail, these many are logged one by one; the rest stand in `parked`.
_LOGGED = 3
_WAITS = "waits behind a parked message of its key"


class Ledger:
    """What one lane has claimed, sent and set aside."""

    def __init__(self, lane: Lane, store: RelayStore, config: RelayConfig) -> None:
        self.lane = lane
        self.store = store
        self.holds: tuple[Hold, ...] = ()
        self._config = config
        self._held_keys: dict[Key, int] = {}
        self._sent: tuple[Batch, Receipt | None] | None = None
        self._written = lane.covered
        self._refreshed = 0.0
        self._looked = -math.inf
        self._asked: int | None = None

    # What operators and other relays did

    def refresh_due(self) -> bool:
        return time.monotonic() - self._refreshed >= self._config.refresh_s

    def refresh(self) -> bool:
        """Look at the lane again: is it ours, is it paused, which topics are held; where somebody asked for it, and now
        and then, which keys too: gives back whether."""
        self.write_progress()
        lane = self.store.reread(self.lane)
        if lane.halted:
            raise Inconsistent(f"lane {lane.lane} is halted: {lane.halted}")
        self.lane = lane
        self._written = lane.covered
        self.holds = self.store.holds(lane)
        self._refreshed = now = time.monotonic()
        if lane.asked is not None and lane.asked == self._asked and now - self._looked < self._config.look_s:
            return False
        self._held_keys = self.store.held_keys(lane) if self._config.hold_key else {}
        self._asked, self._looked = lane.asked, now
        return True

    def recheck(self) -> None:
        """Stop here if another relay has taken the lane over."""
        self.lane = self.store.reread(self.lane)

    def forget(self) -> None:
        """After anything uncertain: the database knows better, but for a batch that is in the log and not marked yet."""
        self.look_again()

    def look_again(self) -> None:
        """Keys and topics may be free now: the next step looks at all of them."""
        self._refreshed, self._looked = 0.0, -math.inf

    # Claims and marks

    def batch(
        self,
        kind: BatchKind,
        after: int,
        upto: int,
        *,
        messages: int = 0,
        topic: str | None = None,
        without_topics: tuple[str, ...] = (),
    ) -> Batch:
        """The lane's next batch, not yet claimed."""
        return Batch(
            lane=self.lane.lane,
            number=self.lane.last_number + 1,
            token=str(uuid.uuid4()),
            kind=kind,
            after=after,
            upto=upto,
            covered=upto if kind is BatchKind.RANGE else self.lane.covered,
            mode=self._config.mode,
            messages=messages,
            topic=topic,
            without_topics=without_topics,
        )

    def claim(self, batch: Batch, waiting: dict[int, str] | None = None) -> Batch:
        """Claim a batch, and in the same commit mark the one before it."""
        done, self._sent = self._sent, None
        reached("relay.before_claim")
        if done is not None:
            reached("relay.before_mark")
        self.lane = self.store.advance(
            self.lane,
            mark=done[0] if done else None,
            receipt=done[1] if done else None,
            claim=batch,
            waiting=waiting,
        )
        self._written = self.lane.covered
        if done is not None:
            reached("relay.after_mark")
        reached("relay.after_claim")
        return replace(batch, clock_ms=self.lane.clock_ms)

    def adopt(self, batch: Batch, mode: Mode) -> Batch:
        """A batch that is sent in another mode than it was claimed in is resolved as what it was sent as."""
        return batch if batch.mode is mode else self.store.adopt(self.lane, batch, mode)

    def claim_retry(self) -> Batch | None:
        """Parked messages that an operator freed, if there are any."""
        self.mark()
        wanted = self.batch(BatchKind.RETRY, self.lane.covered, self.lane.covered)
        self.lane, claimed = self.store.claim_retry(
            self.lane, wanted, self._config.batch_messages, self._config.batch_bytes
        )
        return claimed

    def sent(self, batch: Batch, receipt: Receipt | None) -> None:
        """This batch is in the log; it is marked with the next claim, or by `mark`."""
        self.mark()
        self._sent = batch, receipt

    @property
    def unmarked(self) -> bool:
        return self._sent is not None

    def mark(self) -> None:
        if self._sent is None:
            return
        (batch, receipt), self._sent = self._sent, None
        reached("relay.before_mark")
        self.lane = self.store.advance(self.lane, mark=batch, receipt=receipt)
        reached("relay.after_mark")
        if batch.kind is not BatchKind.RANGE:
            self.look_again()

    def pass_over(self, upto: int) -> None:
        """Nothing of this lane stands up to there. Written down with the next refresh."""
        self.lane = replace(self.lane, covered=upto)

    def write_progress(self) -> None:
        if self.lane.covered > self._written:
            self.lane = self.store.progress(self.lane, self.lane.covered)
            self._written = self.lane.covered

    # What is set aside

    def waiting(self, rows: Sequence[Row]) -> dict[int, str]:
        """Rows behind a parked one of their key: asked when claimed, not when they were read ahead (pitfall 6)."""
        held = self._held_keys
        if not held:
            return {}
        return {
            row[0]: _WAITS
            for row in rows
            if row[3] is not None and held.get((row[2], row[3]), row[0]) < row[0]
        }

    def exclusion_since(self, batch: Batch, rows: Sequence[Row]) -> Exclusion | None:
        """What must leave a claimed batch because the one before it, landing later, parked a key or held a topic.

        Of rows of the outbox only: a retry is made of held keys, and a catch-up of a held topic.
        """
        if batch.kind is not BatchKind.RANGE:
            return None
        held = {hold.topic: hold.reason for hold in self.holds if hold.topic not in batch.without_topics}
        topics = {topic: reason for topic, reason in held.items() if any(row[2] == topic for row in rows)}
        waiting = self.waiting([row for row in rows if row[2] not in topics])
        return Exclusion(waiting=waiting, topics=topics) if waiting or topics else None

    def leave_out(
        self, batch: Batch, rows: Sequence[Row], exclusion: Exclusion
    ) -> tuple[Batch, Sequence[Row]]:
        """Messages and topics leave a batch in a commit of their own, before Kafka's."""
        if batch.kind is BatchKind.RETRY and exclusion.topics:
            # Left in the batch's name they would be marked as sent with it.
            exclusion = by_message(exclusion, rows)
        for topic, reason in exclusion.topics.items():
            log.error(
                "topic %s is held: %s", topic, reason, extra={"action": "relay.hold_topic", "topic": topic}
            )
        for position, reason in list(exclusion.failed.items())[:_LOGGED]:
            log.error(
                "message at position %d is parked: %s (%d parked in all from batch %d)",
                position,
                reason,
                len(exclusion.failed),
                batch.number,
                extra={"action": "relay.park", "position": position},
            )
        batch = self.store.exclude(self.lane, batch, exclusion)
        gone = exclusion.failed.keys() | exclusion.waiting.keys()
        if self._config.hold_key:
            for position, _id, topic, key, *_ in rows:
                if position in gone and key is not None:
                    self._held_keys[topic, key] = min(position, self._held_keys.get((topic, key), position))
        self.holds = self.store.holds(self.lane)
        return batch, [row for row in rows if row[0] not in gone and row[2] not in exclusion.topics]
