"""Delete records, as an operator would: up to an offset."""

from __future__ import annotations

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from tallymark.broker.kafka import AdminClient
from tests.waiting import wait_for


def deleted(admin: AdminClient, *upto: TopicPartition) -> None:
    """Asked again while a partition has no leader: a test before this one may have killed it."""
    wait_for(lambda: _deleted(admin, list(upto)), within=30, what="the partitions have leaders")


def _deleted(admin: AdminClient, upto: list[TopicPartition]) -> bool:
    try:
        for future in admin.delete_records(upto).values():
            future.result(30)
    except KafkaException as error:
        if error.args[0].code() != KafkaError._NOENT:
            raise
        return False
    return True
