"""`bench ingest`: the pipeline on Spark, against a bare `foreachBatch` that COPYs the same rows into the same table.

Both run in one Spark session (local[*]) over the same topic, each into an empty database, and read what is there now.
The bare one makes the same rows from Kafka's records by the same code, COPYs them from its tasks straight into the
inbox and promises nothing: no counts, no positions, no effects.

Time counts from the query's start to its end; Spark's own start is not in it, except in the last row.
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg

from bench.child import measure_child
from bench.filled import fill
from bench.ground import fresh_database, fresh_topic
from bench.growth import growth_rows, typical
from bench.harness import Sample, interleave, rows_for
from bench.registry import Context, benchmark
from bench.row import Row, at_least, at_most, row
from bench.sparkmeter import SparkMeter
from tallymark.cli.pipelinerun import plan_of
from tallymark.lifecycle import Role
from tallymark.pipeline import kafkasource, loading
from tallymark.pipeline.effects import NoEffect
from tallymark.pipeline.ingest import IngestConfig
from tallymark.pipeline.session import started
from tallymark.pipeline.station import IngestStation, Job
from tallymark.store.postgres.connection import connect
from tallymark.store.postgres.inboxcopy import INBOX, inbox_pieces
from tallymark.store.postgres.migrations import migrate

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

CONSUMER = "bench"
MAX_OFFSETS = 200_000


@benchmark("ingest", "the pipeline on Spark, against a bare foreachBatch")
def ingest(context: Context) -> Sequence[Row]:
    """One topic, made longer: against the yardstick first, then against itself, then a restart behind it all."""
    sizes = (250_000, 1_000_000) if context.quick else (1_000_000, 4_000_000, 16_000_000)
    with fresh_topic(context.cluster) as topic:
        with started(plan_of("bench", "local[*]", [], report=False)) as spark:
            _lengthen(context, topic, 0, sizes[0])
            samples = interleave(
                {
                    "pipeline": lambda: _ours(context, spark, topic, sizes[0]),
                    "bare": lambda: _bare(context, spark, topic, sizes[0]),
                },
                3 if context.quick else 5,
                progress=context.progress,
            )
            rows = rows_for(
                "ingest, against a bare foreachBatch",
                samples["pipeline"],
                samples["bare"],
                goal=at_least(0.6),
            )
            rows += _growth(context, spark, topic, sizes, typical(samples["pipeline"]))
        return [*rows, *_restart(context, topic, sizes[-1])]


def _lengthen(context: Context, topic: str, count: int, size: int) -> None:
    context.progress(f"filling the topic to {size:,} messages")
    fill(context.cluster.bootstrap_servers, topic, size - count)


def _growth(
    context: Context, spark: SparkSession, topic: str, sizes: Sequence[int], smallest: Sequence[Sample]
) -> list[Row]:
    """Four times as much, and again: seconds per message, and the driver's memory."""
    rows: list[Row] = []
    before, count = smallest, sizes[0]
    for size in sizes[1:]:
        _lengthen(context, topic, count, size)
        count = size
        context.progress(f"{size:,} messages")
        samples = [_ours(context, spark, topic, size)]
        rows += growth_rows(samples, before)
        before = samples
    return rows


def _restart(context: Context, topic: str, count: int) -> list[Row]:
    """From the command to the first committed batch, with all of the topic ingested before."""
    servers = context.cluster.bootstrap_servers
    seconds = []
    with fresh_database(context.cluster) as url:
        migrate(url, role=Role.CONSUMER)
        context.progress(f"ingesting {count:,} messages before the restart")
        _command(url, servers, topic)
        for number in range(3):
            context.progress(f"restart {number + 1} of 3")
            fill(servers, topic, 1_000)
            began = time.time()
            _command(url, servers, topic)
            with psycopg.connect(url) as connection:
                last = connection.execute(
                    "select min(extract(epoch from committed_at)) from tallymark.ingested"
                    " where committed_at > to_timestamp(%s)",
                    [began],
                ).fetchone()
            seconds.append(float(last[0]) - began if last and last[0] else float("inf"))
    return [
        row(
            f"restart to the first commit, {count:,} ingested before",
            "s",
            seconds,
            goal=at_most(20, of_ratio=False),
        )
    ]


def _command(url: str, servers: str, topic: str) -> None:
    measure_child(
        [
            *(sys.executable, "-m", "tallymark", "pipeline", "ingest", "--available-now", "--json"),
            *("--consumer", CONSUMER, "--topic", topic),
        ],
        env={"TALLYMARK_DATABASE": url, "TALLYMARK_BOOTSTRAP_SERVERS": servers},
        timeout=3_000,
    )


def _ours(context: Context, spark: SparkSession, topic: str, count: int) -> Sample:
    with fresh_database(context.cluster) as url:
        migrate(url, role=Role.CONSUMER)
        return _measured(lambda: _ingest(spark, context.cluster.bootstrap_servers, url, topic), url, count)


def _bare(context: Context, spark: SparkSession, topic: str, count: int) -> Sample:
    with fresh_database(context.cluster) as url:
        migrate(url, role=Role.CONSUMER)
        return _measured(lambda: _copied(spark, context.cluster.bootstrap_servers, url, topic), url, count)


def _measured(run: Callable[[], None], url: str, count: int) -> Sample:
    with SparkMeter(count) as meter:
        run()
    with psycopg.connect(url) as connection:
        kept = connection.execute("select count(*) from tallymark.inbox").fetchone()
    if kept is None or kept[0] != count:
        raise AssertionError(f"{kept} of {count} messages were kept")
    return meter.sample


def _ingest(spark: SparkSession, servers: str, url: str, topic: str) -> None:
    """What `tallymark pipeline ingest --available-now` does, in this session."""
    station = IngestStation(
        Job(CONSUMER, (topic,), NoEffect([topic])),
        {"bootstrap.servers": servers},
        url,
        stop=threading.Event(),
    )
    try:
        station.take("local")
        station.run(spark, IngestConfig(available_now=True, max_offsets=MAX_OFFSETS))
    finally:
        station.close()


def _copied(spark: SparkSession, servers: str, url: str, topic: str) -> None:
    """The yardstick: the same rows, COPYed by the tasks into the inbox itself."""

    def copied(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        import pyarrow as pa

        with connect(url, application="bench", autocommit=False) as connection:
            rows = (each for batch in batches for each in loading.messages_of(batch))
            with connection.cursor() as cursor, cursor.copy(INBOX.format("tallymark")) as copy:
                for piece in inbox_pieces(rows, CONSUMER):
                    copy.write(piece)
        yield pa.RecordBatch.from_arrays([pa.array([1])], names=["done"])

    def each(source: DataFrame, _number: int) -> None:
        loading.records(source).mapInArrow(copied, "done long").collect()

    starts: dict[Any, int] = {(topic, partition): 0 for partition in range(6)}
    source = kafkasource.stream(spark, {"bootstrap.servers": servers}, starts, max_offsets=MAX_OFFSETS)
    with tempfile.TemporaryDirectory() as folder:
        writer = source.writeStream.foreachBatch(each).option("checkpointLocation", Path(folder).as_uri())
        writer.trigger(availableNow=True).start().awaitTermination()
