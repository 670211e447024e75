"""A batch on its way to Kafka, and what was heard of it so far."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from tallymark.broker.kafka import KafkaError, Message
from tallymark.broker.verdicts import BESIDE, CONSEQUENCES, Scope, scope_of
from tallymark.relay.ports import Failure, Receipt, Row


@dataclass(slots=True)
class Flight:
    """Some rows that were handed to the client."""

    rows: Sequence[Row]
    began: float = field(default_factory=time.monotonic)
    unacknowledged: int = 0
    receipt: Receipt | None = None
    # Why its receipt cannot be written: then no message of it is at fault.
    receipt_error: KafkaError | None = None
    failures: list[tuple[Row, KafkaError]] = field(default_factory=list)
    invalid: list[Failure] = field(default_factory=list)
    # Messages that stood before it in the log were sent again behind it.
    overtook: bool = False

    def delivered(self, row: Row, error: KafkaError | None, _message: Message) -> None:
        """The client's report of one of them."""
        self.unacknowledged -= 1
        if error is not None:
            self.failures.append((row, error))

    @property
    def causes(self) -> list[tuple[Row, KafkaError]]:
        """What failed of itself."""
        return [(row, error) for row, error in self.failures if error.code() not in CONSEQUENCES]

    @property
    def too_large(self) -> list[tuple[Row, KafkaError]]:
        """Those of which Kafka says so, or of their record batch."""
        return [(row, error) for row, error in self.failures if scope_of(error.code()) is Scope.SIZE]

    @property
    def first_failure(self) -> tuple[Row, KafkaError] | None:
        found = self.causes or self.failures
        return found[0] if found else None

    @property
    def innocent(self) -> set[int]:
        """Where those stand that were refused for the sake of others."""
        return {row[0] for row, error in self.failures if error.code() == BESIDE}

    def without_causes(self) -> Flight:
        """Its innocent ones to be sent anew, and those of their keys behind them, for each to end on its last."""
        innocent = self.innocent
        refused = {row[0] for row, _ in self.causes} | {failure.position for failure in self.invalid}
        first: dict[tuple[str, bytes | None], int] = {}
        for position, _id, topic, key, *_ in self.rows:
            if position in innocent and key is not None:
                first.setdefault((topic, key), position)
        return Flight(
            [
                row
                for row in self.rows
                if row[0] in innocent
                or (row[0] not in refused and first.get((row[2], row[3]), row[0]) < row[0])
            ]
        )
