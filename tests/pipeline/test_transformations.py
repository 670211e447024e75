"""What is done to rows by native expressions, over small literal frames."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import date, datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.testing import assertDataFrameEqual

from tallymark.inbox.identity import received
from tallymark.inbox.ports import Received
from tallymark.pipeline import archivefiles, loading, replay
from tallymark.pipeline.replayids import Sought

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Of pandas on Spark, which comparing frames imports and nobody uses.
pytestmark = pytest.mark.filterwarnings("ignore:'PYARROW_IGNORE_TIMEZONE'")

Headers = list[tuple[str, bytes | None]]

# As Kafka's source gives them.
SOURCE = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int, "
    "headers array<struct<key: string, value: binary>>"
)
MESSAGE = (
    "topic string, partition int, offset bigint, key binary, value binary, "
    "headers array<struct<key: string, value: binary>>, logged_ms bigint"
)
# Half past one of the next day, in a zone to the east of UTC.
LATE = datetime(2026, 11, 16, 1, 30, 0, 123_000, timezone(timedelta(hours=2)))
LATE_MS = 1_794_785_400_123


def source(spark: SparkSession, *records: tuple[Any, ...]) -> DataFrame:
    """Records as (key, value, offset, time, headers) of t/0."""
    return spark.createDataFrame(
        [(key, value, "t", 0, offset, at, 0, headers) for key, value, offset, at, headers in records], SOURCE
    )


def test_what_executors_load(spark: SparkSession) -> None:
    given = source(spark, (b"k", b"v", 7, LATE, [("a", b"1"), ("a", None)]), (None, None, 8, LATE, None))
    wanted = [
        ("t", 0, 7, b"k", b"v", [("a", b"1"), ("a", None)], LATE_MS),
        ("t", 0, 8, None, None, None, LATE_MS),
    ]
    assertDataFrameEqual(loading.records(given), spark.createDataFrame(wanted, MESSAGE), checkRowOrder=True)


def test_what_is_archived_and_under_which_day(spark: SparkSession) -> None:
    """The day is that of UTC, wherever whoever wrote it stood."""
    headers = [("a", b"1"), ("a", b"\xff")]
    given = source(spark, (b"k", None, 7, LATE, headers), (b"k", b"v", 8, LATE + timedelta(hours=1), None))
    wanted = [
        (0, 7, b"k", None, headers, LATE, 0, "t", date(2026, 11, 15)),
        (0, 8, b"k", b"v", None, LATE + timedelta(hours=1), 0, "t", date(2026, 11, 16)),
    ]
    expected = spark.createDataFrame(wanted, archivefiles.SCHEMA)
    assertDataFrameEqual(archivefiles.records(given), expected, checkRowOrder=True)


def test_those_since_a_moment_are_chosen(spark: SparkSession) -> None:
    given = source(spark, *((b"k", b"v", n, LATE + timedelta(milliseconds=n - 1), None) for n in range(3)))
    wanted = [("t", 0, n, b"k", b"v", None, LATE_MS + n - 1) for n in range(3)]
    assertDataFrameEqual(replay.chosen(given, None, None), spark.createDataFrame(wanted, MESSAGE))
    assertDataFrameEqual(replay.chosen(given, LATE_MS, None), spark.createDataFrame(wanted[1:], MESSAGE))


SEVEN = "0197e5a0-1234-7000-8000-00000000000a"
FOUR = "3F2504E0-4F89-41D3-9A0C-0305E82C3301"
ODD: list[Headers | None] = [
    None,
    [("other", b"1")],
    [("ce_id", None)],
    [("ce_id", b"")],
    [("ce_id", SEVEN.encode()), ("tm_position", b"4")],
    [("ce_id", b"0197E5A0-1234-7000-8000-00000000000B")],
    [("ce_id", b"0197e5a012-34-7000-8000-00000000000c")],
    [("ce_id", FOUR.encode())],
    [("ce_id", FOUR.lower().encode())],
    [("ce_id", b"order-17")],
    [("ce_id", b"Order-17")],
    [("ce_id", b"first"), ("x", b""), ("ce_id", b"second")],
    [("ce_id", b"second"), ("ce_id", None)],
    [("ce_id", b"caf\xe9")],
    [("ce_id", "café".encode())],
    [("ce_id", rb"caf\xe9")],
    [("ce_id", b"a\0b")],
]


def shown(message: Received) -> str:
    """An id as the inbox's tables have it."""
    return message.named or str(message.id)


@pytest.fixture(scope="module")
def odd(spark: SparkSession) -> DataFrame:
    records = [(None, b"v", offset, LATE, headers) for offset, headers in enumerate(ODD)]
    return source(spark, *records).cache()


def identified() -> list[Received]:
    return [received("t", 0, n, None, b"v", headers, LATE_MS) for n, headers in enumerate(ODD)]


def found(spark: SparkSession, odd: DataFrame, sought: Sought) -> list[Received]:
    rows = replay.chosen(odd, None, replay.named(spark, sought)).orderBy("offset").collect()
    return [each for each in replay.messages_of(rows) if sought.takes(each)]


def test_an_id_is_found_as_the_inbox_shows_it(spark: SparkSession, odd: DataFrame) -> None:
    """Whatever a producer wrote: Spark's expression and the service's own code must mean the same message."""
    everything = identified()
    sought = Sought([shown(each) for each in everything])
    assert found(spark, odd, sought) == everything
    assert sought.found == {shown(each) for each in everything}


def test_no_other_message_is_meant(spark: SparkSession, odd: DataFrame) -> None:
    wishes = {SEVEN.upper(), FOUR, "order-17", "second", "t/0/3@1794785400123"}
    meant = wishes - {SEVEN.upper()} | {SEVEN}
    sought = Sought([*wishes, "nowhere"])
    chosen = found(spark, odd, sought)
    assert chosen == [each for each in identified() if shown(each) in meant]
    assert len(chosen) == len(wishes)
    assert sought.found == wishes, "as they were written"


def test_ids_become_a_frame_without_python_in_an_executor(spark: SparkSession) -> None:
    """A cluster for replay needs our jars, and no Python of ours."""
    frame = replay.named(spark, Sought(["a", "b\\xff"]))
    assert {bytes(row[0]) for row in frame.collect()} >= {b"a", b"b\xff"}
    plan = frame._jdf.queryExecution().executedPlan().toString()
    assert "LocalTableScan" in plan, plan


def test_executors_are_given_few_bytes_at_a_time(spark: SparkSession) -> None:
    """P7: 64 values of a megabyte each, where 2000 small ones would go at once."""

    def sizes(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.RecordBatch.from_pydict({"rows": [batch.num_rows], "bytes": [batch.nbytes]})

    large = spark.range(64, numPartitions=1).selectExpr("id", "repeat('x', 1 << 20) as value")
    seen = large.mapInArrow(sizes, "rows long, bytes long").collect()
    assert sum(row["rows"] for row in seen) == 64
    assert max(row["bytes"] for row in seen) < 10 << 20
    small = spark.range(4000, numPartitions=1).mapInArrow(sizes, "rows long, bytes long").collect()
    assert [row["rows"] for row in small] == [2000, 2000]
