"""The second look: single messages. Union of what the stations recorded, one group-by on the id, then the rules as SQL.

Union and group-by, not an outer join: the same cost, and it shows copies, which a join hides. The result holds for each
message the marks of tally/verdicts.py and the verdicts by its rules; tally/history.py is the definition of both.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

from tallymark.lifecycle import Stage, Verdict
from tallymark.pipeline.reconcilereaders import (
    among,
    dropped,
    expires,
    known_for,
    offset_of,
    quoted,
    reached,
    reads,
)
from tallymark.tally.records import Horizon, Reader
from tallymark.tally.verdicts import INTO_CONSUMER, INTO_LOG, Marks, Rule

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_SCHEMA = (
    "id string, station string, position bigint, digest string, topic string, key binary, partition int, "
    "offset bigint, lane int, age_s double, source string, consumer string, state string, covered boolean"
)
_COLUMNS = tuple(each.split()[0] for each in _SCHEMA.split(", "))
_TYPES = dict(each.split() for each in _SCHEMA.split(", "))
_MARKS = tuple(field.name for field in dataclasses.fields(Marks))
_COMMON, _OF_CONSUMER = _MARKS[: _MARKS.index("owed")], _MARKS[_MARKS.index("owed") :]
# Of a message's rows of `recorded`, at any consumer.
COUNTS = {
    "rows": "count_if(station = 'outbox')",
    "covered": "count_if(station = 'outbox' and covered)",
    "copies": "count_if(station = 'log')",
    "kept_anywhere": "count_if(station = 'inbox')",
}


@dataclass(frozen=True, slots=True)
class Frames:
    """What each station recorded; columns as named in `_SCHEMA`, as far as the station has them."""

    outbox: DataFrame
    parked: DataFrame
    log: DataFrame
    inbox: DataFrame
    effects: DataFrame
    queue: DataFrame
    letters: DataFrame
    # Of reconcileorder.py: what stands behind a later one of its key; what was applied after one.
    behind: DataFrame
    misapplied: DataFrame


@dataclass(frozen=True, slots=True)
class Single:
    """One message out of Spark: its marks, and where it stands."""

    id: str
    topic: str
    key: bytes | None
    # Of its first copy, else of an inbox.
    partition: int | None
    offset: int | None
    position: int | None
    # Of the outbox row: the partition that it was added for, its lane, its age.
    row_partition: int | None
    lane: int | None
    age_s: float
    parked_once: bool
    common: Marks
    at_consumers: dict[str, Marks]
    # What Spark says, before anything is known of a log that starts behind it.
    in_log: tuple[Verdict, Stage]
    # Where it was written last: a resend stands elsewhere than its original. Where there is no row: what a copy claims.
    last_position: int | None = None
    # The lowest position that a copy claims.
    first_claim: int | None = None


def recorded(frames: Frames, horizon: Horizon) -> DataFrame:
    """All that was recorded, in rows of one shape: `station` says by whom."""
    from pyspark.sql import functions as F

    union = reduce(
        lambda one, other: one.unionByName(other),
        [
            _station(frames.outbox, "outbox"),
            _station(frames.parked, "parked"),
            _station(frames.log, "log"),
            _station(frames.inbox, "inbox"),
            _station(frames.effects, "effect", state="outcome"),
            _station(frames.queue, "queue"),
            _station(frames.letters, "letter"),
            _station(frames.behind, "behind"),
            _station(frames.misapplied, "misapplied"),
        ],
    )
    for at, (_, reader) in enumerate(sorted(horizon.readers.items())):
        union = union.withColumn(f"reached_{at}", reached(reader)).withColumn(
            f"passed_{at}", F.col(f"reached_{at}") & (F.col("offset") < offset_of(reader.next_offsets))
        )
    return union


def singles(rows: DataFrame, horizon: Horizon) -> DataFrame:
    """Of rows of `recorded`: one per message that the outbox, the log or an inbox has, with its marks and verdicts."""
    from pyspark.sql import functions as F

    readers = sorted(horizon.readers.items())
    grouped = rows.groupBy("id").agg(
        *_common_sums(horizon), *(each for at, one in enumerate(readers) for each in _consumer_sums(at, *one))
    )
    marked = _marked(grouped.where("rows + copies + kept_anywhere > 0"), horizon, readers)
    return marked.withColumn("in_log", F.expr(_case(INTO_LOG))).withColumn(
        "consumers",
        F.expr(
            # Another producer's messages are not ours to follow; nor what a consumer does not read.
            "filter(consumers, c -> c.reads and in_log.verdict <> 'foreign')"
        ),
    )


def faulty(judged: DataFrame) -> DataFrame:
    """Those of which not everything is delivered."""
    return judged.where(
        "in_log.verdict <> 'delivered' or exists(consumers, c -> c.said.verdict <> 'delivered')"
    )


def single_of(row: Any) -> Single:
    """A row of `singles` as values."""
    common = {name: row[name] for name in _COMMON}
    return Single(
        row.id,
        row.topic,
        None if row.key is None else bytes(row.key),
        row.place.partition,
        row.place.offset,
        row.position,
        row.row_partition,
        row.lane,
        row.age_s or 0.0,
        row.parked_once,
        Marks(**common),
        {each.name: Marks(**common, **{name: each[name] for name in _OF_CONSUMER}) for each in row.consumers},
        (Verdict(row.in_log.verdict), Stage(row.in_log.stage)),
        row.last_position,
        row.first_claim,
    )


def _station(frame: DataFrame, station: str, *, state: str = "state") -> DataFrame:
    from pyspark.sql import functions as F

    if state != "state":
        frame = frame.withColumnRenamed(state, "state")
    return frame.select(
        *(
            F.lit(station).alias(name)
            if name == "station"
            else (F.col(name) if name in frame.columns else F.lit(None)).cast(_TYPES[name]).alias(name)
            for name in _COLUMNS
        )
    )


def _count(condition: str) -> str:
    return f"count_if({condition})"


def _set(value: str, condition: str) -> str:
    return f"collect_set(case when {condition} then {value} end)"


def _common_sums(horizon: Horizon) -> list[Column]:
    from pyspark.sql import functions as F

    texts = {
        **COUNTS,
        "parked": _count("station = 'parked' and state not in ('sent', 'discarded')"),
        "discarded": _count("station = 'parked' and state = 'discarded'"),
        "parked_once": "coalesce(bool_or(station = 'parked'), false)",
        "rowless": _count(f"station = 'log' and position < {horizon.outbox_from}"),
        "claimed": _set("coalesce(position, -1L)", "station = 'log'"),
        "positions": _set("position", "station = 'outbox'"),
        "log_topics": _set("topic", "station = 'log'"),
        "row_topics": _set("topic", "station = 'outbox'"),
        "log_digests": _set("digest", "station = 'log'"),
        "row_digests": _set("digest", "station = 'outbox'"),
        "reordered": "coalesce(bool_or(station = 'behind'), false)",
        "age_s": "coalesce(max(case when station in ('outbox', 'log') then age_s end), 0.0D)",
        "youngest": "coalesce(min(case when station = 'outbox' then age_s end), 0.0D)",
        "on_its_way_s": "coalesce(min(case when station = 'outbox' then age_s end), "
        + "max(case when station = 'log' then age_s end), 0.0D)",
        "topic": "max(case when station in ('outbox', 'log', 'inbox') then topic end)",
        "key": "max(case when station in ('outbox', 'log', 'inbox') then key end)",
        "place": "coalesce("
        + "min(case when station = 'log' then named_struct('partition', partition, 'offset', offset) end), "
        + "min(case when station = 'inbox' then named_struct('partition', partition, 'offset', offset) end), "
        + "named_struct('partition', cast(null as int), 'offset', cast(null as bigint)))",
        "position": "coalesce(min(case when station = 'outbox' then position end), "
        + "min(case when station = 'log' then position end), "
        + "min(case when station = 'inbox' then position end))",
        "last_position": "coalesce(max(case when station = 'outbox' then position end), "
        + "max(case when station = 'log' then position end), "
        + "max(case when station = 'inbox' then position end))",
        "first_claim": "min(case when station = 'log' then position end)",
        "row_partition": "min(case when station = 'outbox' then partition end)",
        "lane": "min(case when station = 'outbox' then lane end)",
    }
    return [F.expr(text).alias(name) for name, text in texts.items()]


def _consumer_sums(at: int, name: str, reader: Reader) -> list[Column]:
    from pyspark.sql import functions as F

    mine = f"consumer = {quoted(name)}"
    texts = {
        "reads": f"bool_or(station in ('outbox', 'log', 'inbox') and {reads(reader)})",
        "kept": _count(f"station = 'inbox' and {mine}"),
        "inbox_digests": _set("digest", f"station = 'inbox' and {mine}"),
        "reached": f"coalesce(bool_or(reached_{at}), false)",
        "passed": f"coalesce(bool_and(case when reached_{at} then passed_{at} end), false)",
        "effects": _count(f"station = 'effect' and {mine} and state = 'applied'"),
        "finished": _count(f"station = 'effect' and {mine}"),
        "misapplied": f"coalesce(bool_or(station = 'misapplied' and {mine}), false)",
        "queued": _count(f"station = 'queue' and {mine}"),
        "retrying": _count(f"station in ('queue', 'letter') and {mine} and state = 'retrying'"),
        "dead": _count(f"station = 'letter' and {mine} and state = 'dead'"),
        "given_up": _count(f"station = 'letter' and {mine} and state = 'discarded'"),
    }
    return [F.expr(text).alias(f"{column}__{at}") for column, text in texts.items()]


def _marked(grouped: DataFrame, horizon: Horizon, readers: Sequence[tuple[str, Reader]]) -> DataFrame:
    """From sums to marks."""
    from pyspark.sql import functions as F

    texts = {
        "sent": "greatest(0, covered - parked - discarded)",
        "waiting": "rows - covered",
        "ours": "array_remove(claimed, -1L)",
        "positioned": "size(array_remove(claimed, -1L)) > 0 or rows > 0",
        "forgotten": "size(array_remove(claimed, -1L)) > 0 and array_max(array_remove(claimed, -1L)) < "
        + str(horizon.outbox_from),
        # Of a message that was sent again the outbox may have dropped the first row, and not the last.
        "repeats": "greatest(0, copies - if(rows > 0, rowless, 0L) - greatest(1, rows), copies - size(claimed))",
        "altered_in_log": "rows > 0 and (size(array_except(log_digests, row_digests)) > 0 "
        + "or size(array_except(log_topics, row_topics)) > 0 "
        + f"or size(array_except(filter(claimed, p -> p >= {max(horizon.outbox_from, 0)}), positions)) > 0)",
        "gone": "''",
        "old": f"on_its_way_s > {horizon.late_after_s!r}D",
    }
    frame = grouped.withColumns({name: F.expr(text) for name, text in texts.items()})
    return frame.withColumn(
        "consumers",
        F.array(*(_of_consumer(at, name, reader, horizon) for at, (name, reader) in enumerate(readers)))
        if readers
        else F.expr(
            "cast(array() as array<struct<name: string, reads: boolean, said: struct<verdict: string>>>)"
        ),
    )


def _of_consumer(at: int, name: str, reader: Reader, horizon: Horizon) -> Column:
    """A struct of one consumer's marks and its verdict."""
    from pyspark.sql import functions as F

    digests = "case when size(log_digests) > 0 then log_digests else row_digests end"
    texts = {
        "owed": f"reached__{at} or kept__{at} > 0 or "
        + f"(copies = 0 and youngest < {known_for(reader)} + {expires(horizon)})",
        "kept": f"kept__{at}",
        "altered_in_inbox": f"size({digests}) > 0 and size(array_except(inbox_digests__{at}, {digests})) > 0",
        "passed": f"passed__{at}",
        # Known only where a log starts behind it: the driver looks there again.
        "overtaken": "false",
        "forgotten_in_inbox": f"({dropped(reader)} or (copies = 0 and (youngest >= {known_for(reader)} "
        + f"or (rows > 0 and {among(horizon.compacted)}))))",
        **{
            each: f"{each}__{at}"
            for each in ("effects", "finished", "misapplied", "queued", "retrying", "dead", "given_up")
        },
    }
    said = _case(INTO_CONSUMER, {each: f"({text})" for each, text in texts.items()})
    return F.struct(
        F.lit(name).alias("name"),
        F.col(f"reads__{at}").alias("reads"),
        F.expr(said).alias("said"),
        *(F.expr(text).alias(each) for each, text in texts.items()),
    )


def _case(rules: Sequence[Rule], values: Mapping[str, str] | None = None) -> str:
    """The first rule that holds, as one expression. `values`: what names of marks stand for."""
    branches = " ".join(
        f"when {_put(rule.sql, values or {})} then "
        f"named_struct('verdict', '{rule.verdict}', 'stage', '{rule.stage}')"
        for rule in rules
    )
    return f"case {branches} end"


def _put(sql: str, values: Mapping[str, str]) -> str:
    return re.sub(r"'[^']*'|\b[a-z_]+\b", lambda word: values.get(word.group(), word.group()), sql)
