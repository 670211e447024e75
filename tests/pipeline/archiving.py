"""An archive beside the log that it is of. What is compared is read by plain JSON, pyarrow and a plain consumer:
nothing under test is used."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from tallymark.broker.kafka import AdminClient
from tallymark.broker.offsets import Logs
from tallymark.broker.reach import reach
from tallymark.pipeline.archive import ArchiveConfig, Archived, ArchiveRun, opened
from tallymark.pipeline.manifest import Archive
from tallymark.pipeline.manifestlog import ManifestLog
from tallymark.pipeline.runs import new_run
from tests.children import Child, start_child
from tests.leaders import wait_for_markers
from tests.waiting import wait_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Headers = tuple[tuple[str, bytes | None], ...]
# topic, partition, offset, key, value, headers, milliseconds
Row = tuple[str, int, int, bytes | None, bytes | None, Headers, int]


@dataclass
class Ground:
    """One archive of one topic (or several)."""

    servers: str
    folder: Path
    topics: list[str]
    stop: threading.Event = field(default_factory=threading.Event)

    @property
    def client(self) -> dict[str, str]:
        return {"bootstrap.servers": self.servers}

    @property
    def manifests(self) -> ManifestLog:
        return ManifestLog(self.folder)

    # Producing

    def send(
        self,
        count: int,
        *,
        topic: str | None = None,
        partitions: int = 3,
        aborted: int = 0,
        at_ms: Sequence[int] = (),
        start: int = 0,
    ) -> None:
        """Messages in transactions of ten, as the relay sends them; so many of an aborted one in between."""
        producer = Producer(
            {
                "bootstrap.servers": self.servers,
                "transactional.id": str(uuid.uuid4()),
                "retry.backoff.ms": 10,
                "log_level": 0,
            }
        )
        producer.init_transactions(30)

        def produce(number: int, text: str) -> None:
            when: dict[str, Any] = {"timestamp": at_ms[number % len(at_ms)]} if at_ms else {}
            producer.produce(
                topic or self.topics[0],
                value=None if number % 17 == 16 else f"{text} {number}".encode(),
                key=None if number % 5 == 4 else b"key-%d" % (number % 7),
                partition=number % partitions,
                headers=[("ce_id", b"id-%d" % number), ("twice", b"1"), ("twice", b"\xff"), ("none", None)],
                **when,
            )

        for first in range(start, start + count, 10):
            producer.begin_transaction()
            for number in range(first, min(first + 10, start + count)):
                produce(number, "kept")
            producer.commit_transaction(30)
            if aborted:
                producer.begin_transaction()
                for number in range(aborted):
                    produce(number, "aborted")
                producer.flush(30)
                producer.abort_transaction(30)
        wait_for_markers(self.servers, topic or self.topics[0])

    # Running

    def open(self, **options: Any) -> tuple[Archive, str]:
        run = new_run()
        self.manifests.prepare()
        return (
            opened(
                self.manifests,
                self.logs(),
                run=run,
                cluster_id=options.pop("cluster_id", None) or reach(self.client).cluster_id,
                topics=options.pop("topics", self.topics),
                **options,
            ),
            run,
        )

    def logs(self) -> Logs:
        return Logs(AdminClient({**self.client, "log_level": 3}))

    def job(
        self,
        spark: SparkSession,
        state: Archive,
        run: str,
        done: list[Archived],
        note: Callable[[Archived], None] | None = None,
        **config: Any,
    ) -> ArchiveRun:
        return ArchiveRun(
            spark,
            self.client,
            self.manifests,
            self.logs(),
            state,
            ArchiveConfig(**{"available_now": True, "patience_s": 30.0, **config}),
            run=run,
            topics=sorted(state.topics),
            stop=self.stop,
            note=note or done.append,
        )

    def archive(
        self, spark: SparkSession, opening: Mapping[str, Any] | None = None, **config: Any
    ) -> list[Archived]:
        """A whole run in this process."""
        done: list[Archived] = []
        state, run = self.open(**(opening or {}))
        with self.manifests.held(run):
            self.job(spark, state, run, done, **config).run()
        return done

    def child(self, *arguments: str, crash_point: str | None = None, master: str = "local[2]") -> Child:
        """`tallymark pipeline archive` as a process."""
        chosen = [word for topic in self.topics for word in ("--topic", topic)]
        return start_child(
            [
                *("-m", "tallymark", "pipeline", "archive", "--archive", str(self.folder), *chosen),
                *("--bootstrap-servers", self.servers, "--master", master, "--json", *arguments),
            ],
            crash_point=crash_point,
        )

    # Looking

    def files(self) -> list[Path]:
        """What the manifests name, added up by hand."""
        named: dict[str, None] = {}
        folder = self.folder / "manifests"
        sums = sorted(folder.glob("*.sum"))
        floor = 0
        if sums:
            last = json.loads(sums[-1].read_text())
            floor = last["number"]
            named = dict.fromkeys(each["path"] for each in last["files"])
        for path in sorted(folder.glob("*.json")):
            change = json.loads(path.read_text())
            if change["number"] > floor:
                for gone in change["remove"]:
                    del named[gone]
                named |= dict.fromkeys(each["path"] for each in change["add"])
        return [self.folder / path for path in named]

    def rows(self) -> list[Row]:
        """Everything archived, in the log's order."""
        found = []
        for path in self.files():
            topic = path.parts[-3].removeprefix("topic=")
            day = path.parts[-2].removeprefix("date=")
            for row in pq.ParquetFile(path).read().to_pylist():
                moment = row["timestamp"]
                moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
                assert moment.astimezone(UTC).date().isoformat() == day
                headers = tuple((each["key"], each["value"]) for each in row["headers"] or ())
                found.append(
                    (
                        topic,
                        row["partition"],
                        row["offset"],
                        row["key"],
                        row["value"],
                        headers,
                        round(moment.timestamp() * 1000),
                    )
                )
        return sorted(found, key=lambda each: each[:3])

    def log(self, *topics: str) -> list[Row]:
        """Everything in Kafka that a read_committed reader sees, in the same form."""
        return sorted(
            (row for topic in topics or self.topics for row in log_rows(self.servers, topic)),
            key=lambda each: each[:3],
        )

    def strays(self) -> set[Path]:
        """Parquet files that no manifest names."""
        return set(self.folder.glob("data/**/*.parquet")) - set(self.files())


def log_rows(servers: str, topic: str) -> list[Row]:
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": f"look-{uuid.uuid4()}",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    rows: list[Row] = []
    try:
        partitions = consumer.list_topics(topic, timeout=30).topics[topic].partitions
        consumer.assign([TopicPartition(topic, each, 0) for each in partitions])
        waiting = set(partitions)

        def read() -> bool:
            for message in consumer.consume(1000, 0.2):
                error = message.error()
                if error is not None:
                    assert error.code() == KafkaError._PARTITION_EOF, error
                    waiting.discard(message.partition() or 0)
                    continue
                rows.append(
                    (
                        topic,
                        message.partition() or 0,
                        message.offset() or 0,
                        message.key(),
                        message.value(),
                        headers_of(message),
                        message.timestamp()[1],
                    )
                )
            return not waiting

        wait_for(read, what=f"{topic} is read")
    finally:
        consumer.close()
    return rows


def headers_of(message: Any) -> Headers:
    return tuple(message.headers() or ())


def millis(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp() * 1000)
