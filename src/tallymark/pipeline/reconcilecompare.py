"""Any two tables, of PostgreSQL or Parquet, compared at Spark's width: one union, one group-by on the key.

Values are compared as text. Numbers are brought to one form first: 1.50 and 1.5 are the same amount.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tallymark.errors import UsageError
from tallymark.pipeline.reconcilesources import jdbc_options
from tallymark.tally.comparing import Difference, Kind, checked_columns, identifier

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class Table:
    """A table of a database, or files of Parquet."""

    text: str
    url: str | None = None
    name: str | None = None
    path: Path | None = None


class Compared:
    """Two tables side by side; `differences` streams what differs."""

    def __init__(
        self, spark: SparkSession, left: Table, right: Table, keys: Sequence[str], columns: Sequence[str]
    ) -> None:
        self._keys = list(keys)
        one, other = _frame(spark, left), _frame(spark, right)
        if not columns:
            columns = [name for name in one.columns if name in other.columns and name not in keys]
        checked_columns([*keys, *columns], one.columns, other.columns)
        self._columns = list(columns)
        if not self._keys or not self._columns:
            raise UsageError("nothing to compare", remedy="name --key, and columns that both tables have")
        self._grouped = self._united(one, other).persist()

    def counts(self) -> tuple[int, int]:
        """Rows on the left and on the right."""
        from pyspark.sql import functions as F

        row = self._grouped.agg(F.sum("lefts"), F.sum("rights")).collect()[0]
        return int(row[0] or 0), int(row[1] or 0)

    def differences(self) -> Iterator[Difference]:
        different = self._grouped.where("lefts <> 1 or rights <> 1 or not (left <=> right)")
        for row in different.toLocalIterator():
            yield self._difference(row)

    def close(self) -> None:
        self._grouped.unpersist()

    def _united(self, one: DataFrame, other: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F

        def side(frame: DataFrame, left: bool) -> DataFrame:
            values = F.struct(*(_text(frame, name).alias(name) for name in self._columns))
            return frame.select(
                *(_text(frame, name).alias(f"key_{at}") for at, name in enumerate(self._keys)),
                F.lit(left).alias("is_left"),
                values.alias("said"),
            )

        keys = [f"key_{at}" for at in range(len(self._keys))]
        return (
            side(one, True)
            .unionByName(side(other, False))
            .groupBy(*keys)
            .agg(
                F.expr("count_if(is_left)").alias("lefts"),
                F.expr("count_if(not is_left)").alias("rights"),
                F.expr("max(case when is_left then said end)").alias("left"),
                F.expr("max(case when not is_left then said end)").alias("right"),
            )
        )

    def _difference(self, row: Any) -> Difference:
        kind: Kind = "differs"
        if row.lefts > 1 or row.rights > 1:
            kind = "doubled"
        elif row.lefts == 0:
            kind = "missing-left"
        elif row.rights == 0:
            kind = "missing-right"
        key = {name: row[f"key_{at}"] for at, name in enumerate(self._keys)}
        left = row.left.asDict() if row.left is not None else {}
        right = row.right.asDict() if row.right is not None else {}
        return Difference(key, kind, left, right, (row.lefts, row.rights))


def _frame(spark: SparkSession, table: Table) -> DataFrame:
    if table.path is not None:
        if not table.path.exists():
            raise UsageError(f"there is nothing at {table.path}", remedy="name a file or a folder of Parquet")
        return spark.read.parquet(str(table.path))
    if table.url is None or table.name is None:
        raise AssertionError("a table is a database's, or Parquet")
    reader = spark.read.format("jdbc").options(**jdbc_options(table.url))
    return reader.option("dbtable", identifier(table.name)).load()


def _text(frame: DataFrame, name: str) -> Column:
    from pyspark.sql import functions as F
    from pyspark.sql.types import BinaryType, NumericType

    kind = frame.schema[name].dataType
    if isinstance(kind, BinaryType):
        return F.concat(F.lit("\\x"), F.lower(F.hex(F.col(name))))
    text = F.col(name).cast("string")
    if isinstance(kind, NumericType):
        # Trailing zeros behind a point say nothing; neither does the point itself then.
        return F.regexp_replace(F.regexp_replace(text, r"(\.\d*?)0+$", "$1"), r"\.$", "")
    return text
