"""What a failed delivery means for a message, its topic and its batch. Pure: codes in, meaning out."""

from __future__ import annotations

import enum

from tallymark.broker.kafka import KafkaError


class Scope(enum.Enum):
    """What the error is about."""

    SIZE = "a message, or the record batch that it was put into, is too large"
    MESSAGE = "this message can never be published"
    TOPIC = "nothing can be published into this topic now"
    PASSING = "it may work the next time"


_MESSAGE = frozenset(
    {
        KafkaError.INVALID_MSG,
        KafkaError.INVALID_RECORD,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError._INVALID_ARG,
    }
)
_TOPIC = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.TOPIC_EXCEPTION,
        KafkaError.POLICY_VIOLATION,
    }
)
_SIZE = frozenset({KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE})

# Refused only because another one in its record batch was.
BESIDE = KafkaError._INVALID_DIFFERENT_RECORD
# Not the cause of anything: beside a refused one, or thrown away by the client itself, for another message's failure or
# because it was told to.
CONSEQUENCES = frozenset({BESIDE, KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT})
DENIED = frozenset(
    {KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED}
)


def scope_of(code: int) -> Scope:
    """What an error's code is about."""
    if code in _SIZE:
        return Scope.SIZE
    if code in _MESSAGE:
        return Scope.MESSAGE
    if code in _TOPIC:
        return Scope.TOPIC
    return Scope.PASSING
