"""A file with an outbox, and the relay's verb on it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from tallymark import Outbox
from tallymark.broker.kafka import Consumer
from tests.children import Child, start_child

OUTBOX = Outbox("/edge")


@contextmanager
def writing(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection as a service has it; its transaction commits at the end."""
    with closing(sqlite3.connect(path, timeout=20)) as connection, connection:
        yield connection


def relay(
    path: Path, bootstrap_servers: str, *, crash_point: str | None = None, lease_s: float = 10
) -> Child:
    """`tallymark relay run` on the file."""
    arguments = ["--database", f"sqlite:///{path}", "--bootstrap-servers", bootstrap_servers]
    return start_child(
        ["-m", "tallymark", "relay", "run", *arguments],
        crash_point=crash_point,
        environment={"TALLYMARK_RELAY__LEASE_SECONDS": str(lease_s), "TALLYMARK_HOME": str(path.parent)},
        cwd=path.parent,
    )


def headers_of(message: Any) -> dict[str, bytes]:
    return dict(message.headers())


def sent(path: Path) -> int:
    with closing(sqlite3.connect(path, timeout=20)) as connection:
        row = connection.execute("select sent from tallymark_lanes").fetchone()
        return int(row[0])


def logged(bootstrap_servers: str, topic: str, count: int) -> list[str]:
    """The ids in the topic, as a read_committed reader sees them up to its end; at least `count` are awaited."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": f"reader-{topic}",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "log_level": 0,
        }
    )
    found: list[str] = []
    partitions = len(consumer.list_topics(topic, timeout=30).topics[topic].partitions)
    ended: set[Any] = set()
    consumer.subscribe([topic])
    try:
        for _ in range(1000):
            message = consumer.poll(1.0)
            if message is None:
                continue
            if message.error():
                ended.add(message.partition())
            else:
                ended.discard(message.partition())
                found.append(bytes(headers_of(message)["ce_id"]).decode())
            if len(ended) == partitions and len(found) >= count:
                return found
    finally:
        consumer.close()
    raise AssertionError(f"{len(found)} of {count} messages in {topic}")
