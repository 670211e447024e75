"""Kafka as the inbox reads it: a consumer in a group, or with fixed partitions, whose positions are told to it.

Only committed messages; nothing is committed or reset by the client itself. The end of a partition is reported, so
that a position can pass the markers and the aborted messages before it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping, Sequence

from tallymark.broker import faults, profiles, reach
from tallymark.broker import offsets as log_offsets
from tallymark.broker.clients import made
from tallymark.broker.kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from tallymark.broker.look import CHUNK, Look
from tallymark.inbox.logport import Assignment, Polled
from tallymark.inbox.ports import Place

log = logging.getLogger("tallymark.kafka")

_WAIT_S = 10.0
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
        self._consumer = self._made(client, group, session_timeout_ms, max_poll_interval_ms)
        # What Kafka was last asked to note, and what of it it refused: that is asked for again.
        self._asked: dict[Place, int] = {}
        self._refused: dict[Place, int] = {}
        # Assigned and to be read, where a seek has not gone through yet.
        self._unsought: dict[Place, tuple[int, int | None]] = {}
        # Places that Kafka gave or took during a look.
        self._touched: set[Place] = set()

    def _made(
        self, client: profiles.Client, group: str, session_timeout_ms: int, max_poll_interval_ms: int
    ) -> Consumer:
        return made(
            Consumer,
            {
                **profiles.consumer(client, group=group),
                "enable.partition.eof": True,
                # What the client reads ahead is memory beside the batches, several times what is counted here. It
                # stops asking above the first; what is under way then, for each partition, comes on top. By default
                # it looks again only after a second, by which time so little has long been read.
                "queued.max.messages.kbytes": 4_096,
                "fetch.queue.backoff.ms": 10,
                "fetch.message.max.bytes": 262_144,
                "session.timeout.ms": session_timeout_ms,
                "heartbeat.interval.ms": max(1, min(3_000, session_timeout_ms // 3)),
                "max.poll.interval.ms": max_poll_interval_ms,
                # Partitions that were added are found within seconds, not minutes.
                "topic.metadata.refresh.interval.ms": 10_000,
                "on_commit": self._noted,
            },
        )

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
        look = Look()
        # The first one as soon as it is there, then whatever else is there by now: no message waits for a batch.
        if not self._waited(look, time.monotonic() + timeout_s):
            return look.polled()
        left = max_messages - 1
        while left > 0:
            asked = min(left, CHUNK)
            found = self._consumer.consume(asked, timeout=0)
            self._add(look, found)
            left -= asked if len(found) == asked else left
        return look.polled()

    def _waited(self, look: Look, deadline: float) -> bool:
        """Until there is something to be told at once. Where partitions end is no such thing: each is told by itself."""
        while True:
            first = self._consumer.poll(max(0.0, deadline - time.monotonic()))
            if first is None:
                return False
            self._add(look, [first])
            error = first.error()
            if error is None or error.code() != KafkaError._PARTITION_EOF:
                return True

    def _add(self, look: Look, found: list[Message]) -> None:
        if self._touched:
            # Places that were given or taken meanwhile: what was read before was read under what is over, and comes
            # again where it counts.
            look.drop(self._touched)
            self._touched.clear()
        if self._unsought:  # those are to be read from elsewhere than what was fetched of them
            found = [each for each in found if (each.topic(), each.partition()) not in self._unsought]
        look.add(found)

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
