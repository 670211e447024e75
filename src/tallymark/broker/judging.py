"""Whose fault it is that Kafka refused some of a batch: what the client reports of each message is not yet the answer.

A record batch that is too large says nothing of its messages, and one invalid message takes its whole record batch with
it. Only what fails alone is a message's own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tallymark.broker import faults
from tallymark.broker.flight import Flight
from tallymark.broker.kafka import KafkaError
from tallymark.broker.verdicts import BESIDE, Scope, scope_of
from tallymark.errors import OutcomeUnknown
from tallymark.relay.ports import Failure, Rejected, Row, Unknown

# What is refused, and why, when these rows are sent by themselves; None if nothing is.
Fail = Callable[[Sequence[Row]], tuple[Row, KafkaError] | None]

# Said of a record batch as a whole.
_OF_ALL = frozenset({KafkaError.INVALID_RECORD, KafkaError.INVALID_MSG})
# So many are found at a time: they are parked before the next are looked for.
AT_A_TIME = 32


def tell_apart(flight: Flight, fail: Fail) -> None:
    """Clear those that are said to be invalid and are not.

    The client tells the invalid ones of a record batch from the others, unless there is a single one: then it blames all.
    Which messages shared a record batch nobody says, so each that is blamed must fail alone to be at fault.
    """
    blamed = [row for row, error in flight.failures if error.code() in _OF_ALL]
    if len(blamed) < 2:
        return
    search = _Search(fail)
    search.among(blamed, refused=True)
    beside = KafkaError(BESIDE)
    flight.failures = [
        (row, (search.of(row) or beside) if error.code() in _OF_ALL else error)
        for row, error in flight.failures
    ]


class _Search:
    """For those that fail alone, by halves."""

    def __init__(self, fail: Fail) -> None:
        self._fail = fail
        self._found: dict[int, KafkaError] = {}
        # What it is that is invalid, Kafka says of a single one only. The time is the batch's: all of the topic have it.
        self._untimely: dict[str, KafkaError] = {}

    def of(self, row: Row) -> KafkaError | None:
        return self._untimely.get(row[2]) or self._found.get(row[0])

    def among(self, rows: Sequence[Row], *, refused: bool = False) -> bool:
        """Whether any of these fails; `refused` where that is known."""
        if self._untimely:
            rows = [row for row in rows if row[2] not in self._untimely]
        if not rows or len(self._found) >= AT_A_TIME:
            return False
        if not refused or len(rows) == 1:
            said = self._fail(rows)
            if said is None:
                return False
            row, error = said
            if error.code() == KafkaError.INVALID_TIMESTAMP:
                self._untimely[row[2]] = error
                return self.among(rows) or True
            if error.code() not in _OF_ALL:
                raise OutcomeUnknown(passes(error))
            if len(rows) == 1:
                self._found[row[0]] = error
                return True
        half = len(rows) // 2
        first = self.among(rows[:half])
        return self.among(rows[half:], refused=not first) or first


def judge(flight: Flight, fail: Fail, *, transactional: bool) -> Rejected | Unknown:
    """What is refused for its own sake, or its topic's; else the outcome is unknown."""
    failures = list(flight.invalid)
    passing: KafkaError | None = None
    for row, error in flight.failures:
        scope = scope_of(error.code())
        if scope is Scope.SIZE and fail([row]) is None:
            return Unknown("a record batch was larger than its topic takes, its messages are not")
        if scope is Scope.PASSING:
            passing = error
            continue
        # A partition that is not there is the message's own doing only where it names one: else the topic is another.
        elsewhere = error.code() == KafkaError._UNKNOWN_PARTITION and row[6] is None
        whole_topic = scope is Scope.TOPIC or elsewhere
        failures.append(Failure(row[0], row[2], error.str(), whole_topic=whole_topic))
    # Without a transaction, what only timed out may not be in the log: the batch is not done with.
    if failures and (passing is None or transactional):
        return Rejected(tuple(failures))
    return Unknown(passes(passing) if passing else "the batch was refused, no single message is")


def passes(error: KafkaError) -> str:
    """What may work the next time. Kafka names no clock: all of a batch have one time, the database's as it was tried."""
    said = str(faults.explain(error))
    if error.code() != KafkaError.INVALID_TIMESTAMP:
        return said
    return f"the database's clock is too far from the brokers' (message.timestamp.before.max.ms and after): {said}"
