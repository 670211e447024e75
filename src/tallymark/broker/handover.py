"""Hands a batch's rows to the client: with their headers, each to its key's partition, and no faster than it takes them.

The client's queue is bounded. Where it is full, whoever hands over waits as he does for any answer of Kafka: for a time,
and no longer once he is told to hurry.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from tallymark.broker import faults
from tallymark.broker.flight import Flight
from tallymark.broker.kafka import KafkaException
from tallymark.broker.producers import LaneProducers
from tallymark.broker.remembered import Headings, Placing
from tallymark.errors import OutcomeUnknown, UsageError
from tallymark.message import CE_ID, TM_POSITION
from tallymark.relay.ports import Failure, Row, TopicRecord

# So many messages are handed to the client before its reports are heard.
_SERVE_EVERY = 2_000
_KEYLESS = "topic {} is compacted: it takes no message without a key"


class Handover:
    """To whichever of a lane's producers has its turn."""

    def __init__(self, producers: LaneProducers) -> None:
        self._producers = producers
        self._headings = Headings()
        self._placings: dict[str, Placing] = {}
        self._keyed: set[str] = set()
        self._limits: dict[str, int] = {}

    def note(self, record: TopicRecord) -> None:
        """A topic, as it is now."""
        self._placings[record.topic] = Placing(record.partitions)
        self._limits[record.topic] = record.max_message_bytes
        (self._keyed.add if record.keyed else self._keyed.discard)(record.topic)

    def may_be_too_large(self, row: Row) -> bool:
        """Whether its topic may refuse it for its size: how small it is when compressed, only Kafka knows."""
        _, _, topic, key, value, headers, *_ = row
        # Kafka's own few bytes, and our own headers.
        return len(key or b"") + len(value or b"") + len(headers) + 512 > self._limits[topic]

    def rows(self, flight: Flight, rows: Sequence[Row], clock_ms: int, *, careful: bool) -> None:
        """All of these; `careful` wants a report of each."""
        # A relay's busiest loop, millions of times: a tenth of its time hangs on what is looked up, and how.
        producer = self._producers.now
        produce, headings, placings = producer.produce, self._headings, self._placings
        for start in range(0, len(rows), _SERVE_EVERY):
            produced = 0
            for row in rows[start : start + _SERVE_EVERY]:
                position, id_, topic, key, value, headers, partition, _ = row
                if key is None and topic in self._keyed:
                    # Kafka would blame all that shares its record batch.
                    flight.invalid.append(Failure(position, topic, _KEYLESS.format(topic)))
                    continue
                if partition is None:
                    partition = placings[topic][key] if key is not None else -1
                try:
                    pairs = headings[headers] + [(CE_ID, id_), (TM_POSITION, str(position))]
                except UsageError as error:
                    flight.invalid.append(Failure(position, topic, f"its headers cannot be sent: {error}"))
                    continue
                report = partial(flight.delivered, row) if careful else None
                try:
                    try:
                        produce(topic, value, key, partition, report, timestamp=clock_ms, headers=pairs)
                    except BufferError:
                        again = partial(produce, timestamp=clock_ms, headers=pairs)
                        self.put(partial(again, topic, value, key, partition, report))
                except KafkaException as error:
                    flight.failures.append((row, faults.error_of(error)))
                else:
                    produced += 1
            # Before the reports of these are heard, which count down.
            flight.unacknowledged += produced if careful else 0
            producer.poll(0)

    def put(self, produce: Callable[[], object]) -> None:
        """Have the client take this, as soon as there is room in its queue."""
        goes_on = self._producers.patience.begin()
        while True:
            try:
                produce()
                return
            except BufferError:
                if not goes_on():
                    raise OutcomeUnknown(
                        "Kafka takes nothing: the client's queue is full, and did not empty in time"
                    ) from None
                self._producers.now.poll(0.05)  # let it send
