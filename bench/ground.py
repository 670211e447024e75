"""Where benchmarks run: a real local cluster of their own, and fresh topics on it.

TALLYMARK_BENCH_HOME names a folder whose cluster stays up between runs; without it a temporary one is wiped
at the end. Benchmarks speak to confluent_kafka directly: it is the yardstick.
"""

from __future__ import annotations

import os
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

if TYPE_CHECKING:
    from tallymark.local.cluster import LocalCluster

PARTITIONS = 6
_SAFE = {"min.insync.replicas": "2"}
HOME_VARIABLE = "TALLYMARK_BENCH_HOME"


@contextmanager
def open_cluster(report: Callable[[str], None]) -> Iterator[LocalCluster]:
    """Three brokers and PostgreSQL, up and able to do their work."""
    from tallymark.local.cluster import LocalCluster

    warm = os.environ.get(HOME_VARIABLE)
    if warm:
        cluster = LocalCluster(Path(warm))
        cluster.up(report)
        yield cluster
        return
    with tempfile.TemporaryDirectory(prefix="tallymark-bench-") as folder:
        Path(folder).chmod(0o755)  # PostgreSQL does not run as root: its own user must get to its data
        cluster = LocalCluster(folder)
        try:
            cluster.up(report)
            yield cluster
        finally:
            cluster.down(wipe=True, report=report)


@contextmanager
def fresh_topic(cluster: LocalCluster, *, partitions: int = PARTITIONS) -> Iterator[str]:
    """A new topic with the settings we insist on in production (RF 3, min ISR 2); deleted afterwards."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 3})
    name = f"bench-{uuid.uuid4().hex[:12]}"
    topic = NewTopic(name, num_partitions=partitions, replication_factor=3, config=_SAFE)
    admin.create_topics([topic])[name].result(30)
    try:
        yield name
    finally:
        admin.delete_topics([name])[name].result(30)


def empty_topic(cluster: LocalCluster, name: str, *, partitions: int = PARTITIONS) -> None:
    """Delete a topic and make it anew: a million messages a repetition would fill the disk."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 3})
    admin.delete_topics([name])[name].result(30)
    deadline = time.monotonic() + 30
    while True:
        topic = NewTopic(name, num_partitions=partitions, replication_factor=3, config=_SAFE)
        try:
            admin.create_topics([topic])[name].result(30)
            return
        except KafkaException:  # the old one is still on its way out
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def delete_topic(cluster: LocalCluster, name: str) -> None:
    """Delete a topic that a workload made for itself; one that was never made is no matter."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 3})
    admin.delete_topics([name])[name].exception(30)


@contextmanager
def fresh_database(cluster: LocalCluster) -> Iterator[str]:
    """The URL of a new database, dropped afterwards. It holds a password: never print it."""
    name = f"bench_{uuid.uuid4().hex[:12]}"
    try:
        yield cluster.database_url(name)
    finally:
        cluster.drop_database(name)
