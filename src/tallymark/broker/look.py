"""What one look at Kafka gives, put together from the client's records: messages, ends, and what Kafka said beside them.

Records are added a chunk at a time and let go at once: with its headers each is dozens of objects until it is a message,
and ten thousand of them at a time are memory that nobody needs.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from typing import Any

from tallymark.broker import faults
from tallymark.broker.kafka import KafkaError, Message
from tallymark.inbox.identity import received, without_headers
from tallymark.inbox.logport import Polled
from tallymark.inbox.ports import Place, Received

log = logging.getLogger("tallymark.kafka")

# Records that are asked of the client at a time.
CHUNK = 500
# What a message takes in memory beside its key and value.
_ROW_BYTES = 500
_MISPLACED = frozenset(
    {KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._LOG_TRUNCATION}
)
# The client skips these by itself: they must be seen, for a message lies there.
_UNREADABLE = frozenset({KafkaError._BAD_MSG, KafkaError._BAD_COMPRESSION, KafkaError._NOT_IMPLEMENTED})

# Any: the client's types allow for None and text, which a message without an error has not.
_topic: Any = Message.topic
_partition: Any = Message.partition
_offset: Any = Message.offset
_key: Any = Message.key
_value: Any = Message.value
_timestamp: Any = Message.timestamp


class Look:
    """One look, from its first record on."""

    def __init__(self) -> None:
        self._messages: list[Received] = []
        self._ends: dict[Place, int] = {}
        # The last record of each place: where the next one would stand, and its leader's epoch.
        self._last: dict[Place, tuple[int, int | None]] = {}
        self._lost: dict[Place, str] = {}
        self._unreadable: dict[Place, tuple[int, str]] = {}
        self._bytes = 0

    def add(self, found: Sequence[Message]) -> None:
        """Records in the order of the log, and what the client says among them."""
        headers, unread = _headers_of(found)
        bare: list[int] = []
        if unread or any(map(Message.error, found)):
            good = [n for n, record in enumerate(found) if self._is_message(record, unread.get(n))]
            found, headers = [found[n] for n in good], [headers[n] for n in good]
            before = len(self._messages)
            bare = [before + at for at, n in enumerate(good) if n in unread]
        topics, partitions = list(map(_topic, found)), list(map(_partition, found))
        offsets = list(map(_offset, found))
        keys, values = list(map(_key, found)), list(map(_value, found))
        stamps = [stamp for _, stamp in map(_timestamp, found)]
        self._bytes += sum(map(len, filter(None, keys))) + sum(map(len, filter(None, values)))
        self._messages += map(received, topics, partitions, offsets, keys, values, headers, stamps)
        for n in bare:
            self._messages[n] = without_headers(self._messages[n])
        last = dict(zip(zip(topics, partitions, strict=True), found, strict=True))
        self._last |= {place: (_offset(each) + 1, each.leader_epoch()) for place, each in last.items()}

    def drop(self, places: Collection[Place]) -> None:
        """What was read of these places so far is to be read again, from elsewhere perhaps."""
        self._messages = [each for each in self._messages if (each.topic, each.partition) not in places]
        for place in places:
            for known in (self._ends, self._last, self._lost, self._unreadable):
                known.pop(place, None)

    def polled(self) -> Polled:
        """All of it."""
        ends, epochs = self._ends, dict[Place, int]()
        for place, (behind, epoch) in self._last.items():
            ends[place] = max(ends.get(place, 0), behind)
            # Markers behind it may be of a later epoch, which nobody tells.
            if ends[place] == behind and epoch is not None:
                epochs[place] = epoch
        size = self._bytes + sum(_ROW_BYTES + len(each.headers) for each in self._messages)
        return Polled(self._messages, ends, epochs, self._lost, size, self._unreadable)

    def _is_message(self, record: Any, unread: Exception | None) -> bool:
        """Whether it is a message that can be read; what else it is, is noted."""
        error = record.error()
        if error is not None:
            self._said(record, error)
            return False
        if unread is not None and not _is_of_a_name(unread):
            at = record.offset()
            said = f"what stands at offset {at} cannot be read: its headers: {unread}"
            self._unreadable.setdefault((record.topic(), record.partition()), (at, said))
            return False
        return True

    def _said(self, message: Message, error: KafkaError) -> None:
        partition = message.partition()
        place = (message.topic() or "", -1 if partition is None else partition)
        if error.code() == KafkaError._PARTITION_EOF:
            self._ends[place] = max(self._ends.get(place, 0), message.offset() or 0)
        elif error.code() in _MISPLACED:
            self._lost[place] = error.str()
        elif error.code() in _UNREADABLE:
            at = message.offset() or 0
            said = f"what stands at offset {at} cannot be read: {error.str()}"
            self._unreadable.setdefault(place, (at, said))
        elif error.fatal():
            raise faults.explain(error, doing="reading")
        else:
            log.warning("%s", faults.explain(error), extra={"action": "kafka.consumer"})


def _headers_of(found: Sequence[Message]) -> tuple[list[Any], dict[int, Exception]]:
    """The headers of each record, and what was met instead, by its number.

    Asked by `map`, once each. Of a name that is not UTF-8 the client makes a tuple with a hole in it and an error beside
    it, which a plain call does not notice once the interpreter has made it quick: the process would end.
    """
    asked = map(Message.headers, found)
    headers: list[Any] = []
    unread: dict[int, Exception] = {}
    while len(headers) < len(found):
        try:
            headers.extend(asked)  # what came before an error stays in the list
        except Exception as told:  # noqa: BLE001 - the client has no word for it: it is told with its place
            unread[len(headers)] = told
            headers.append(None)
    return headers, unread


def _is_of_a_name(met: BaseException | None) -> bool:
    """Whether it is for a header's name that is not UTF-8: all else of such a record can be read, and counts."""
    while met is not None and not isinstance(met, UnicodeDecodeError):
        met = met.__cause__ or met.__context__
    return met is not None
