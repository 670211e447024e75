"""Counts what the inbox does, under the names of observe/names.py."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from tallymark.inbox.book import Book
from tallymark.inbox.custody import Custody
from tallymark.inbox.outcome import Outcome
from tallymark.inbox.ports import Place, Position, Received
from tallymark.inbox.workers import Round
from tallymark.observe import names
from tallymark.observe.metric import Metric
from tallymark.observe.metrics import Metrics
from tallymark.observe.waiting import since_id


class Tallies:
    """One consumer's counters."""

    def __init__(self, metrics: Metrics, consumer: str) -> None:
        self._metrics = metrics
        self._consumer = consumer

    def kept(self, outcome: Outcome, messages: Sequence[Received], seconds: float) -> None:
        self._add(names.INBOX_KEPT, outcome.kept)
        self._add(names.INBOX_REPEATED, outcome.repeated)
        self._add(names.INBOX_APPLIED, outcome.applied)
        self._add(names.INBOX_FAILED, outcome.failed)
        self._add(names.INBOX_DEAD, outcome.dead)
        self._add(names.INBOX_QUARANTINED, outcome.quarantined)
        self._add(names.INBOX_RERUNS, outcome.reruns)
        self._add(names.INBOX_FENCED, len(outcome.fenced))
        if messages:
            self._observe(names.INBOX_BATCH_SIZE, len(messages))
            self._observe(names.INBOX_BATCH_SECONDS, seconds)
            self._waited(messages[0], applied=bool(outcome.applied))

    def _waited(self, first: Received, *, applied: bool) -> None:
        """Of one message for each batch, the first: millions of them cost next to nothing."""
        now = time.time()
        if first.logged_at is not None:
            self._observe(names.INBOX_LOG_TO_KEPT, max(0.0, now - first.logged_at.timestamp()))
        if applied and (waited := since_id(first.id, now)) is not None:
            self._observe(names.INBOX_ADDED_TO_APPLIED, waited)

    def worked(self, done: Round) -> None:
        self._add(names.INBOX_APPLIED, done.applied)
        self._add(names.INBOX_FAILED, done.failed)
        self._add(names.INBOX_DEAD, done.dead)
        if done.first is not None:
            now = time.time()
            if (waited := since_id(done.first.id, now)) is not None:
                self._observe(names.INBOX_ADDED_TO_APPLIED, waited)
            if done.first_kept_at is not None:
                self._observe(names.INBOX_KEPT_TO_APPLIED, max(0.0, now - done.first_kept_at.timestamp()))

    def fenced(self, places: int) -> None:
        self._add(names.INBOX_FENCED, places)

    def hung(self, handlers: int) -> None:
        self._add(names.INBOX_HUNG, handlers)

    def book(self, book: Book, custody: Custody) -> None:
        self._set(names.INBOX_PARTITIONS, len(book.epochs()))
        self._set(names.INBOX_WAITING, len(book.waiting()))
        self._set(names.INBOX_REBALANCES, custody.rebalances)

    def lag(self, behind: Mapping[Place, int], positions: Mapping[Place, Position]) -> None:
        self._set(names.INBOX_LAG, sum(max(0, each) for each in behind.values()))
        now = datetime.now(UTC)
        ages = [
            (now - kept).total_seconds()
            for place, offsets in behind.items()
            if offsets > 0 and place in positions and (kept := positions[place].logged_at) is not None
        ]
        self._set(names.INBOX_LAG_SECONDS, max(ages, default=0.0))

    def _add(self, metric: Metric, amount: int) -> None:
        if amount:
            self._metrics.add(metric, amount, consumer=self._consumer)

    def _observe(self, metric: Metric, value: float) -> None:
        self._metrics.observe(metric, value, consumer=self._consumer)

    def _set(self, metric: Metric, value: float) -> None:
        self._metrics.set(metric, value, consumer=self._consumer)
