"""Kafka as the inbox reads it: a consumer in a group, or with fixed partitions, whose positions are told to it.

Only committed messages; nothing is committed or reset by the client itself. The end of a partition is reported, so
that a position can pass the markers and the aborted messages before it.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from tallymark.broker import faults, profiles, reach
from tallymark.broker import offsets as log_offsets
from tallymark.broker.kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from tallymark.inbox.identity import received
from tallymark.inbox.logport import Assignment, Polled
from tallymark.inbox.ports import Place

log = logging.getLogger("tallymark.kafka")

_WAIT_S = 10.0
# What a message takes in memory beside its key and value.
_ROW_BYTES = 500
_MISPLACED = frozenset(
    {KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._LOG_TRUNCATION}
)
# The client skips these by itself: they must be seen, for a message lies there.
_UNREADABLE = frozenset({KafkaError._BAD_MSG, KafkaError._BAD_COMPRESSION, KafkaError._NOT_IMPLEMENTED})
# What a group's balance brings about by itself: whoever has the partition now reads from its position.
_NO_LONGER_MEMBER = frozenset(
    {
        KafkaError.REBALANCE_IN_PROGRESS,
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError._NO_OFFSET,
    }
)


class KafkaLog:
    """The port `Log` over confluent-kafka.

    The client belongs to the thread that polls: calls from others wait until it does not, which may be never. What is
    asked by the admin client (bounds, topic ids) may come from any.
    """

    def __init__(
        self,
        client: profiles.Client,
        *,
        group: str,
        session_timeout_ms: int = 45_000,
        max_poll_interval_ms: int = 300_000,
    ) -> None:
        self._admin = reach.admin_client(client)
        self._consumer = Consumer(
            {
                **profiles.consumer(client, group=group),
                "enable.partition.eof": True,
                # What the client reads ahead is memory beside the batches, several times what is counted here. It
                # stops asking above the first; what is under way then, for each partition, comes on top.
                "queued.max.messages.kbytes": 8_192,
                "fetch.message.max.bytes": 262_144,
                "session.timeout.ms": session_timeout_ms,
                "heartbeat.interval.ms": max(1, min(3_000, session_timeout_ms // 3)),
                "max.poll.interval.ms": max_poll_interval_ms,
                # Partitions that were added are found within seconds, not minutes.
                "topic.metadata.refresh.interval.ms": 10_000,
                "on_commit": self._noted,
            }
        )
        # What Kafka was last asked to note, and what of it it refused: that is asked for again.
        self._asked: dict[Place, int] = {}
        self._refused: dict[Place, int] = {}
        # Assigned and to be read, where a seek has not gone through yet.
        self._unsought: dict[Place, tuple[int, int | None]] = {}
        # Places that Kafka gave or took during a look.
        self._touched: set[Place] = set()

    def join(self, topics: Sequence[str], assignment: Assignment) -> None:
        def on_assign(consumer: Consumer, partitions: list[TopicPartition]) -> None:
            places = [(each.topic, each.partition) for each in partitions]
            starts = assignment.given(places)
            self._touched.update(places, starts)
            consumer.incremental_assign([_start(place, starts.get(place)) for place in places])
            self._stand(places, starts)

        def on_revoke(consumer: Consumer, partitions: list[TopicPartition]) -> None:
            self._gone(partitions)
            self._touched.update((each.topic, each.partition) for each in partitions)
            assignment.revoked([(each.topic, each.partition) for each in partitions])
            consumer.incremental_unassign(partitions)

        def on_lost(consumer: Consumer, partitions: list[TopicPartition]) -> None:
            self._gone(partitions)
            self._touched.update((each.topic, each.partition) for each in partitions)
            assignment.lost([(each.topic, each.partition) for each in partitions])
            consumer.incremental_unassign(partitions)

        self._consumer.subscribe(list(topics), on_assign=on_assign, on_revoke=on_revoke, on_lost=on_lost)

    def assign(self, places: Sequence[Place], assignment: Assignment) -> None:
        starts = assignment.given(places)
        self._consumer.assign([_start(place, starts.get(place)) for place in places])
        self._stand(places, starts)

    def _stand(self, places: Sequence[Place], starts: Mapping[Place, tuple[int, int | None]]) -> None:
        """Read those that have a start; the others stay assigned, and still.

        What was assigned before and is taken now stands somewhere in its log: it is sought to its start.
        """
        self.pause([place for place in places if place not in starts])
        self.resume([place for place in places if place in starts])
        self.add({place: start for place, start in starts.items() if place not in places})

    def _gone(self, partitions: Sequence[TopicPartition]) -> None:
        for each in partitions:
            self._unsought.pop((each.topic, each.partition), None)
            self._refused.pop((each.topic, each.partition), None)

    def poll(self, max_messages: int, timeout_s: float) -> Polled:
        self._seek_unsought()
        self._touched.clear()
        # The first one as soon as it is there, then whatever else is there by now: no message waits for a batch.
        first = self._consumer.poll(timeout_s)
        if first is None:
            return Polled((), {}, {}, {}, 0)
        self._touched.clear()
        rest = self._consumer.consume(max_messages - 1, timeout=0) if max_messages > 1 else []
        found = [first, *rest]
        if (first.topic(), first.partition()) in self._touched:
            # Its place was given or taken meanwhile: it was read under what is over, and comes again where it counts.
            found = list(rest)
        if self._unsought:  # those places are to be read from elsewhere than what was fetched of them
            found = [each for each in found if (each.topic(), each.partition()) not in self._unsought]
        return self._polled(found)

    def _polled(self, found: Sequence[Message]) -> Polled:
        messages = []
        ends: dict[Place, int] = {}
        epochs: dict[Place, int] = {}
        lost: dict[Place, str] = {}
        unreadable: dict[Place, tuple[int, str]] = {}
        size = 0
        last: dict[Place, Any] = {}
        # Any: the client's types allow for None and text, which a message without an error has not.
        record: Any
        headers: Any
        # Asked by `map`, once each. Of a name that is not UTF-8 the client makes a tuple with a hole in it and an error
        # beside it, which a plain call does not notice once the interpreter has made it quick: the process would end.
        all_headers = map(Message.headers, found)
        for record in found:
            met: Exception | None = None
            try:
                headers = next(all_headers)
            except Exception as told:  # noqa: BLE001 - the client has no word for it: it is told with its place
                met = told
            error = record.error()
            if error is not None:
                self._said(record, error, ends, lost, unreadable)
                continue
            topic, partition, key, value = record.topic(), record.partition(), record.key(), record.value()
            if met is not None:
                at = record.offset()
                said = f"what stands at offset {at} cannot be read: its headers: {met}"
                unreadable.setdefault((topic, partition), (at, said))
                continue
            size += (len(key) if key else 0) + (len(value) if value else 0)
            messages.append(
                received(topic, partition, record.offset(), key, value, headers, record.timestamp()[1])
            )
            last[topic, partition] = record
        size += _ROW_BYTES * len(messages)
        for place, each in last.items():
            behind = each.offset() + 1
            ends[place] = max(ends.get(place, 0), behind)
            # Markers behind it may be of a later epoch, which nobody tells.
            if ends[place] == behind and (epoch := each.leader_epoch()) is not None:
                epochs[place] = epoch
        size += sum(len(each.headers) for each in messages)
        return Polled(messages, ends, epochs, lost, size, unreadable)

    def _said(
        self,
        message: Message,
        error: KafkaError,
        ends: dict[Place, int],
        lost: dict[Place, str],
        unreadable: dict[Place, tuple[int, str]],
    ) -> None:
        partition = message.partition()
        place = (message.topic() or "", -1 if partition is None else partition)
        if error.code() == KafkaError._PARTITION_EOF:
            ends[place] = max(ends.get(place, 0), message.offset() or 0)
        elif error.code() in _MISPLACED:
            lost[place] = error.str()
        elif error.code() in _UNREADABLE:
            at = message.offset() or 0
            unreadable.setdefault(place, (at, f"what stands at offset {at} cannot be read: {error.str()}"))
        elif error.fatal():
            raise faults.explain(error, doing="reading")
        else:
            log.warning("%s", faults.explain(error), extra={"action": "kafka.consumer"})

    def pause(self, places: Collection[Place]) -> None:
        if places:
            self._consumer.pause([TopicPartition(*place) for place in places])

    def resume(self, places: Collection[Place]) -> None:
        if places:
            self._consumer.resume([TopicPartition(*place) for place in places])

    def add(self, starts: Mapping[Place, tuple[int, int | None]]) -> None:
        self._unsought.update(starts)
        self._seek_unsought()

    def _seek_unsought(self) -> None:
        """What cannot be sought in now, and not be assigned anew either, is tried again at the next look."""
        for place, start in list(self._unsought.items()):
            at = _start(place, start)
            try:
                self._consumer.seek(at)
            except KafkaException as error:
                log.debug("cannot seek: %s", error, extra={"action": "kafka.seek"})
                if not self._assigned_anew(at):
                    continue
            del self._unsought[place]
            self.resume([place])

    def _assigned_anew(self, at: TopicPartition) -> bool:
        """The client has stopped reading it for good, as it does after an offset that the log does not have."""
        for change in (self._consumer.incremental_unassign, self._consumer.incremental_assign):
            try:
                change([at])
            except KafkaException as error:
                log.debug("cannot assign anew: %s", error, extra={"action": "kafka.seek"})
                if change == self._consumer.incremental_assign:
                    return False
        return True

    def bounds(self, places: Collection[Place]) -> dict[Place, tuple[int, int]]:
        return log_offsets.bounds(self._admin, places)

    def topic_ids(self, topics: Collection[str]) -> dict[str, str]:
        return log_offsets.topic_ids(self._admin, topics)

    def partitions(self, topics: Collection[str]) -> list[Place]:
        return log_offsets.partitions(self._admin, topics)

    def committed(self, places: Collection[Place]) -> dict[Place, int | None]:
        try:
            found = self._consumer.committed([TopicPartition(*place) for place in places], timeout=_WAIT_S)
        except KafkaException as error:
            raise faults.explain(error, doing="asking for the group's offsets") from error
        return {(each.topic, each.partition): each.offset if each.offset >= 0 else None for each in found}

    def commit(self, ends: Mapping[Place, int], *, wait: bool) -> None:
        ends = {**self._refused, **ends}
        if not ends:
            return
        self._asked.update(ends)
        self._refused = {}
        offsets = [TopicPartition(*place, end) for place, end in ends.items()]
        try:
            if wait:
                self._consumer.commit(offsets=offsets, asynchronous=False)
            else:
                self._consumer.commit(offsets=offsets, asynchronous=True)
        except KafkaException as error:
            self._refused = dict(ends)
            if faults.error_of(error).code() not in _NO_LONGER_MEMBER:
                raise faults.explain(error, doing="committing offsets") from error
            log.info("no longer a member: %s", error, extra={"action": "kafka.commit"})

    def _noted(self, error: KafkaError | None, offsets: Sequence[TopicPartition]) -> None:
        """What became of a commit that nobody waited for. Where a later one was asked for since, that one counts."""
        for each in offsets:
            if error is None and each.error is None:
                continue
            if self._asked.get((each.topic, each.partition)) == each.offset:
                self._refused[each.topic, each.partition] = each.offset

    def close(self) -> None:
        self._consumer.close()


def _start(place: Place, start: tuple[int, int | None] | None) -> TopicPartition:
    """Where to read; offset 0, and paused, where nobody has said yet."""
    offset, leader_epoch = start or (0, None)
    if leader_epoch is None:
        return TopicPartition(*place, offset)
    return TopicPartition(*place, offset, leader_epoch=leader_epoch)
