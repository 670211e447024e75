"""What a topic's leaders say. One broker's word is not enough: others learn of a change later."""

from __future__ import annotations

from functools import cache
from typing import Any

from confluent_kafka import IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import OffsetSpec

from tallymark.broker.kafka import AdminClient
from tests.waiting import wait_for

# Any: it is written without types.
_LATEST: Any = OffsetSpec.latest()  # type: ignore[no-untyped-call]


def ends(
    admin: AdminClient, topic: str, isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED
) -> dict[int, int] | None:
    """Where each partition ends, by its own leader; none where one cannot be asked now."""
    try:
        # By name, each time: a client that once saw no leader asks nobody again by itself.
        known = admin.list_topics(topic, timeout=30).topics[topic].partitions
        asked = {TopicPartition(topic, each): _LATEST for each in known}
        if not asked:
            return None
        answers = admin.list_offsets(asked, isolation_level=isolation, request_timeout=30)
        return {place.partition: answer.result(30).offset for place, answer in answers.items()}
    except KafkaException:
        return None


def wait_for_leaders(admin: AdminClient, topic: str, partitions: int) -> None:
    """Until each partition has a leader that knows it."""
    wait_for(lambda: len(ends(admin, topic) or ()) == partitions, what=f"{topic} has its leaders")


def leader_of(admin: AdminClient, topic: str, partition: int = 0) -> int:
    """Who leads it. A broker may know a topic before it knows its partitions, and a partition before its leader."""

    def led() -> list[int]:
        known = admin.list_topics(topic, timeout=30).topics[topic].partitions
        return [at.leader for number, at in known.items() if number == partition and at.leader >= 0]

    return wait_for(led, what=f"partition {partition} of {topic} has a leader")[0]


def wait_for_markers(servers: str, topic: str) -> None:
    """Until every transaction in it has ended: `commit` and `abort` return before their markers are in the log."""

    def ended() -> bool:
        admin = _client(servers)
        found = ends(admin, topic)
        return found is not None and found == ends(admin, topic, IsolationLevel.READ_COMMITTED)

    wait_for(ended, what=f"no transaction is open in {topic}")


@cache
def _client(servers: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": servers, "log_level": 0})
