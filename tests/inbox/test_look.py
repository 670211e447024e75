"""One look at Kafka, put together from chunks of the client's records: pure."""

from __future__ import annotations

from typing import Any

from tallymark.broker.kafka import KafkaError, Message
from tallymark.broker.look import Look

A, B = ("t", 0), ("t", 1)


def record(partition: int, offset: int, epoch: int = 1, **more: Any) -> Message:
    return Message(
        topic="t",
        partition=partition,
        offset=offset,
        leader_epoch=epoch,
        **{"key": b"k", "value": b"v", "headers": [("ce_id", b"x")], "timestamp": (1, 5), **more},
    )


def end_of(partition: int, offset: int) -> Message:
    return Message(
        topic="t", partition=partition, offset=offset, error=KafkaError(KafkaError._PARTITION_EOF, "end")
    )


def test_chunks_add_up() -> None:
    look = Look()
    look.add([record(0, 1), record(1, 7, epoch=3)])
    look.add([record(0, 2, epoch=2, value=None, key=None, headers=None)])
    polled = look.polled()
    assert [(each.partition, each.offset) for each in polled.messages] == [(0, 1), (1, 7), (0, 2)]
    assert polled.ends == {A: 3, B: 8}
    assert polled.leader_epochs == {A: 2, B: 3}
    assert polled.bytes > 3 * 500


def test_the_epoch_counts_only_where_nothing_lies_behind_it() -> None:
    """Markers behind the last message may be of a later epoch; it does not matter which of the two comes first."""
    look = Look()
    look.add([record(0, 1)])
    look.add([end_of(0, 4), end_of(1, 2)])
    look.add([record(1, 2)])
    polled = look.polled()
    assert polled.ends == {A: 4, B: 3}
    assert polled.leader_epochs == {B: 1}


def test_what_was_read_under_what_is_over_is_dropped() -> None:
    """Kafka gave or took a place while the next chunk was asked for: what was read of it before comes again."""
    look = Look()
    look.add([record(0, 1), record(1, 7), end_of(0, 9)])
    look.drop({A})
    look.add([record(0, 5)])
    polled = look.polled()
    assert [(each.partition, each.offset) for each in polled.messages] == [(1, 7), (0, 5)]
    assert polled.ends == {A: 6, B: 8}


def test_what_is_said_among_messages_is_noted_and_they_are_read() -> None:
    look = Look()
    gone = Message(
        topic="t", partition=1, offset=3, error=KafkaError(KafkaError._AUTO_OFFSET_RESET, "no such offset")
    )
    bad = Message(topic="t", partition=0, offset=2, error=KafkaError(KafkaError._BAD_MSG, "checksum"))
    look.add([record(0, 1), gone, bad, record(0, 3)])
    polled = look.polled()
    assert [each.offset for each in polled.messages] == [1, 3]
    assert polled.lost == {B: "no such offset"}
    assert polled.unreadable == {A: (2, "what stands at offset 2 cannot be read: checksum")}
