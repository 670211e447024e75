"""Any two tables, of PostgreSQL or Parquet, compared at Spark's width: one union, one group-by on the key.

Values are compared as text. Numbers are brought to one form first: 1.50 and 1.5 are the same amount, and so are 1.0E7 and
10000000. A table of PostgreSQL is read by several tasks where the key's first column is a whole number.

Each of these reads has a snapshot of its own: a row that enters one table and then the other between two of them seems
to be missing where it was first. What differs is therefore looked at twice, and counts if it differs both times.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tallymark.errors import UsageError
from tallymark.pipeline.reconcilesources import jdbc_options
from tallymark.tally.comparing import Difference, Kind, checked_columns, identifier, literal

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_DIFFERENT = "lefts <> 1 or rights <> 1 or not (left <=> right)"


@dataclass(frozen=True, slots=True)
class Table:
    """A table of a database, or files of Parquet."""

    text: str
    url: str | None = None
    name: str | None = None
    path: Path | None = None


class Compared:
    """Two tables side by side; `differences` streams what differs. Up to `few` keys are asked for by name when they are
    looked at again; for more of them all is read again."""

    def __init__(
        self,
        spark: SparkSession,
        left: Table,
        right: Table,
        keys: Sequence[str],
        columns: Sequence[str],
        *,
        few: int = 5_000,
    ) -> None:
        self._spark, self._tables, self._few = spark, (left, right), few
        self._keys = list(keys)
        self._names = [f"key_{at}" for at in range(len(self._keys))]
        one, other = (frame_of(spark, table, self._keys[:1]) for table in (left, right))
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
        """What differs both times, as it was the second time: that is what a repair's guards must name."""
        different = self._grouped.where(_DIFFERENT)
        # Files stand still.
        if any(table.path is None for table in self._tables):
            different = self._again(different)
        for row in different.toLocalIterator():
            yield self._difference(row)

    def close(self) -> None:
        self._grouped.unpersist()

    def _again(self, different: DataFrame) -> DataFrame:
        """Those of the keys that still differ, both tables read anew."""
        from pyspark.sql import functions as F

        keys = different.select(*self._names)
        some = keys.limit(self._few + 1).collect()
        if not some:
            return different
        only = None
        if len(some) <= self._few:
            only = {name: {row[at] for row in some} for at, name in enumerate(self._keys)}
            keys = F.broadcast(keys)
        one, other = (frame_of(self._spark, table, self._keys[:1], only) for table in self._tables)
        return self._united(one, other, keys).where(_DIFFERENT)

    def _united(self, one: DataFrame, other: DataFrame, among: DataFrame | None = None) -> DataFrame:
        from pyspark.sql import functions as F

        def side(frame: DataFrame, left: bool) -> DataFrame:
            values = F.struct(*(_text(frame, name).alias(name) for name in self._columns))
            return frame.select(
                *(_text(frame, name).alias(key) for name, key in zip(self._keys, self._names, strict=True)),
                F.lit(left).alias("is_left"),
                values.alias("said"),
            )

        rows = side(one, True).unionByName(side(other, False))
        if among is not None:
            rows = rows.join(among, [rows[key].eqNullSafe(among[key]) for key in self._names], "leftsemi")
        return rows.groupBy(*self._names).agg(
            F.expr("count_if(is_left)").alias("lefts"),
            F.expr("count_if(not is_left)").alias("rights"),
            F.expr("max(case when is_left then said end)").alias("left"),
            F.expr("max(case when not is_left then said end)").alias("right"),
        )

    def _difference(self, row: Any) -> Difference:
        kind: Kind = "differs"
        if row.lefts > 1 or row.rights > 1:
            kind = "doubled"
        elif row.lefts == 0:
            kind = "missing-left"
        elif row.rights == 0:
            kind = "missing-right"
        key = {name: row[key] for name, key in zip(self._keys, self._names, strict=True)}
        left = row.left.asDict() if row.left is not None else {}
        right = row.right.asDict() if row.right is not None else {}
        return Difference(key, kind, left, right, (row.lefts, row.rights))


def frame_of(
    spark: SparkSession,
    table: Table,
    key: Sequence[str] = (),
    only: Mapping[str, Collection[str | None]] | None = None,
) -> DataFrame:
    """All of a table; where the key begins with a whole number, cut by that, a task for each part.

    With `only`, texts by column, no row is left out that has them, but others may be there too.
    """
    if table.path is not None:
        if not table.path.exists():
            raise UsageError(f"there is nothing at {table.path}", remedy="name a file or a folder of Parquet")
        return spark.read.parquet(str(table.path))
    if table.url is None or table.name is None:
        raise AssertionError("a table is a database's, or Parquet")
    name, options = identifier(table.name), jdbc_options(table.url)
    whole = spark.read.format("jdbc").options(**options).option("dbtable", name).load()
    if only and (condition := _condition(whole, only)):
        chosen = f"(select * from {name} where {condition}) chosen"
        return spark.read.format("jdbc").options(**options).option("dbtable", chosen).load()
    ends = _ends(spark, options, name, whole, key[0]) if key else None
    if ends is None:
        return whole
    cut = {"partitionColumn": key[0], "lowerBound": str(ends[0]), "upperBound": str(ends[1])}
    cut["numPartitions"] = str(spark.sparkContext.defaultParallelism)
    return spark.read.format("jdbc").options(**options, **cut).option("dbtable", name).load()


def _condition(frame: DataFrame, only: Mapping[str, Collection[str | None]]) -> str:
    """PostgreSQL's way to say `only`, of the columns that it writes as Spark does: whole numbers, and what is text there.

    They are compared as format() writes them, null as nothing: what is a key of one table need not be a value of the
    other's type, and would be refused as such.
    """
    from pyspark.sql.types import IntegralType, StringType

    parts = []
    for name, texts in only.items():
        if isinstance(frame.schema[name].dataType, IntegralType | StringType):
            quoted = name.replace('"', '""')
            parts.append(
                f"format('%s', \"{quoted}\") in ({', '.join(literal(each or '') for each in texts)})"
            )
    return " and ".join(parts)


def _ends(
    spark: SparkSession, options: Mapping[str, str], name: str, frame: DataFrame, column: str
) -> tuple[int, int] | None:
    """The lowest and the highest of a column of whole numbers; None where it is none, or empty."""
    from pyspark.sql.types import IntegralType

    if column not in frame.columns or not isinstance(frame.schema[column].dataType, IntegralType):
        return None
    query = f"select min({identifier(column)}), max({identifier(column)}) from {name}"
    low, high = spark.read.format("jdbc").options(**options).option("query", query).load().collect()[0]
    return None if low is None else (low, high)


def _text(frame: DataFrame, name: str) -> Column:
    from pyspark.sql import functions as F
    from pyspark.sql.types import BinaryType, IntegralType, NumericType

    kind = frame.schema[name].dataType
    if isinstance(kind, BinaryType):
        return F.concat(F.lit("\\x"), F.lower(F.hex(F.col(name))))
    if isinstance(kind, NumericType) and not isinstance(kind, IntegralType):
        quoted = name.replace("`", "``")
        return F.expr(_plain(f"cast(`{quoted}` as string)"))
    return F.col(name).cast("string")


def _plain(text: str) -> str:
    """An expression for a number's text in one form, without an exponent and without zeros that say nothing.

    By its digits, for no type of Spark holds both what a double and what a numeric can be. NaN and Infinity stay.
    """
    # Trailing zeros behind a point say nothing; neither does the point itself then, nor a zero's sign.
    short = rf"regexp_replace({text}, r'(\.\d*?)0+$', '$1')"
    short = rf"regexp_replace(regexp_replace({short}, r'\.$', ''), '^-0$', '0')"
    # Java writes an exponent behind one digit and a fraction: so many digits stand before the point.
    sign = f"if(startswith({text}, '-'), '-', '')"
    digits = f"rtrim('0', translate(substring_index({text}, 'E', 1), '-.', ''))"
    point = f"(1 + cast(substring_index({text}, 'E', -1) as int))"
    return f"""case
        when not contains({text}, 'E') then {short}
        when {digits} = '' then '0'
        when {point} <= 0 then concat({sign}, '0.', repeat('0', -{point}), {digits})
        when {point} >= length({digits}) then concat({sign}, rpad({digits}, {point}, '0'))
        else concat({sign}, left({digits}, {point}), '.', substr({digits}, {point} + 1)) end"""
