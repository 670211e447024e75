"""Both ends of the journey, read plainly: the outbox by SQL, the log by a read_committed consumer. No product code."""

from __future__ import annotations

import json
import time
import uuid

import psycopg
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from tests.torture.verdict import Logged, Written

_PATIENCE_S = 120.0


def read_outbox(url: str) -> list[Written]:
    """Every committed row, in order of position."""
    with psycopg.connect(url) as connection, connection.cursor(name="outbox") as cursor:
        cursor.itersize = 10_000
        cursor.execute("select id::text, key, value from tallymark.outbox order by position", binary=True)
        return [
            Written(id_, None if key is None else key.decode(), int(json.loads(value)["seq"]), value)
            for id_, key, value in cursor
        ]


def unfinished(url: str) -> str:
    """What the relay has still to do, or nothing; what will never finish by itself is named too."""
    with psycopg.connect(url, connect_timeout=60) as connection:
        behind = connection.execute(
            "select count(*) from tallymark.outbox_identity i join tallymark.lanes l on true "
            "join lateral (select from tallymark.outbox o where o.position > l.covered "
            "and mod(o.slot, i.lanes) = l.lane limit 1) row on true"
        ).fetchone()
        sending = connection.execute(
            "select count(*) from tallymark.batches where state = 'sending'"
        ).fetchone()
    assert behind is not None
    assert sending is not None
    if not behind[0] and not sending[0]:
        return ""
    return f"{behind[0]} lanes are behind, {sending[0]} batches are not marked"


def sent(url: str) -> int:
    """How many messages the lanes say they have sent: a sign of life, never a proof."""
    with psycopg.connect(url, connect_timeout=60) as connection:
        row = connection.execute("select sum(sent) from tallymark.lanes").fetchone()
    return int(row[0]) if row else 0


def stuck(url: str) -> list[str]:
    """Lanes that were halted, messages that were parked, topics that are held: none of it is due here."""
    with psycopg.connect(url) as connection:
        rows = connection.execute(
            "select 'lane ' || lane || ' is halted: ' || halted from tallymark.lanes where halted is not null "
            "union all select 'parked (' || state || '): ' || min(reason) || ' × ' || count(*) "
            "from tallymark.parked group by state "
            "union all select 'topic ' || topic || ' is ' || state || ': ' || reason from tallymark.topic_holds"
        ).fetchall()
    return [row[0] for row in rows]


def read_log(bootstrap_servers: str, topic: str) -> list[Logged]:
    """Everything that a read_committed reader is given, up to the very end of every partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": f"torture-{uuid.uuid4()}",
            "isolation.level": "read_committed",
            "auto.offset.reset": "error",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "check.crcs": True,
            "log_level": 0,
        }
    )
    try:
        numbers = sorted(consumer.list_topics(topic, 30).topics[topic].partitions)
        # The high watermark is beyond open transactions: not to get there means that one is still open.
        ends = {n: consumer.get_watermark_offsets(TopicPartition(topic, n), 30)[1] for n in numbers}
        consumer.assign([TopicPartition(topic, n, 0) for n in numbers])
        return _drained(consumer, ends)
    finally:
        consumer.close()


def _drained(consumer: Consumer, ends: dict[int, int]) -> list[Logged]:
    found: list[Logged] = []
    left = {number for number, end in ends.items() if end > 0}
    deadline = time.monotonic() + _PATIENCE_S
    while left:
        if time.monotonic() > deadline:
            raise AssertionError(f"partitions {sorted(left)} cannot be read to their ends {ends}")
        for message in consumer.consume(2000, 0.5):
            error = message.error()
            if error is None:
                found.append(_logged(message))
            elif error.code() == KafkaError._PARTITION_EOF:
                number = message.partition()
                if number is not None and (message.offset() or 0) >= ends[number]:
                    left.discard(number)
            elif not error.retriable():
                raise KafkaException(error)
    return found


def _logged(message) -> Logged:  # type: ignore[no-untyped-def]  # the client's own types leave Message out
    headers = dict(message.headers() or [])
    value, key = message.value() or b"{}", message.key()
    return Logged(
        id=headers["ce_id"].decode(),
        key=None if key is None else key.decode(),
        seq=int(json.loads(value).get("seq", 0)),
        value=value,
        partition=message.partition(),
        offset=message.offset(),
    )
