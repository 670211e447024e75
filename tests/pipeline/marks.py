"""Where each message stands, by its id, in the log, in an inbox and in an archive: millions of them side by side.

Read by a plain consumer, plain SQL and pyarrow: nothing under test is used.
"""

from __future__ import annotations

import uuid
from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from confluent_kafka import Consumer, KafkaError, TopicPartition

from tests.waiting import wait_for

# A place in one number: the partition above, the offset below.
_OFFSET_BITS = 40
_ID = "S36"


@dataclass(frozen=True)
class Marks:
    """Places in rising order, and the id of the message at each."""

    places: np.ndarray[Any, np.dtype[np.int64]]
    ids: np.ndarray[Any, np.dtype[np.bytes_]]

    def __len__(self) -> int:
        return len(self.places)

    @property
    def distinct(self) -> int:
        return len(np.unique(self.ids))

    def differs_from(self, other: Marks) -> str | None:
        """What stands only here or only there, twice, or is another message; None where nothing is."""
        ours, theirs = (
            np.setdiff1d(*pair) for pair in ((self.places, other.places), (other.places, self.places))
        )
        if len(ours) or len(theirs):
            return f"{len(ours)} places are only here ({_spoken(ours)}), {len(theirs)} only there ({_spoken(theirs)})"
        if len(self) != len(other):
            return f"{len(self)} here, {len(other)} there: some are twice"
        changed = self.places[self.ids != other.ids]
        return f"{len(changed)} are other messages ({_spoken(changed)})" if len(changed) else None


def in_the_log(servers: str, topic: str, count: int) -> Marks:
    """What a read_committed reader sees, to the end."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": f"look-{uuid.uuid4()}",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    places, ids = array("q"), bytearray()
    try:
        partitions = consumer.list_topics(topic, timeout=30).topics[topic].partitions
        consumer.assign([TopicPartition(topic, each, 0) for each in partitions])
        waiting = set(partitions)

        def read() -> bool:
            for message in consumer.consume(10_000, 0.2):
                error, partition = message.error(), message.partition() or 0
                if error is not None:
                    assert error.code() == KafkaError._PARTITION_EOF, error
                    waiting.discard(partition)
                    continue
                places.append(partition << _OFFSET_BITS | (message.offset() or 0))
                ids.extend(_id_in(message.headers()))
            return not waiting

        wait_for(read, within=60 + count / 20_000, what=f"{topic} is read")
    finally:
        consumer.close()
    return _sorted(np.frombuffer(places, np.int64), np.frombuffer(bytes(ids), _ID))


def in_the_inbox(url: str, consumer: str) -> Marks:
    places, ids = array("q"), bytearray()
    query = psycopg.sql.SQL(
        'copy (select partition, "offset", id::text from tallymark.inbox where consumer = {}) to stdout'
    ).format(psycopg.sql.Literal(consumer))
    with psycopg.connect(url) as connection, connection.cursor().copy(query) as copy:
        for line in copy:
            partition, offset, id_ = bytes(line).split()
            places.append(int(partition) << _OFFSET_BITS | int(offset))
            ids.extend(id_)
    return _sorted(np.frombuffer(places, np.int64), np.frombuffer(bytes(ids), _ID))


def in_the_archive(files: Iterable[Path]) -> Marks:
    places, ids = [], []
    for path in files:
        table = pq.ParquetFile(path).read(["partition", "offset", "headers"]).combine_chunks()
        partitions, offsets = (table[name].to_numpy().astype(np.int64) for name in ("partition", "offset"))
        places.append(partitions << _OFFSET_BITS | offsets)
        headers = pa.concat_arrays(table["headers"].chunks).flatten()
        found = headers.field("value").filter(pc.equal(headers.field("key"), "ce_id"))
        assert len(found) == table.num_rows, f"{path}: a message has no id, or two"
        ids.append(np.array(found.to_pylist(), _ID))
    return _sorted(np.concatenate(places), np.concatenate(ids))


def _id_in(headers: Any) -> bytes:
    (found,) = [value for name, value in headers if name == "ce_id"]
    assert len(found) == 36
    return bytes(found)


def _sorted(places: Any, ids: Any) -> Marks:
    order = np.argsort(places, kind="stable")
    return Marks(places[order], ids[order])


def _spoken(places: Any) -> str:
    few = [f"{int(each) >> _OFFSET_BITS}/{int(each) & ((1 << _OFFSET_BITS) - 1)}" for each in places[:5]]
    return ", ".join(few) + ("…" if len(places) > len(few) else "")
