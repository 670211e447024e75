"""Records of the log as they are summed up: whose they are by their headers, and in which order their lanes stand."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from tallymark.pipeline.reconcilecells import log_sums
from tallymark.pipeline.reconcilerecords import records_of

RAW = (
    "topic string, partition int, offset bigint, key binary, value binary, timestamp timestamp, "
    "headers array<struct<key: string, value: binary>>"
)
Headers = list[tuple[str, bytes | None]] | None


def raw(spark: Any, *records: tuple[str, int, int, bytes | None, Headers]) -> Any:
    at = datetime(2026, 11, 1, tzinfo=UTC)
    rows = [(topic, part, offset, key, b"x", at, headers) for topic, part, offset, key, headers in records]
    return spark.createDataFrame(rows, RAW)


def ours(position: int, source: bytes = b"/bank") -> Headers:
    return [("ce_source", source), ("ce_id", b"m%d" % position), ("tm_position", b"%d" % position)]


def test_of_a_header_that_is_repeated_the_last_one_counts(spark: Any) -> None:
    cases: list[tuple[Headers, tuple[str, int | None, str]]] = [
        (ours(7), ("m7", 7, "/bank")),
        ([("ce_id", b"a"), ("ce_id", b"b"), ("tm_position", b"1"), ("tm_position", b"2")], ("b", 2, "")),
        ([("ce_source", b"/a"), *(ours(3) or []), ("ce_source", b"/z")], ("m3", 3, "/z")),
        ([("tm_position", b"5"), ("other", b"y"), ("ce_id", b"c")], ("c", 5, "")),
        ([("ce_id", b"d"), ("tm_position", b"nothing")], ("d", None, "")),
        ([("ce_id", b"e"), ("ce_id", None)], ("t/0/5", None, "")),
        ([], ("t/0/6", None, "")),
        (None, ("t/0/7", None, "")),
    ]
    records = raw(spark, *(("t", 0, at, b"k", headers) for at, (headers, _) in enumerate(cases)))
    found = records_of(records).orderBy("offset").select("id", "position", "source").collect()
    assert [tuple(row) for row in found] == [said for _, said in cases]


def test_lanes_sources_and_partitions_are_told_apart(spark: Any) -> None:
    """One key has one lane; who claims no position, or one that is none, is in nobody's way."""
    records = raw(
        spark,
        ("t", 0, 0, b"a", ours(12)),
        ("t", 0, 1, b"a", ours(11)),
        ("t", 1, 2, b"a", ours(10)),
        ("u", 0, 3, b"a", ours(9)),
        # Another outbox's, which counts by itself.
        ("t", 0, 4, b"a", ours(5, b"/shop")),
        ("t", 0, 5, None, [("ce_id", b"foreign")]),
        ("u", 0, 6, None, ours(-3)),
    )

    def summed(usual: str) -> set[tuple[Any, ...]]:
        sums = log_sums(
            records_of(records), rows=10, lanes=4, parked=[], drawn=99, topics=["t", "u"], usual=usual
        )
        names = ("topic", "partition", "source", "w", "n", "low", "high", "inversions", "behind")
        return {tuple(row[name] for name in names) for row in sums.collect()}

    expected = {
        ("t", 0, "/bank", 1, 2, 0, 1, 1, 12),
        ("t", 1, "/bank", 1, 1, 2, 2, 0, None),
        ("u", 0, "/bank", 0, 1, 3, 3, 0, None),
        ("t", 0, "/shop", 0, 1, 4, 4, 0, None),
        ("t", 0, "", None, 1, 5, 5, 0, None),
        ("u", 0, "/bank", 0, 1, 6, 6, 0, None),
    }
    assert summed("/bank") == summed("") == summed("/shop") == expected
