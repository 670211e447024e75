"""Where logs begin and end, and when: by partition, for positions, lag and seeking."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

from tallymark.broker import faults
from tallymark.broker.kafka import (
    OFFSET_INVALID,
    AdminClient,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    OffsetSpec,
    TopicCollection,
    TopicPartition,
)
from tallymark.errors import OutcomeUnknown, Unreachable

log = logging.getLogger("tallymark.kafka")

Place = tuple[str, int]

_WAIT_S = 10.0
_FIRST_WAIT_S = 4.0
# The client's own time-out comes first, and says more.
_ANSWER_S = 15.0
# What the client says when it knows no leader: of any partition that it was asked about, of this one.
_LEADERLESS = frozenset({KafkaError._NOENT, KafkaError.LEADER_NOT_AVAILABLE})
# Any: these two are written without types.
_EARLIEST: Any = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
_LATEST: Any = OffsetSpec.latest()  # type: ignore[no-untyped-call]


def bounds(admin: AdminClient, places: Collection[Place]) -> dict[Place, tuple[int, int]]:
    """The first offset of each log and its last stable one: what a read_committed reader can reach.

    A partition that cannot be asked about now (no leader, deleted) is left out, and said in the log: the others count.
    """
    first = _listed(admin, dict.fromkeys(places, _EARLIEST))
    end = _listed(admin, dict.fromkeys(places, _LATEST))
    return {place: (first[place], end[place]) for place in places if place in first and place in end}


def written_ends(admin: AdminClient, places: Collection[Place]) -> dict[Place, int]:
    """How far each log is written. Higher than its stable end: a transaction is open there, or its marker is on its way.

    Behind the first record of such a one nobody who reads committed records can see anything, whoever has sent it.
    """
    return _listed(admin, dict.fromkeys(places, _LATEST), IsolationLevel.READ_UNCOMMITTED)


def at_time(admin: AdminClient, places: Collection[Place], milliseconds: int) -> dict[Place, int]:
    """The first offset at or after a moment; the log's end where nothing is that young."""
    found = _listed(admin, dict.fromkeys(places, OffsetSpec.for_timestamp(milliseconds)))
    ends = _listed(admin, {place: _LATEST for place, offset in found.items() if offset < 0})
    return {**found, **ends}


def topic_ids(admin: AdminClient, topics: Collection[str]) -> dict[str, str]:
    """Each topic's id, which a topic that is made anew does not share. One that is not there is left out."""
    return {name: str(topic.topic_id) for name, topic in _described(admin, topics).items()}


def partitions(admin: AdminClient, topics: Collection[str]) -> list[Place]:
    """All partitions of these topics."""
    return [(name, each.id) for name, topic in _described(admin, topics).items() for each in topic.partitions]


def group_offsets(admin: AdminClient, group: str, places: Collection[Place]) -> dict[Place, int]:
    """A group's own offsets; where it has none yet, the place is left out."""
    asked = ConsumerGroupTopicPartitions(group, [TopicPartition(*place) for place in places])
    answer = admin.list_consumer_group_offsets([asked], request_timeout=_WAIT_S)[group]
    found = _answered(answer, f"asking for the offsets of group {group}")
    listed = [] if found is None else found.topic_partitions
    return {(each.topic, each.partition): each.offset for each in listed if each.offset >= 0}


def move_group(admin: AdminClient, group: str, offsets: Mapping[Place, int]) -> None:
    """Set a group's own offsets. Kafka does that only while nobody is in it."""
    wanted = [TopicPartition(*place, offset) for place, offset in offsets.items()]
    asked = ConsumerGroupTopicPartitions(group, wanted)
    answer = admin.alter_consumer_group_offsets([asked], request_timeout=_WAIT_S)[group]
    try:
        told = answer.result(_ANSWER_S)
    except KafkaException as error:
        raise faults.explain(error, doing=f"moving the offsets of group {group}") from error
    if refused := [each for each in told.topic_partitions if each.error is not None]:
        raise faults.explain(refused[0].error, doing=f"moving the offsets of group {group}")


def deleted(admin: AdminClient, topics: Collection[str]) -> set[str]:
    """Those that are not in this Kafka, by its own word: one that may not be looked at, or not now, is not among them."""
    return {
        name
        for name, answer in _answers(admin, topics).items()
        if isinstance(error := answer.exception(_ANSWER_S), KafkaException)
        and faults.error_of(error).code() == KafkaError.UNKNOWN_TOPIC_OR_PART
    }


def _described(admin: AdminClient, topics: Collection[str]) -> dict[str, Any]:
    return {
        name: topic
        for name, answer in _answers(admin, topics).items()
        if (topic := _answered(answer, f"looking for topic {name}")) is not None
    }


def _answers(admin: AdminClient, topics: Collection[str]) -> dict[str, Future[Any]]:
    if not topics:
        return {}
    answers = admin.describe_topics(TopicCollection(list(topics)), request_timeout=_FIRST_WAIT_S)
    if any(_failed(answer) == KafkaError._TIMED_OUT for answer in answers.values()):
        # The client asks the broker that it takes for the controller. When that one dies it goes on waiting for it.
        _refresh(admin)
        answers = admin.describe_topics(TopicCollection(list(topics)), request_timeout=_WAIT_S)
    return answers


def _failed(answer: Future[Any]) -> int | None:
    """The code of its failure; none where it did not fail."""
    try:
        error = answer.exception(_ANSWER_S)
    except TimeoutError:
        return KafkaError._TIMED_OUT
    return faults.error_of(error).code() if isinstance(error, KafkaException) else None


def _refresh(admin: AdminClient) -> None:
    """Leaders and the controller as they are now: an idle client remembers them for five minutes.

    It may ask the very broker that says nothing. Then the next question tells: others are answered all the same.
    """
    with suppress(KafkaException):
        admin.list_topics(timeout=_FIRST_WAIT_S)


def _answered(answer: Future[Any], doing: str) -> Any:
    """What was answered; None, and a line in the log, where this one thing cannot be answered now.

    Kafka being away altogether is raised: then nothing is known of anything.
    """
    try:
        return answer.result(_ANSWER_S)
    except KafkaException as error:
        explained = faults.explain(error, doing=doing)
    except TimeoutError:
        raise Unreachable(f"{doing}: Kafka did not answer within {_ANSWER_S:g} s") from None
    if isinstance(explained, Unreachable | OutcomeUnknown):
        raise explained
    log.warning("%s", explained, extra={"action": "kafka.offsets"})
    return None


def _listed(
    admin: AdminClient, asked: Mapping[Place, Any], isolation: IsolationLevel = IsolationLevel.READ_COMMITTED
) -> dict[Place, int]:
    answers = _offsets(admin, asked, isolation)
    if again := {place: asked[place] for place, answer in answers.items() if _in_vain(answer)}:
        # A client that once saw a partition without a leader takes that for its last word, and asks nobody again.
        _refresh(admin)
        answers |= _offsets(admin, again, isolation)
    found = {}
    for place, answer in answers.items():
        doing = f"asking for the offsets of {place[0]}/{place[1]}"
        told = _answered(answer, doing)
        if told is not None and told.offset == OFFSET_INVALID:
            log.warning("%s: its leader did not answer", doing, extra={"action": "kafka.offsets"})
        elif told is not None:
            found[place] = int(told.offset)
    return found


def _in_vain(answer: Future[Any]) -> bool:
    """No leader is known; or it said nothing, and the client gives no error but an offset that is none."""
    failed = _failed(answer)
    return failed in _LEADERLESS or (failed is None and answer.result().offset == OFFSET_INVALID)


def _offsets(
    admin: AdminClient, asked: Mapping[Place, Any], isolation: IsolationLevel
) -> dict[Place, Future[Any]]:
    if not asked:
        return {}
    answers = admin.list_offsets(
        {TopicPartition(*place): spec for place, spec in asked.items()},
        isolation_level=isolation,
        request_timeout=_WAIT_S,
    )
    return {(partition.topic, partition.partition): answer for partition, answer in answers.items()}


class Logs:
    """The same, bound to one client."""

    def __init__(self, admin: AdminClient) -> None:
        self._admin = admin

    def bounds(self, places: Collection[Place]) -> dict[Place, tuple[int, int]]:
        return bounds(self._admin, places)

    def topic_ids(self, topics: Collection[str]) -> dict[str, str]:
        return topic_ids(self._admin, topics)

    def partitions(self, topics: Collection[str]) -> list[Place]:
        return partitions(self._admin, topics)
