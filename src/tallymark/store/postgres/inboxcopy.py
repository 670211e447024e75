"""Rows as COPY's binary format wants them, packed by hand: what the inbox writes by the ten thousand.

A row is a count of columns, then each column as a length and its bytes; -1 is the length of null. Columns that repeat
from message to message (source, topic, consumer, Kafka's time) are packed once.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import islice

from tallymark.inbox.ports import Application, Queued, Received

INBOX = (
    'copy {}.inbox (id, source, named, topic, partition, "offset", position, key, value, headers, logged_at, consumer)'
    " from stdin (format binary)"
)
QUEUE = (
    'copy {}.queue (consumer, source, topic, id, key_hash, seq, attempts, partition, "offset")'
    " from stdin (format binary)"
)
APPLICATIONS = (
    'copy {}.applications (consumer, source, topic, outcome, id, attempt, partition, "offset")'
    " from stdin (format binary)"
)

_HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_TRAILER = b"\xff\xff"
_NULL = b"\xff\xff\xff\xff"
# psycopg sends what it is given at once: large pieces, but not the whole batch a second time.
_PIECE_ROWS = 500
_KNOWN_TAILS = 1_000
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)

_length = struct.Struct("!i").pack
_int4 = struct.Struct("!ii").pack
_int8 = struct.Struct("!iq").pack
_inbox_head = struct.Struct("!hi16s").pack
_inbox_numbers = struct.Struct("!iiiqiqi").pack
_queue_row = struct.Struct("!i16siqiqiiiiiq").pack
_application_row = struct.Struct("!i16siiiiiq").pack


def inbox_pieces(messages: Iterable[Received], consumer: str) -> Iterator[bytes]:
    return _pieces(_inbox_rows(messages, _text(consumer)))


def queue_pieces(rows: Sequence[Queued], seqs: Sequence[int], consumer: str) -> Iterator[bytes]:
    return _pieces(_queue_rows(rows, seqs, consumer))


def application_pieces(applications: Iterable[Application], consumer: str) -> Iterator[bytes]:
    return _pieces(_application_rows(applications, consumer))


def _inbox_rows(messages: Iterable[Received], consumer: bytes) -> Iterator[bytes]:
    places: dict[tuple[str, str], bytes] = {}
    # What follows the value: the headers' length and text, Kafka's time and the consumer.
    tails: dict[tuple[str, datetime | None], bytes] = {}
    for id_, source, named, topic, partition, offset, position, key, value, headers, logged_at in messages:
        place = places.get((source, topic)) if named is None else None
        if place is None:
            place = _text(source) + (_NULL if named is None else _text(named)) + _text(topic)
            if named is None:
                places[source, topic] = place
        tail = tails.get((headers, logged_at))
        if tail is None:
            if len(tails) > _KNOWN_TAILS:
                tails.clear()
            micros = None if logged_at is None else (logged_at - _EPOCH) // _MICROSECOND
            tail = tails[headers, logged_at] = _text(headers) + _bigint(micros) + consumer
        if key is None or value is None or offset is None or position is None:
            yield b"".join(
                (
                    _inbox_head(12, 16, id_.bytes),
                    place,
                    _int4(4, partition) + _bigint(offset) + _bigint(position),
                    _NULL if key is None else _length(len(key)) + key,
                    _NULL if value is None else _length(len(value)) + value,
                    tail,
                )
            )
            continue
        yield b"".join(
            (
                _inbox_head(12, 16, id_.int.to_bytes(16)),
                place,
                _inbox_numbers(4, partition, 8, offset, 8, position, len(key)),
                key,
                _length(len(value)),
                value,
                tail,
            )
        )


def _queue_rows(rows: Sequence[Queued], seqs: Sequence[int], consumer: str) -> Iterator[bytes]:
    heads: dict[tuple[str, str], bytes] = {}
    for (message, key_hash, _, attempts), seq in zip(rows, seqs, strict=True):
        # By number: a name costs twice as much, and this is done for each of millions.
        source, topic, offset = message[1], message[3], message[5]
        head = heads.get((source, topic))
        if head is None:
            head = struct.pack("!h", 9) + _text(consumer) + _text(source) + _text(topic)
            heads[source, topic] = head
        id_ = message[0].int.to_bytes(16)
        row = head + _queue_row(16, id_, 8, key_hash, 8, seq, 4, attempts, 4, message[4], 8, offset or 0)
        yield row if offset is not None else row[:-12] + _NULL


def _application_rows(applications: Iterable[Application], consumer: str) -> Iterator[bytes]:
    heads: dict[tuple[str, str, str], bytes] = {}
    for message, outcome, attempt in applications:
        source, topic, offset = message[1], message[3], message[5]
        head = heads.get((source, topic, outcome))
        if head is None:
            texts = (consumer, source, topic, str(outcome))
            head = struct.pack("!h", 8) + b"".join(_text(text) for text in texts)
            heads[source, topic, outcome] = head
        id_ = message[0].int.to_bytes(16)
        row = head + _application_row(16, id_, 4, attempt, 4, message[4], 8, offset or 0)
        yield row if offset is not None else row[:-12] + _NULL


def _pieces(rows: Iterator[bytes]) -> Iterator[bytes]:
    yield _HEADER
    while piece := b"".join(islice(rows, _PIECE_ROWS)):
        yield piece
    yield _TRAILER


def _text(text: str) -> bytes:
    encoded = text.encode()
    return _length(len(encoded)) + encoded


def _bigint(number: int | None) -> bytes:
    return _NULL if number is None else _int8(8, number)
