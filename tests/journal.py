"""What is in the outbox and what is in the log, read by plain SQL and a plain consumer: nothing under test is used.

    comparison = compare(outbox_entries(url), log_records(servers, topics))
    assert comparison.is_clean, comparison

`doubled` counts copies beyond the first. `reordered` are ids that stand in the log behind a later one of their key
(first copies only: what is sent again after a crash comes again in its old order).
"""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from tests.waiting import wait_for

_READ_WITHIN_S = 240.0
_MARKERS_WITHIN_S = 5.0


@dataclass(frozen=True, slots=True)
class OutboxEntry:
    """One row of the outbox."""

    position: int
    id: str
    topic: str
    key: bytes | None
    lane: int


@dataclass(frozen=True, slots=True)
class LogRecord:
    """One message as a consumer sees it."""

    topic: str
    partition: int
    offset: int
    id: str
    position: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...] = field(repr=False, default=())
    at_ms: int = 0


@dataclass(frozen=True, slots=True)
class Comparison:
    """How outbox and log differ."""

    expected: int
    missing: frozenset[str]
    doubled: Counter[str]
    reordered: tuple[str, ...]
    strangers: frozenset[str]

    @property
    def is_clean(self) -> bool:
        return not (self.missing or self.doubled or self.reordered or self.strangers)


def query(url: str, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
    """Plain SQL, in a connection and a commit of its own."""
    with psycopg.connect(url, autocommit=True, connect_timeout=60) as connection:
        cursor = connection.execute(sql.encode(), parameters or None)
        return cursor.fetchall() if cursor.description else []


def value(url: str, sql: str, parameters: Sequence[Any] = ()) -> Any:
    """The first column of the first row."""
    return query(url, sql, parameters)[0][0]


def outbox_entries(url: str, *, after: int = 0) -> list[OutboxEntry]:
    """The rows of the outbox, in order of position."""
    rows = query(
        url,
        "select o.position, o.id::text, o.topic, o.key, mod(o.slot, i.lanes)"
        " from tallymark.outbox o, tallymark.outbox_identity i where o.position > %s order by o.position",
        [after],
    )
    return [OutboxEntry(*row) for row in rows]


def all_sent(url: str) -> bool:
    """Whether every row is covered by a batch, and every batch marked; parked and held ones count as unsent."""
    return bool(
        value(
            url,
            """
            select not exists (select from tallymark.outbox o, tallymark.outbox_identity i, tallymark.lanes l
                                where l.lane = mod(o.slot, i.lanes) and o.position > l.covered)
               and not exists (select from tallymark.batches where state = 'sending')
               and not exists (select from tallymark.parked where state in ('failed', 'waiting', 'retrying'))
               and not exists (select from tallymark.topic_holds)
            """,
        )
    )


def wait_all_sent(url: str, *, within: float = 60.0) -> None:
    wait_for(lambda: all_sent(url), within=within, what="everything in the outbox is sent and marked")


def log_records(servers: str, topics: Iterable[str], *, committed: bool = True) -> list[LogRecord]:
    """Everything in these topics, partition by partition in order of offset."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": f"journal-{uuid.uuid4()}",
            "isolation.level": "read_committed" if committed else "read_uncommitted",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 50,
            "log_level": 0,
        }
    )
    try:
        known = consumer.list_topics(timeout=30).topics
        wanted = [
            TopicPartition(topic, partition, 0)
            for topic in topics
            if topic in known
            for partition in known[topic].partitions
        ]
        return _read(consumer, wanted)
    finally:
        consumer.close()


def compare(entries: Iterable[OutboxEntry], records: Iterable[LogRecord]) -> Comparison:
    """Outbox against log, by id."""
    expected = {entry.id for entry in entries}
    seen = Counter(record.id for record in records)
    return Comparison(
        expected=len(expected),
        missing=frozenset(expected - seen.keys()),
        doubled=Counter({id_: count - 1 for id_, count in seen.items() if count > 1}),
        reordered=_reordered(records),
        strangers=frozenset(seen.keys() - expected),
    )


def _reordered(records: Iterable[LogRecord]) -> tuple[str, ...]:
    highest: dict[tuple[str, int, bytes | None], int] = {}
    places: dict[tuple[str, bytes], int] = {}
    first_seen: set[str] = set()
    wrong = []
    for record in records:
        if record.key is None or record.id in first_seen:
            continue
        first_seen.add(record.id)
        # A key that moved to another partition has lost its order too.
        if places.setdefault((record.topic, record.key), record.partition) != record.partition:
            wrong.append(record.id)
        where = (record.topic, record.partition, record.key)
        if record.position < highest.get(where, 0):
            wrong.append(record.id)
        highest[where] = max(record.position, highest.get(where, 0))
    return tuple(wrong)


def _read(consumer: Consumer, wanted: list[TopicPartition]) -> list[LogRecord]:
    if not wanted:
        return []
    consumer.assign(wanted)
    found: list[LogRecord] = []
    ends: dict[tuple[Any, Any], Any] = {}
    at_an_end = 0.0

    def drained() -> bool:
        nonlocal at_an_end
        for message in consumer.consume(5000, timeout=0.2):
            error = message.error()
            if error is None:
                found.append(_record(message))
            elif error.code() == KafkaError._PARTITION_EOF:
                ends[message.topic(), message.partition()] = message.offset()
                at_an_end = time.monotonic()
            elif not error.retriable():
                raise KafkaException(error)
        if len(ends) < len(wanted):
            return False
        # A commit returns before its markers are in the log; one that never comes has left its transaction open.
        whole = all(
            ends[each.topic, each.partition] >= consumer.get_watermark_offsets(each, cached=True)[1]
            for each in wanted
        )
        return whole or time.monotonic() - at_an_end > _MARKERS_WITHIN_S

    wait_for(drained, within=_READ_WITHIN_S, what="the log is read to its end")
    return sorted(found, key=lambda record: (record.topic, record.partition, record.offset))


def _record(message: Any) -> LogRecord:
    headers = tuple((name, text) for name, text in message.headers() or ())
    named = dict(headers)
    return LogRecord(
        topic=message.topic(),
        partition=message.partition(),
        offset=message.offset(),
        id=named.get("ce_id", b"").decode(),
        position=int(named.get("tm_position", b"0")),
        key=message.key(),
        value=message.value(),
        headers=headers,
        at_ms=message.timestamp()[1],
    )
