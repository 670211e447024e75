"""Live stations: the databases over JDBC, cut into ranges, and Kafka's log between pinned offsets.

The log is read committed, with headers; whoever reads it with Spark's defaults also sees aborted copies (pitfall 26).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

import psycopg
from psycopg.conninfo import conninfo_to_dict

from tallymark.broker import offsets as kafka_offsets
from tallymark.broker import peek
from tallymark.broker import topics as kafka_topics
from tallymark.errors import Problem, SettingsError
from tallymark.pipeline import failures, kafkasource
from tallymark.pipeline.reconcileports import LogFacts, Offsets, Tables
from tallymark.store.postgres.findings import Findings
from tallymark.store.postgres.tally import TallyConsumers, TallyProducer
from tallymark.store.postgres.tallycells import POSTGRES
from tallymark.tally.records import Place

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tallymark.broker.kafka import AdminClient

_FETCH = 10_000
_POSTGRES = re.compile(r"PSQLException: (?:ERROR: |FATAL: )?([^\n]*)")


@contextmanager
def explained() -> Iterator[None]:
    """What Spark says, in our words."""
    try:
        yield
    except Exception as error:
        if type(error).__module__.split(".")[0] in ("py4j", "pyspark"):
            if said := _POSTGRES.search(str(error)):
                raise Problem(
                    f"PostgreSQL says to Spark: {said[1]}",
                    remedy="check that Spark reaches it, and the rights there",
                ) from error
            raise failures.explain(error) from error
        raise


def jdbc_options(url: str) -> dict[str, str]:
    """A libpq URL as the JDBC driver takes it."""
    try:
        parts = {name: str(value) for name, value in conninfo_to_dict(url).items() if value is not None}
    except psycopg.ProgrammingError:
        raise SettingsError(
            "the database's URL cannot be read", remedy="write postgresql://user:password@host:port/database"
        ) from None
    host = parts.get("host", "localhost")
    if host.startswith("/") or "," in host:
        raise SettingsError(
            "Spark reaches a database by one host and port",
            remedy="give a URL with a host name, not a socket",
        )
    options = {
        "url": f"jdbc:postgresql://{host}:{parts.get('port', '5432')}/{parts.get('dbname', '')}",
        "driver": "org.postgresql.Driver",
        "fetchsize": str(_FETCH),
        "user": parts.get("user", ""),
        "password": parts.get("password", ""),
        "ApplicationName": "tallymark tally",
        "tcpKeepAlive": "true",
    }
    for name in ("sslmode", "sslrootcert", "sslcert", "sslkey"):
        if name in parts:
            options[name] = parts[name]
    return {name: value for name, value in options.items() if value}


def queried(spark: SparkSession, options: Mapping[str, str], queries: Sequence[str]) -> DataFrame:
    """Several queries of the same columns, each read by a task of its own."""
    frames = [
        spark.read.format("jdbc").options(**options).option("dbtable", f"({query}) t").load()
        for query in queries
    ]
    return reduce(lambda one, other: one.union(other), frames)


@dataclass(frozen=True, slots=True)
class LiveLog:
    """Kafka's log."""

    client: Mapping[str, str]
    admin: AdminClient
    name: str = "Kafka"
    is_copy: bool = False
    copied_at: None = None

    def facts(self, topics: Sequence[str]) -> dict[str, LogFacts]:
        found = kafka_topics.describe(self.admin, list(topics), patience=2.0)
        return {
            topic: LogFacts(
                each.topic_id,
                _expires_after_s(each.retention_ms, each.retention_bytes),
                "compact" in each.cleanup_policy,
            )
            for topic, each in found.items()
        }

    def bounds(self, topics: Sequence[str]) -> dict[Place, tuple[int, int]]:
        places = kafka_offsets.partitions(self.admin, topics)
        found = kafka_offsets.bounds(self.admin, places)
        if unknown := set(places) - set(found):
            topic, partition = min(unknown)
            raise Problem(
                f"{topic}/{partition} has no leader: nobody can say what it holds", remedy="try again later"
            )
        return found

    def written_ends(self, topics: Sequence[str]) -> Offsets:
        return kafka_offsets.written_ends(self.admin, kafka_offsets.partitions(self.admin, topics))

    def at_time(self, places: Sequence[Place], moment_ms: int) -> Offsets:
        return kafka_offsets.at_time(self.admin, list(places), moment_ms)

    def claims(self, offsets: Offsets) -> dict[Place, int | None]:
        return peek.claims(self.client, offsets)

    def raw(self, spark: SparkSession, starts: Offsets, ends: Offsets) -> DataFrame:
        return kafkasource.batch(spark, self.client, starts, ends)


def _expires_after_s(retention_ms: int, retention_bytes: int) -> float | None:
    if retention_bytes >= 0:
        return 0.0
    return retention_ms / 1000 if retention_ms >= 0 else None


@dataclass(frozen=True, slots=True)
class Sources:
    """Where to look: outboxes and inboxes by name, and Kafka."""

    producers: Mapping[str, str]
    consumers: Mapping[str, str]
    client: Mapping[str, str]
    admin: AdminClient
    schema: str = "tallymark"

    @property
    def copied_at(self) -> None:
        return None

    @property
    def outboxes(self) -> Collection[str]:
        return self.producers.keys()

    @property
    def log(self) -> LiveLog:
        return LiveLog(self.client, self.admin)

    def producer(self, name: str) -> TallyProducer:
        return TallyProducer(self.producers[name], schema=self.schema)

    def inboxes(self) -> dict[str, TallyConsumers]:
        return {name: TallyConsumers(name, url, schema=self.schema) for name, url in self.consumers.items()}

    def tables(self, database: str) -> Tables:
        options = jdbc_options(self.producers.get(database) or self.consumers[database])
        return Tables(lambda spark, queries: queried(spark, options, queries), self.schema, POSTGRES)

    def findings(self, name: str) -> Findings | None:
        return Findings(self.producers[name], schema=self.schema)
