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
from tallymark.relay.ports import Failure, Rejected, Row, Unknown

# Why some of these rows are refused when they are sent by themselves; None if they are not.
Fail = Callable[[Sequence[Row]], KafkaError | None]


def tell_apart(flight: Flight, fail: Fail) -> None:
    """Clear those that are said to be invalid and are not.

    The client tells the invalid ones of a record batch from the others, unless there is a single one: then it blames all.
    So two that fail alone were told apart, and with them the rest; else the one is looked for by halves.
    """
    suspects = [row for row, error in flight.failures if error.code() == KafkaError.INVALID_RECORD]
    if len(suspects) < 2:
        return
    blamed = {row[0] for row in suspects}
    alone = fail(suspects[:1])
    if alone is not None and alone.code() == KafkaError.INVALID_TIMESTAMP:
        # What it is that is invalid, Kafka says of a single one only. The time is the batch's, not a message's own.
        _relabel(flight, blamed, alone)
        return
    if alone is not None and fail(suspects[-1:]) is not None:
        return
    while len(suspects) > 1:
        half = len(suspects) // 2
        suspects = suspects[:half] if fail(suspects[:half]) is not None else suspects[half:]
    guilty = {row[0] for row in suspects} if fail(suspects) is not None else set()
    _relabel(flight, blamed - guilty, KafkaError(BESIDE))


def _relabel(flight: Flight, positions: set[int], error: KafkaError) -> None:
    flight.failures = [(row, error if row[0] in positions else said) for row, said in flight.failures]


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
