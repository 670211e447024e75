"""Ask a Kafka cluster whether it can really be used, by using it.

`use` produces in a transaction that also commits an offset, and reads both back: after it, the internal
topics exist and their coordinators are loaded, so that no client meets "coordinator load in progress".
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass

from tallymark.broker.kafka import (
    AdminClient,
    Consumer,
    KafkaError,
    KafkaException,
    NewTopic,
    Producer,
    TopicPartition,
)
from tallymark.errors import Unreachable

TOPIC = "__tallymark_probe"
_GROUP = "__tallymark_probe"
_RETRY_S = 0.1
# A broker that is just starting refuses connections: that is expected here, and not worth a line on stderr.
_QUIET: dict[str, str | int | float | bool] = {
    "log_level": 0,
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 200,
}


@dataclass(frozen=True)
class Sight:
    """What the cluster says of itself at one moment."""

    brokers: frozenset[int]
    partitions: int
    under_replicated: int


NOTHING = Sight(frozenset(), 0, -1)
"""Nobody answered. No number of under-replicated partitions compares equal to it."""


def look(bootstrap_servers: str, *, timeout_s: float = 5.0) -> Sight | None:
    """What the cluster says, or None when nobody answers."""
    return _look(AdminClient({"bootstrap.servers": bootstrap_servers, **_QUIET}), timeout_s)


def _look(admin: AdminClient, timeout_s: float) -> Sight | None:
    try:
        metadata = admin.list_topics(timeout=timeout_s)
    except KafkaException:
        return None
    partitions = [partition for topic in metadata.topics.values() for partition in topic.partitions.values()]
    short = sum(len(partition.isrs) < len(partition.replicas) for partition in partitions)
    return Sight(frozenset(metadata.brokers), len(partitions), short)


class Probe:
    def __init__(self, bootstrap_servers: str, settings: Mapping[str, str] | None = None) -> None:
        self._settings = {"bootstrap.servers": bootstrap_servers, **_QUIET, **(settings or {})}
        self._admin = AdminClient(self._settings)

    def sight(self, timeout_s: float = 1.0) -> Sight | None:
        return _look(self._admin, timeout_s)

    def use(self, *, copies: int, deadline: float) -> None:
        """Produce, consume and run a transaction, retrying until `deadline` (of time.monotonic)."""
        last = "nobody answered"
        while time.monotonic() < deadline:
            try:
                self._create_topic(copies)
                self._round_trip(deadline)
                return
            except KafkaException as error:
                last = str(error.args[0].str() if isinstance(error.args[0], KafkaError) else error)
                time.sleep(_RETRY_S)
        raise Unreachable(f"Kafka is there but could not run a transaction in time: {last}")

    def _create_topic(self, copies: int) -> None:
        topic = NewTopic(TOPIC, 1, copies, config={"retention.ms": "3600000"})
        try:
            self._admin.create_topics([topic], operation_timeout=5)[TOPIC].result(10)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise

    def _round_trip(self, deadline: float) -> None:
        patience = max(1.0, deadline - time.monotonic())
        token = uuid.uuid4().bytes
        delivered: list[TopicPartition] = []

        def remember(error: KafkaError | None, message: object) -> None:
            if error is None:
                delivered.append(TopicPartition(TOPIC, 0, message.offset()))  # type: ignore[attr-defined]

        producer = Producer(
            {**self._settings, "transactional.id": "__tallymark_probe", "retry.backoff.ms": 10}
        )
        consumer = Consumer(
            {
                **self._settings,
                "group.id": _GROUP,
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
            }
        )
        try:
            producer.init_transactions(patience)
            producer.begin_transaction()
            producer.produce(TOPIC, value=token, partition=0, on_delivery=remember)
            producer.flush(patience)
            producer.send_offsets_to_transaction(
                [TopicPartition(TOPIC, 0, delivered[0].offset if delivered else 0)],
                consumer.consumer_group_metadata(),
                patience,
            )
            producer.commit_transaction(patience)
            consumer.assign(delivered)
            message = consumer.poll(patience)
            if message is None or message.error() or message.value() != token:
                raise KafkaException(
                    KafkaError(KafkaError._TIMED_OUT, "the probe's message was not read back")
                )
            consumer.committed([TopicPartition(TOPIC, 0)], patience)
        finally:
            consumer.close()
