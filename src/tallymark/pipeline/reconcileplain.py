"""Before the second look: which messages are plainly delivered, by numbers alone. Nearly all are, in any window.

Grouping by sets, texts and structs, as marks are made of, is many times dearer than by numbers. So a message that shows
one row, one copy of the same contents and position, and one finished keeping for each consumer that was to have it,
is counted as delivered here. Of everything else nothing is said: marks and rules decide (reconcilemarks.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tallymark.pipeline.reconcilemarks import COUNTS
from tallymark.pipeline.reconcilereaders import quoted, reads
from tallymark.pipeline.reconcilerecords import halves, number_of
from tallymark.tally.records import Horizon, Reader

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# Stations that record something of a message only where it is not plain.
_UNUSUAL = "station not in ('outbox', 'log', 'inbox', 'effect')"
_IN_ONE_PLACE = "rows = 1 and covered = 1 and copies = 1 and unusual = 0"
# A copy that claims no position is no plain one, so positions are counted.
_SAME = (
    "positions = 2 and low_position = high_position and low_a = high_a and low_b = high_b"
    " and places = 2 and low_topic = high_topic"
)


def plain(rows: DataFrame, horizon: Horizon, topics: Sequence[str]) -> DataFrame:
    """Each id that the outbox, the log or an inbox has, and whether its message is plainly delivered.

    `topics`: of the outbox; what is of another one is not plain.
    """
    from pyspark.sql import functions as F

    readers = sorted(horizon.readers.items())
    a, b = halves(F.col("digest"))
    sums = {
        **COUNTS,
        "unusual": f"count_if({_UNUSUAL})",
        "positions": "count(ours)",
        "places": "count(at)",
        "low_topic": "min(at)",
        "high_topic": "max(at)",
        "low_position": "min(ours)",
        "high_position": "max(ours)",
        **{
            f"{end}_{half}": f"{call}({half})"
            for end, call in (("low", "min"), ("high", "max"))
            for half in "ab"
        },
    }
    narrow = rows.select(
        "id",
        "station",
        "covered",
        F.expr("case when station in ('outbox', 'log') then position end").alias("ours"),
        F.when(F.col("station").isin("outbox", "log"), number_of(F.col("topic"), topics)).alias("at"),
        a.alias("a"),
        b.alias("b"),
        *(each for at, (name, reader) in enumerate(readers) for each in _at_consumer(at, name, reader)),
    )
    grouped = narrow.groupBy("id").agg(
        *(F.expr(text).alias(name) for name, text in sums.items()),
        *(F.expr(text).alias(name) for at in range(len(readers)) for name, text in _sums_at(at).items()),
    )
    said = " and ".join([_IN_ONE_PLACE, _SAME, *(_plain_at(at) for at in range(len(readers)))])
    known = grouped.where("rows + copies + kept_anywhere > 0")
    return known.select("id", F.expr(said).alias("plain"))


def _at_consumer(at: int, name: str, reader: Reader) -> list[Column]:
    """What a row says of one consumer, in numbers."""
    from pyspark.sql import functions as F

    mine = f"consumer = {quoted(name)}"
    texts = {
        f"reads_{at}": f"case when station in ('outbox', 'log', 'inbox') then cast({reads(reader)} as int) end",
        f"reached_{at}": f"case when reached_{at} then 1 end",
        f"kept_{at}": f"case when station = 'inbox' and {mine} then 1 end",
        f"finished_{at}": f"case when station = 'effect' and {mine} then 1 end",
    }
    return [F.expr(text).alias(column) for column, text in texts.items()]


def _sums_at(at: int) -> dict[str, str]:
    return {
        f"reads_some_{at}": f"max(reads_{at})",
        f"reads_all_{at}": f"min(reads_{at})",
        **{f"{each}__{at}": f"count({each}_{at})" for each in ("reached", "kept", "finished")},
    }


def _plain_at(at: int) -> str:
    done = f"kept__{at} = 1 and finished__{at} = 1"
    not_owed = f"kept__{at} = 0 and reached__{at} = 0"
    return f"(reads_some_{at} = 0 or reads_all_{at} = 1 and ({done} or {not_owed}))"
