"""Parquet files of an archive: written aside by Spark's tasks, looked at, moved into place, read back.

Transformations are native SQL expressions: no Python runs in an executor.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tallymark.errors import Inconsistent
from tallymark.pipeline import kafkasource
from tallymark.pipeline.manifest import Move, Stored
from tallymark.pipeline.rowcount import RowCount

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# What is kept of a record; topic and date are names of folders, and columns when it is read.
SCHEMA = (
    "partition int, offset bigint, key binary, value binary, "
    "headers array<struct<key: string, value: binary>>, timestamp timestamp, timestampType int, "
    "topic string, date date"
)
COLUMNS = ("partition", "offset", "key", "value", "headers", "timestamp", "timestampType", "topic", "date")
_COMPRESSION = "zstd"
# What of the session's settings reading and writing depend on. Writers side by side save a sort by topic and date.
SETTINGS: Mapping[str, str] = {
    "spark.sql.maxConcurrentOutputFileWriters": "16",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # A file of a task that was lost must not stay: version 2 moves files before the job is done.
    "spark.hadoop.mapreduce.fileoutputcommitter.algorithm.version": "1",
    "spark.hadoop.parquet.enable.summary-metadata": "false",
    # All of Spark's own list but kafka: by its newer reader a batch costs a sixth less CPU.
    "spark.sql.sources.useV1SourceList": "avro,csv,json,orc,parquet,text",
}


def between(spark: SparkSession, client: Mapping[str, str], moves: Sequence[Move]) -> DataFrame:
    """What Kafka has between these offsets, and nothing else: the same today and tomorrow."""
    return kafkasource.batch(
        spark, client, {each.place: each.start for each in moves}, {each.place: each.end for each in moves}
    )


def records(source: DataFrame) -> DataFrame:
    """Kafka's columns as they are archived. The day is Kafka's, in UTC."""
    return source.selectExpr(*(name for name in COLUMNS if name != "date"), "to_date(timestamp) as date")


def write(frame: DataFrame, folder: Path) -> RowCount:
    """One file per task, topic and day, in a folder of its own. Gives back what was written, for `adopt`."""
    count = RowCount()
    writer = count.over(frame).write.partitionBy("topic", "date").option("compression", _COMPRESSION)
    writer.mode("errorifexists").parquet(local(folder))
    return count


def local(path: Path) -> str:
    """A path as Spark takes it, whatever file system is its default. Not as_uri(): Spark does not undo its escapes."""
    return f"file://{path.absolute()}"


def written(folder: Path) -> list[Path]:
    """What a job has written there."""
    return sorted(folder.glob("topic=*/date=*/*.parquet"))


def adopt(staged: Path, archive: Path, token: str, refuse_other: Callable[[int, Path], None]) -> list[Stored]:
    """Move files to where the next manifest will name them. They reach the disk before it does.

    `refuse_other`: raises where so many rows are not all that were written (RowCount).
    """
    try:
        paths = written(staged)
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(lambda path: _looked_at(path, staged), paths))
            refuse_other(sum(each.rows for each in found), archive)
            for number, (path, each) in enumerate(zip(paths, found, strict=True)):
                folder = archive / "data" / f"topic={each.topic}" / f"date={each.date}"
                folder.mkdir(parents=True, exist_ok=True)
                target = folder / f"{token}-{number:05}.parquet"
                os.rename(path, target)
                found[number] = replace(each, path=str(target.relative_to(archive)))
            list(pool.map(_sync, {(archive / each.path).parent for each in found}))
    finally:
        shutil.rmtree(staged, ignore_errors=True)
    return found


def read(spark: SparkSession, archive: Path, files: Iterable[Stored]) -> DataFrame:
    """The rows of these files."""
    paths = [local(archive / each.path) for each in files]
    if not paths:
        return spark.createDataFrame([], SCHEMA)
    return (
        spark.read.schema(SCHEMA).option("basePath", local(archive / "data")).parquet(*paths).select(*COLUMNS)
    )


def has_older(archive: Path, files: Iterable[Stored], before: Move, moment_ms: int) -> bool:
    """Whether something of this partition is archived behind this range, and older than the moment."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    # A footer tells of all partitions in its file together: the rows tell of this one.
    where = (pc.field("partition") == before.partition) & (pc.field("offset") >= before.end)
    for each in sorted(files, key=lambda file: file.offsets):
        if (
            each.topic != before.topic
            or not each.partitions[0] <= before.partition <= each.partitions[1]
            or each.offsets[1] < before.end
            or each.logged_ms[0] >= moment_ms
        ):
            continue
        found = pq.read_table(archive / each.path, columns=["timestamp"], filters=where, partitioning=None)
        # In microseconds, as numbers: see above. One below zero is no time.
        times = found.column("timestamp").cast(pa.int64()).to_numpy()
        if ((times >= 0) & (times < moment_ms * 1000)).any():
            return True
    return False


def delete(archive: Path, paths: Iterable[str]) -> None:
    """Take files away that no manifest names; a folder that is empty then goes too."""
    for path in paths:
        target = archive / path
        target.unlink(missing_ok=True)
        for checksum in target.parent.glob(f".{target.name}.crc"):
            checksum.unlink(missing_ok=True)
        for folder in (target.parent, target.parent.parent):
            try:
                folder.rmdir()
            except OSError:
                break


def on_disk(archive: Path) -> set[str]:
    """Every Parquet file in the archive's folders."""
    return {str(path.relative_to(archive)) for path in (archive / "data").glob("topic=*/date=*/*.parquet")}


def _looked_at(path: Path, staged: Path) -> Stored:
    """A file's own words: its footer has rows and bounds. And it is made durable."""
    import pyarrow.parquet as pq

    _sync(path)
    footer = pq.read_metadata(path)
    topic, date = (part.partition("=")[2] for part in path.relative_to(staged).parts[:2])
    low, high = _bounds(footer, ("partition", "offset", "timestamp"))
    if footer.num_rows and None in (*low, *high):
        raise Inconsistent(f"{path.name} has no bounds in its footer")
    return Stored(
        path="",
        topic=topic,
        date=date,
        rows=footer.num_rows,
        bytes=path.stat().st_size,
        partitions=(low[0], high[0]),
        offsets=(low[1], high[1]),
        # In microseconds (SETTINGS): a moment past the year 9999 is no datetime, and a producer can write one.
        logged_ms=(low[2] // 1000, high[2] // 1000),
    )


def _bounds(footer: Any, names: Sequence[str]) -> tuple[list[Any], list[Any]]:
    where = {footer.schema.column(index).path: index for index in range(footer.num_columns)}
    low: list[Any] = [None] * len(names)
    high: list[Any] = [None] * len(names)
    for group in range(footer.num_row_groups):
        for position, name in enumerate(names):
            found = footer.row_group(group).column(where[name]).statistics
            if found is None or not found.has_min_max:
                continue
            least, most = found.min_raw, found.max_raw
            low[position] = least if low[position] is None else min(low[position], least)
            high[position] = most if high[position] is None else max(high[position], most)
    return low, high


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
