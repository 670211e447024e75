"""`bench latency`: from commit to readable by a read_committed reader, at 1,000 messages a second.

The reader is in this process; writers, relay and bare loops in processes of their own; all read the machine's one
monotonic clock. The yardstick is the bare loop (begin, produce, commit) from memory at the same rate. Beside it twice
more: with the same writers at work on an outbox that nobody reads, for what their commits take of the machine is not the
relay's doing; and with two ids in turn, as the relay has them. The first second is left out: connections and metadata
are not the matter.
"""

from __future__ import annotations

import json
import sys
import threading
import time
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from confluent_kafka import Consumer, KafkaError, TopicPartition

from bench.backlog import Backlog
from bench.child import measure_child
from bench.ground import PARTITIONS, fresh_database, fresh_topic
from bench.ratio import percentile
from bench.registry import Context, benchmark
from bench.relaychild import ready_relay
from bench.row import Goal, Row, at_most, row
from tallymark.errors import Problem
from tallymark.store.postgres.migrations import DEFAULT_LANES

RATE = 1_000.0
_WARM_S = 1.0
_FROM_MEMORY = {"bare": "transactional", "bare in turn": "alternating", "idempotent": "idempotent"}


@dataclass(frozen=True)
class Delay:
    """Milliseconds from there-to-be-sent to readable."""

    p50: float
    p99: float


@benchmark("latency", "commit to readable at 1,000 messages a second, against the bare transaction loop")
def latency(context: Context) -> Sequence[Row]:
    seconds, repetitions = (6.0, 3) if context.quick else (15.0, 5)
    sides = ("transactional", "bare", "bare in turn", "bare beside writers", "callback", "idempotent")
    found: dict[str, list[Delay]] = {side: [] for side in sides}
    for turn in range(1, repetitions + 1):
        for side in sides:
            context.progress(f"{side}: {turn} of {repetitions}")
            found[side].append(_measured(context, side, seconds))

    ours = found["transactional"]
    return [
        *delay_rows("transactional, against the bare loop", ours, found["bare"], at_most(1.5)),
        *delay_rows(
            "transactional, against the bare loop beside the same writers", ours, found["bare beside writers"]
        ),
        *delay_rows("transactional, against the bare loop with two ids in turn", ours, found["bare in turn"]),
        row("callback, p50", "ms", [d.p50 for d in found["callback"]], goal=at_most(15, of_ratio=False)),
        *delay_rows("callback, against the bare idempotent client", found["callback"], found["idempotent"]),
    ]


def delay_rows(
    name: str, ours: Sequence[Delay], against: Sequence[Delay], goal: Goal | None = None
) -> list[Row]:
    return [
        row(f"{name}, p50", "ms", [d.p50 for d in ours], [d.p50 for d in against], goal),
        row(f"{name}, p99", "ms", [d.p99 for d in ours], [d.p99 for d in against], goal),
    ]


def _measured(context: Context, side: str, seconds: float) -> Delay:
    servers = context.cluster.bootstrap_servers
    with fresh_topic(context.cluster) as topic, _Reader(servers, topic) as reader:
        if workload := _FROM_MEMORY.get(side):
            return reader.delay(paced(workload, topic, seconds, servers))
        with fresh_database(context.cluster) as url:
            backlog = Backlog(url, topic, 1)
            if side == "bare beside writers":
                return reader.delay(paced_beside_writers(topic, seconds, servers, url))
            backlog.rewind(DEFAULT_LANES, covered=1)
            mode = "callback" if side == "callback" else "transactional"
            with ready_relay(backlog, context.cluster, mode=mode):
                there = paced("writers", topic, seconds, servers, url)
                return reader.delay(there)


def paced(workload: str, topic: str, seconds: float, servers: str, database: str = "") -> dict[str, float]:
    """Messages at RATE by bench.paced: when each of them was there to be sent, by id."""
    usage = measure_child(
        [sys.executable, "-m", "bench.paced", workload, topic, str(RATE), str(seconds)],
        env={"BENCH_BOOTSTRAP": servers, "BENCH_DATABASE": database},
    )
    return {id_: float(moment) for id_, moment in json.loads(usage.output).items()}


def paced_beside_writers(topic: str, seconds: float, servers: str, database: str) -> dict[str, float]:
    """The bare transactions, while writers fill an outbox that nobody reads."""
    with ThreadPoolExecutor(1) as beside:
        writing = beside.submit(paced, "writers", topic, seconds, servers, database)
        there = paced("transactional", topic, seconds, servers)
        writing.result()
    return there


class _Reader:
    """Reads the topic's end for as long as the block lasts, and notes when each message was there."""

    def __init__(self, bootstrap_servers: str, topic: str) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap_servers,
                "group.id": f"bench-{uuid.uuid4()}",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
            }
        )
        self._consumer.assign([TopicPartition(topic, partition, 0) for partition in self._partitions(topic)])
        self._seen: dict[str, float] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._read, name="reader", daemon=True)

    def _partitions(self, topic: str) -> list[int]:
        """A topic just made may be unknown to the broker that is asked, or without partitions, for a moment."""
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            found = self._consumer.list_topics(topic, 10).topics[topic].partitions
            if len(found) == PARTITIONS:
                return list(found)
            time.sleep(0.05)
        raise Problem(f"topic {topic} was made and cannot be seen")

    def __enter__(self) -> _Reader:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._consumer.close()

    def delay(self, there: dict[str, float], within: float = 60.0) -> Delay:
        """The percentiles over all messages but the first second's; every one must have come."""
        deadline = time.monotonic() + within
        while not there.keys() <= self._seen.keys():
            if time.monotonic() > deadline:
                raise Problem(
                    f"{len(there.keys() - self._seen.keys())} of {len(there)} messages did not come"
                )
            time.sleep(0.05)
        start = min(there.values()) + _WARM_S
        delays = sorted((self._seen[id_] - moment) * 1000 for id_, moment in there.items() if moment > start)
        return Delay(percentile(delays, 0.5), percentile(delays, 0.99))

    def _read(self) -> None:
        while not self._stop.is_set():
            # One by one: a read of many waits until it has many.
            message = self._consumer.poll(0.1)
            if message is None:
                continue
            moment, error = time.monotonic(), message.error()
            if error is None:
                headers: dict[str, bytes] = dict(message.headers() or [])  # type: ignore[arg-type]
                self._seen[headers["ce_id"].decode()] = moment
            elif error.code() != KafkaError._PARTITION_EOF and not error.retriable():
                raise SystemExit(f"the reader failed: {error}")
