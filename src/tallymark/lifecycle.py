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


class HoldState(_Described):
    """Where a topic is that the relay could not publish into."""

    HELD = "held", "Its rows are passed over until the topic is put right."
    CATCHING_UP = "catching-up", "It was put right; what was passed over is being sent, in order."


class ApplyMode(_Described):
    """When an inbox applies what it keeps."""

    INLINE = "inline", "Keep, apply and move the position in one transaction per batch."
    DEFERRED = "deferred", "Keep and move the position first; workers apply later, in order within a key."


class OwnerKind(_Described):
    """Who moves a position."""

    SERVICE = "service", "A process of `tallymark inbox run`."
    SPARK = "spark", "A run of `tallymark pipeline ingest`."


class QueueState(_Described):
    """Where a kept message is that is not finished. What is neither queued nor dead is applied."""

    READY = "ready", "Waits for a worker, or behind an earlier one of its key."
    RETRYING = "retrying", "Failed, and will be tried again at its time; its key waits."
    DEAD = "dead", "Failed for good; its key waits for an operator."


class DeadState(_Described):
    """Where a dead letter is."""

    DEAD = "dead", "Waits for an operator."
    RETRYING = "retrying", "An operator put it back into the queue."
    APPLIED = "applied", "Was applied after all."
    DISCARDED = "discarded", "Given up; the audit says who and why."


class ApplicationOutcome(_Described):
    """What applying a message came to."""

    APPLIED = "applied", "The handler made its effect."
    ALREADY = "already", "The handler's own constraint said that the effect was there before."
    OLDER = "older", "A newer one of its key had been applied; nothing was changed."


class TokenRole(_Described):
    """What the bearer of a token may do at the query interface. Each may do all that stands before it."""

    VIEWER = "viewer", "Sees everything but payloads."
    OPERATOR = "operator", "Sees payloads; retries, discards, resends, pauses and resumes."
    ADMIN = "admin", "Sees the audit; lists and revokes tokens."

    def includes(self, other: TokenRole) -> bool:
        """Whether this role may do what the other one may."""
        order = list(TokenRole)
        return order.index(self) >= order.index(other)


class Verdict(_Described):
    """What became of a message, as the tally sees it. tally/verdicts.py has the definitions."""

    DELIVERED = "delivered", "Written, logged, kept and applied once."
    PENDING = "pending", "On its way, and within its time."
    DISCARDED = "discarded", "Given up by an operator; the audit says who and why."
    FOREIGN = "foreign", "In the log, and from a producer that has no outbox here."
    CANNOT_KNOW = "cannot-know", "Retention is past it on one side: nobody can say any more."
    LATE = "late", "On its way for longer than it should be."
    PARKED = "parked", "Failed at the relay, or is being tried again at the inbox; its key waits."
    DEAD = "dead", "Failed for good at the inbox; waits for an operator."
    LOST_IN_RELAY = "lost-in-relay", "The outbox says that it was sent; the log does not have it."
    LOST_IN_LOG = "lost-in-log", "The log had it, and has it no more."
    LOST_IN_INBOX = "lost-in-inbox", "The consumer's position has passed it; its inbox does not have it."
    UNAPPLIED = "unapplied", "Kept, and neither applied nor queued nor dead."
    DOUBLED_IN_LOG = "doubled-in-log", "More copies in the log than were written."
    APPLIED_TWICE = "applied-twice", "Its effect was made more than once."
    REORDERED = "reordered", "It stands in the log behind a later one of its key."
    ALTERED = "altered", "Its contents or its position are not what was written."
    PHANTOM = "phantom", "It bears our marks, and no outbox has written it."


class Stage(_Described):
    """Where on the journey a verdict holds."""

    OUTBOX = "outbox", "In the producer's database."
    RELAY = "relay", "On the way from the outbox into the log."
    LOG = "log", "In Kafka."
    INBOX = "inbox", "On the way from the log into the consumer's database."
    APPLY = "apply", "In the consumer's database: kept, and to be applied."
