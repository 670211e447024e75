"""`bench archive`: topics to Parquet, against a bare `writeStream.format("parquet")` of the same columns.

Both run in one Spark session (local[*]) over the same topic, each into an empty folder, with the same compression and
batches of the same size, and read what is there now. The bare one keeps a checkpoint and a log of its files; it knows no
days, syncs nothing to the disk and checks nothing. Time counts from the run's start to its end, Spark's own start not.

Then the topic is made longer, and the archive measured against itself: seconds per message and memory must not grow with
it. Compaction is measured beside it: what a day in many small files costs to put together.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bench.filled import fill
from bench.ground import fresh_topic
from bench.growth import growth_rows, typical
from bench.harness import Sample, interleave
from bench.registry import Context, benchmark
from bench.row import Row, at_least, row
from bench.sparkmeter import SparkMeter
from tallymark.broker.offsets import Logs
from tallymark.broker.reach import admin_client, reach
from tallymark.cli.pipelinerun import plan_of
from tallymark.pipeline import archivefiles, kafkasource
from tallymark.pipeline.archive import ArchiveConfig, ArchiveRun, opened
from tallymark.pipeline.manifestlog import ManifestLog
from tallymark.pipeline.runs import new_run
from tallymark.pipeline.session import started

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@benchmark("archive", "topics to Parquet, against a bare writeStream")
def archive(context: Context) -> Sequence[Row]:
    # Batches are as large as the smallest run: one of them, four, sixteen. Against the bare one: two.
    sizes = (250_000, 1_000_000) if context.quick else (1_000_000, 4_000_000, 16_000_000)
    count = 2 * sizes[0]
    servers = context.cluster.bootstrap_servers
    folder = Path(tempfile.mkdtemp(prefix="tallymark-bench-archive-"))
    try:
        with (
            started(plan_of("bench", "local[*]", [], report=False)) as spark,
            fresh_topic(context.cluster) as topic,
        ):
            context.progress(f"filling a topic with {count:,} messages")
            fill(servers, topic, sizes[0])
            smallest = [_ours(spark, servers, topic, sizes[0], folder / "ours", sizes[0]) for _ in range(3)]
            fill(servers, topic, count - sizes[0])
            samples = interleave(
                {
                    "archive": lambda: _ours(spark, servers, topic, count, folder / "ours", sizes[0]),
                    "bare": lambda: _bare(spark, servers, topic, count, folder / "bare"),
                },
                3 if context.quick else 5,
                progress=context.progress,
            )
            context.progress("putting small files together")
            compacted = _compacted(spark, servers, topic, count, folder / "small")
            grown = _growth(context, spark, topic, (count, *sizes[1:]), typical(smallest), folder / "ours")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    ours, bare = samples["archive"], samples["bare"]
    return [
        row(
            "archive, against a bare writeStream",
            "messages/s",
            [one.rate for one in ours],
            [one.rate for one in bare],
            at_least(0.8),
        ),
        row(
            "archive: CPU",
            "µs/message",
            [one.cpu_micros for one in ours],
            [one.cpu_micros for one in bare],
        ),
        row(
            "archive: memory of driver and JVM",
            "MB",
            [one.peak_rss / 1e6 for one in ours],
            [one.peak_rss / 1e6 for one in bare],
        ),
        row("putting small files together", "messages/s", [compacted.rate]),
        *grown,
    ]


def _growth(
    context: Context,
    spark: SparkSession,
    topic: str,
    sizes: Sequence[int],
    smallest: Sequence[Sample],
    folder: Path,
) -> list[Row]:
    """Four times as much, and again: seconds per message, and the driver's memory."""
    rows: list[Row] = []
    servers, before, count = context.cluster.bootstrap_servers, smallest, sizes[0]
    for size in sizes[1:]:
        context.progress(f"filling the topic to {size:,} messages")
        fill(servers, topic, size - count)
        count = size
        context.progress(f"{size:,} messages")
        samples = [_ours(spark, servers, topic, size, folder, smallest[0].count)]
        rows += growth_rows(samples, before)
        before = samples
    return rows


def _ours(
    spark: SparkSession, servers: str, topic: str, count: int, folder: Path, max_offsets: int
) -> Sample:
    shutil.rmtree(folder, ignore_errors=True)
    with SparkMeter(count) as meter:
        job = _job(spark, servers, topic, folder, ArchiveConfig(available_now=True, max_offsets=max_offsets))
        job.run()
    if job.state.rows != count:
        raise AssertionError(f"{job.state.rows} of {count} were archived")
    return meter.sample


def _job(spark: SparkSession, servers: str, topic: str, folder: Path, config: ArchiveConfig) -> ArchiveRun:
    client = {"bootstrap.servers": servers, "log_level": "3"}
    manifests, logs, run = ManifestLog(folder), Logs(admin_client(client)), new_run()
    manifests.prepare()
    state = opened(manifests, logs, run=run, cluster_id=reach(client).cluster_id, topics=[topic])
    return ArchiveRun(
        spark, client, manifests, logs, state, config, run=run, topics=[topic], stop=threading.Event()
    )


def _bare(spark: SparkSession, servers: str, topic: str, count: int, folder: Path) -> Sample:
    shutil.rmtree(folder, ignore_errors=True)
    with SparkMeter(count) as meter:
        reader = spark.readStream.format("kafka").options(
            **kafkasource.options({"bootstrap.servers": servers})
        )
        reader = reader.option("subscribe", topic).option("startingOffsets", "earliest")
        reader = reader.option("maxOffsetsPerTrigger", count // 2)  # two batches, as ours
        writer = (
            archivefiles.records(reader.load()).writeStream.format("parquet").option("compression", "zstd")
        )
        writer = writer.option("path", str(folder / "data")).option(
            "checkpointLocation", str(folder / "state")
        )
        writer.trigger(availableNow=True).start().awaitTermination()
    if spark.read.parquet(str(folder / "data")).count() != count:
        raise AssertionError("the bare one did not write all")
    return meter.sample


def _compacted(spark: SparkSession, servers: str, topic: str, count: int, folder: Path) -> Sample:
    job = _job(
        spark, servers, topic, folder, ArchiveConfig(available_now=True, max_offsets=max(1, count // 10))
    )
    while job.run_once():
        pass
    with SparkMeter(count) as meter:
        job.tidy(at_least=2)
    return meter.sample
