"""Order: whether the messages of a key stand in the log as they were written, and were applied as they stand there.

First where a lane's message stands behind a later one (reconcilecells.py), and where a transaction applied what lies
before the work of an earlier one. Both are cheap to see, and nothing else can be out of order; only there the keys are
looked at. The rules are those of tally/history.py: `reordered`, `misapplied`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tallymark.pipeline.reconcilecells import BUCKET
from tallymark.pipeline.reconcileground import Ground
from tallymark.pipeline.reconcileports import Stations

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tallymark.store.postgres.tallycells import Place, Stretch


def behind(records: DataFrame, parked: DataFrame, written: DataFrame | None = None) -> DataFrame:
    """Those that stand behind a higher position of their key: first copies only, without what was parked.

    `written`: ids and positions of the outbox. A copy that has no row there is a fault of its own, and says nothing of
    others; without it there may be too many.
    """
    from pyspark.sql import Window as Over
    from pyspark.sql import functions as F

    copies = records.where("key is not null and position is not null").join(
        parked.select("id").distinct(), "id", "left_anti"
    )
    if written is not None:
        copies = copies.join(written.select("id", "position"), ["id", "position"], "left_semi")
    first = Over.partitionBy("id", "position").orderBy("topic", "partition", "offset")
    before = (
        Over.partitionBy("topic", "partition", "source", "key")
        .orderBy("offset")
        .rowsBetween(Over.unboundedPreceding, -1)
    )
    return (
        copies.withColumn("copy", F.row_number().over(first))
        .where("copy = 1")
        .withColumn("highest", F.max("position").over(before))
        .where("position < highest")
        .select("id", "position")
        .distinct()
    )


def misapplied(spark: SparkSession, sources: Stations, ground: Ground, database: str) -> DataFrame | None:
    """Effects of one database that were made after a later one's of their key; None where there can be none.

    Only of consumers that have said what order means to them.
    """
    from pyspark.sql import functions as F

    labels = {name: label for name, label in ground.labels_in(database).items() if _ordered(ground, label)}
    if not labels:
        return None
    tables = sources.tables(database)
    queries = tables.queries(rows=ground.rows, bucket=BUCKET)
    places = _places(
        tables.read(spark, [queries.overtaking(ground.since, ground.view.remade)]), ground, labels
    )
    if not places:
        return None
    found = tables.read(spark, [queries.misapplied(places, ground.view.remade)])
    wanted = F.lit(False)
    label = F.lit(None).cast("string")
    for name, known_as in labels.items():
        mine = F.col("consumer") == name
        wanted = wanted | (mine & F.col("topic").isin(sorted(_ordered(ground, known_as))))
        label = F.when(mine, F.lit(known_as)).otherwise(label)
    return found.where(wanted).withColumn("consumer", label).persist()


def _places(frame: DataFrame, ground: Ground, labels: Mapping[str, str]) -> list[Stretch]:
    found: dict[Place, tuple[int, int]] = {}
    for row in frame.collect():
        if row.consumer in labels and row.topic in _ordered(ground, labels[row.consumer]):
            place = (row.topic, row.partition)
            low, high = found.get(place, (row.low, row.high))
            found[place] = min(low, row.low), max(high, row.high)
    return [(place, low, high + 1) for place, (low, high) in sorted(found.items())]


def _ordered(ground: Ground, label: str) -> frozenset[str]:
    return ground.consumers[label].ordered & frozenset(ground.topics)
