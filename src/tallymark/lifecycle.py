"""The states that messages, batches and lanes pass through. Each has a sentence; the database enforces the same words.

A message's state is derived, never stored per row (docs/relay.md has the diagram): no batch covers it
→ pending; a batch that is being sent covers it → sending; a sent batch covers it → sent; it stands in `parked`
→ failed. Pure.
"""

from __future__ import annotations

import enum


class _Described(enum.StrEnum):
    """A word of the glossary with a sentence that says what it means."""

    sentence: str

    def __new__(cls, value: str, sentence: str = "") -> _Described:
        member = str.__new__(cls, value)
        member._value_ = value
        member.sentence = sentence
        return member


class Role(_Described):
    """What a database is to Tallymark."""

    PRODUCER = "producer", "Holds an outbox: its services add messages."
    CONSUMER = "consumer", "Holds an inbox: its services receive and apply messages."
    BOTH = "both", "Holds an outbox and an inbox."


class MessageState(_Described):
    """Where a message of the outbox is."""

    DELAYED = "delayed", "Waits for its time; not yet in the outbox."
    PENDING = "pending", "Committed, and in no batch yet."
    SENDING = "sending", "In a batch that is claimed and not yet known to be in the log."
    SENT = "sent", "In the log."
    FAILED = "failed", "Parked: it failed on its own, or waits behind one of its key that did."
    DISCARDED = "discarded", "Given up by an operator; the audit says who and why."


class Mode(_Described):
    """How the relay publishes."""

    TRANSACTIONAL = "transactional", "Once in the log: each batch and its receipt are one Kafka transaction."
    CALLBACK = (
        "callback",
        "At least once: several batches in flight, each marked when all of it is acknowledged.",
    )
    SYNC = "sync", "At least once: each batch is acknowledged before the next one is sent."


class BatchState(_Described):
    """Where a batch is. Pending needs no row: what no batch covers is pending."""

    SENDING = "sending", "Claimed; after a crash it is in doubt until its receipt is read."
    SENT = "sent", "In the log; marked."


class BatchKind(_Described):
    """What a batch is made of."""

    ORIGIN = "origin", "Nothing: it writes the lane's first receipt."
    RANGE = "range", "The lane's rows in a range of positions."
    TOPIC = "topic", "One topic's rows in a range that was passed while the topic was held."
    RETRY = "retry", "Parked messages that are sent again, with those that waited behind them."


class ParkedState(_Described):
    """Where a message is that left its batch."""

    FAILED = "failed", "It failed on its own; an operator retries or discards it."
    WAITING = "waiting", "Of the key of a failed one, and behind it."
    RETRYING = "retrying", "Will be sent by the lane's owner, in a numbered batch."
    SENT = "sent", "Was sent again, in the batch it names."
    DISCARDED = "discarded", "Given up; the audit says who and why."


UNFINISHED = (ParkedState.FAILED, ParkedState.WAITING, ParkedState.RETRYING)


class HoldState(_Described):
    """Where a topic is that the relay could not publish into."""

    HELD = "held", "Its rows are passed over until the topic is put right."
    CATCHING_UP = "catching-up", "It was put right; what was passed over is being sent, in order."
