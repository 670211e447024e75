"""Delete records, as an operator would: up to an offset."""

from __future__ import annotations

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from tallymark.broker.kafka import AdminClient
from tests.waiting import wait_for

# For no partition, for this one, or not the one that the client remembers.
_NO_LEADER = (KafkaError._NOENT, KafkaError.LEADER_NOT_AVAILABLE, KafkaError.NOT_LEADER_FOR_PARTITION)


def deleted(admin: AdminClient, *upto: TopicPartition) -> None:
    """Asked again while a partition has no leader: brokers come and go here.

    A client that once saw none asks nobody by itself: what it knows is refreshed before each further try.
    """
    wait_for(lambda: _deleted(admin, list(upto)), what="the partitions have leaders")


def _deleted(admin: AdminClient, upto: list[TopicPartition]) -> bool:
    try:
        for future in admin.delete_records(upto).values():
            future.result(30)
    except KafkaException as error:
        if error.args[0].code() not in _NO_LEADER:
            raise
        for topic in {each.topic for each in upto}:
            admin.list_topics(topic, timeout=30)
        return False
    return True
