"""A lane's producers: one, or in transactions two that take the batches in turn.

Kafka finishes a committed transaction by writing its markers, and keeps the same producer waiting until they are written;
another one need not wait. Whose turn it is, is said by whoever sends: at most one transaction is open.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from tallymark.broker import fencing, profiles
from tallymark.broker.clients import made
from tallymark.broker.kafka import KafkaException, Producer
from tallymark.broker.patience import Patience
from tallymark.policy import ModePolicy
from tallymark.relay.ports import Identity, TopicRecord

# What Kafka adds to a message beside its key, value and headers, at most.
_OVERHEAD = 512
# The client takes no larger messages, whatever a topic takes (librdkafka's own bound of message.max.bytes).
_CLIENT_TAKES = 1_000_000_000
# How much may be queued, unless a single message may be more: that would never find room.
_QUEUE_KB = 256 * 1024
# So long may a producer that is let go in mid-transaction take to have its partitions registered.
_SETTLED_S = 1.0


@dataclass(frozen=True, slots=True)
class PublisherSettings:
    """What a publisher is made of."""

    client: profiles.Client
    identity: Identity
    lane: int
    policy: ModePolicy
    prefix: str
    # How long a batch may take, with or without a transaction.
    transaction_timeout_s: float


@dataclass(slots=True)
class _Seat:
    """A producer, and the transactional id that it goes by; None without transactions."""

    id: str | None
    producer: Producer


class LaneProducers:
    """Made for some topics: their limits are its own."""

    def __init__(self, settings: PublisherSettings, topics: Sequence[TopicRecord]) -> None:
        self._settings = settings
        limits = [record.max_message_bytes for record in topics] or [1_000_000]
        # No record batch may be larger than the smallest topic takes, or its messages would fail for its sake.
        self._smallest = max(1, min(1_000_000, min(limits) - _OVERHEAD))
        self._largest = min(max(1_048_588, *limits), _CLIENT_TAKES)
        transactional = settings.policy.transactional
        ids = fencing.transactional_ids(settings.identity, settings.lane) if transactional else (None,)
        self._seats = deque(_Seat(id_, made(Producer, self._profile(id_))) for id_ in ids)
        # With when each was renewed.
        self._retired: deque[tuple[float, Producer]] = deque()
        self.patience = Patience(settings.transaction_timeout_s)

    @property
    def now(self) -> Producer:
        """Whose turn it is."""
        return self._seats[0].producer

    def turn(self) -> None:
        """The next batch is the next one's."""
        self._let_go()
        self._seats.rotate()

    def fence(self) -> None:
        """Shut out every earlier producer of the lane, whichever of its ids it went by."""
        for seat in self._seats:
            fencing.fence(seat.producer, self.patience)

    def renew(self) -> None:
        """Nothing of the open transaction remains: a new producer aborts it when it fences this one.

        A client that had a message refused may take its whole time-out to abort, and counts on from the refused one.
        The old one is kept for a moment: it may be waiting for an answer.
        """
        seat = self._seats[0]
        self._let_go()
        self._retired.append((time.monotonic(), seat.producer))
        seat.producer = made(Producer, self._profile(seat.id))
        fencing.fence(seat.producer, self.patience)

    def fit(self, record: TopicRecord) -> bool:
        """Whether they are made for this topic."""
        return (
            self._smallest <= record.max_message_bytes - _OVERHEAD
            and min(record.max_message_bytes, _CLIENT_TAKES) <= self._largest
        )

    def close(self) -> None:
        """What is still queued must not be sent by a producer that nobody listens to any more.

        In a transaction that is never committed it may: nobody reads it, and the next producer of the lane fences this
        one.
        """
        while self._retired:
            renewed, producer = self._retired.popleft()
            _settle(producer, max(0.0, renewed + _SETTLED_S - time.monotonic()))
        for seat in self._seats:
            if seat.id is None:
                with suppress(KafkaException):
                    seat.producer.purge()
            _settle(seat.producer, 0 if seat.id is None else _SETTLED_S)

    def _let_go(self) -> None:
        """Of those that have had their moment. Nobody waits for it: a client that had a message refused sends no more.

        It would be flushed in vain.
        """
        while self._retired and time.monotonic() > self._retired[0][0] + _SETTLED_S:
            self._retired.popleft()

    def _profile(self, id_: str | None) -> profiles.Profile:
        client, timeout_ms = self._settings.client, int(self._settings.transaction_timeout_s * 1000)
        if id_ is None:
            # Never one by one: a later message of a key could be delivered where an earlier one has just expired. A
            # batch is waited for as a whole, and what is left of it then is thrown away.
            profile = profiles.idempotent_producer(client, message_timeout_ms=0)
        else:
            profile = profiles.transactional_producer(
                client, transactional_id=id_, transaction_timeout_ms=timeout_ms
            )
        return {
            **profile,
            "batch.size": self._smallest,
            "message.max.bytes": self._largest,
            # Full record batches cost a fraction of small ones. Nobody waits for it: committing and flushing do not.
            "linger.ms": 50,
            "topic.metadata.propagation.max.ms": 5000,
            "queue.buffering.max.kbytes": max(_QUEUE_KB, self._largest // 1024 + 1),
        }


def _settle(producer: Producer, within_s: float) -> None:
    """Give one that will be destroyed its moment.

    librdkafka ends the whole process (assertion txn_req_cnt > 0) if a client is destroyed, or purged, just as it tells
    Kafka of its transaction's partitions. Once something of each is acknowledged, it has; and where Kafka does not answer
    it has asked, and asks no more.
    """
    # Flushing, a fatal error comes as a SystemError: whoever lets go of it knows already.
    with suppress(KafkaException, SystemError):
        producer.flush(within_s)
