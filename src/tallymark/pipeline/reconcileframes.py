"""The rows behind the cells: what Spark reads of the windows that differ, station by station."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from tallymark.inbox.identity import saved_source
from tallymark.pipeline.reconcilecells import BUCKET, Cells
from tallymark.pipeline.reconcileground import Ground
from tallymark.pipeline.reconcilemarks import Frames
from tallymark.pipeline.reconcileports import Stations
from tallymark.pipeline.reconcilereaders import offset_of
from tallymark.pipeline.reconcilerecords import records_of
from tallymark.store.postgres.tallycells import ALL_IDS, IdRange, Place, Stretch

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

# Producers' clocks differ: ids may claim to be so much older or younger than their neighbours.
_DAY_MS = 86_400_000
# Ranges of one reading at most: what lies between two windows is read along with them beyond that.
_SPANS = 16
BEHIND = "id string, position bigint"
MISAPPLIED = "consumer string, topic string, position bigint, id string"


@dataclass(frozen=True, slots=True)
class Reading:
    """Which windows, and which records that claim no position; `cut` where there are more of those."""

    numbers: Sequence[int]
    strays: Sequence[str] = ()
    cut: bool = False


def frames_of(
    spark: SparkSession,
    sources: Stations,
    ground: Ground,
    cells: Cells,
    reading: Reading,
    *,
    behind: DataFrame | None,
    misapplied: DataFrame | None,
    tasks: int,
) -> Frames:
    """Everything that was recorded of these windows' messages."""
    from pyspark.sql import functions as F

    tables = sources.tables(ground.name)
    queries = tables.queries(rows=ground.rows, bucket=BUCKET)
    spans = spans_of(reading.numbers, ground.rows)
    outbox = tables.read(spark, [queries.outbox_rows(each) for each in shares(spans, tasks)])
    outbox = outbox.where(F.col("topic").isin(ground.topics) | ~F.col("topic").isin(list(ground.view.topics)))
    outbox = outbox.withColumn("lane", F.col("slot") % ground.view.lanes).withColumn("age_s", _age(ground))
    inbox, effects = _consumer_frames(spark, sources, ground, cells, reading, spans, tasks)
    named = [(each.id, each.position, each.state) for each in ground.parked]
    return Frames(
        outbox=outbox.withColumn("covered", _covered(ground)),
        parked=spark.createDataFrame(named, "id string, position bigint, state string"),
        log=logged(spark, sources, ground, cells, reading.numbers, reading.strays),
        inbox=inbox,
        effects=effects,
        queue=_unfinished(spark, ground, "queued"),
        letters=_unfinished(spark, ground, "letters"),
        behind=spark.createDataFrame([], BEHIND) if behind is None else behind,
        misapplied=spark.createDataFrame([], MISAPPLIED) if misapplied is None else misapplied,
    )


def stray_ids(
    spark: SparkSession, sources: Stations, ground: Ground, cells: Cells, *, limit: int
) -> list[str]:
    """Ids of records that claim no position of ours: a copy of one of ours may be among them."""
    # Only the offsets between which such records stand: one of them is no reason to read all of the log once more.
    starts = {place: cell.low for place, cell in cells.nameless.items()}
    ends = {place: cell.high + 1 for place, cell in cells.nameless.items()}
    records = known_of(ground, records_of(sources.log.raw(spark, starts, ends)))
    found = records.where(_unclaimed(ground)).where("named").select("id").distinct().limit(limit)
    return [row.id for row in found.collect()]


def known_of(ground: Ground, records: DataFrame) -> DataFrame:
    """Without those of which a copy of the outbox that is older than the log's says nothing: resends are among them."""
    if ground.beyond is None:
        return records
    return records.where(f"position is null or position < {ground.beyond}")


def _unclaimed(ground: Ground) -> Column:
    """Whether a record claims no position; or it names no source, where all of ours do."""
    from pyspark.sql import functions as F

    nowhere = F.col("position").isNull()
    return nowhere | (F.col("source") == "") if ground.sourceless else nowhere


def inbox_sources(ground: Ground) -> set[str]:
    """The outbox's sources as inboxes save them."""
    named = {saved_source(each.encode()) for each in ground.sources or () if each}
    return named | ({f"kafka:{topic}" for topic in ground.topics} if "" in (ground.sources or ()) else set())


def spans_of(numbers: Sequence[int], rows: int) -> list[tuple[int, int]]:
    """Windows as ranges of positions: neighbours together, and at most so many ranges."""
    spans: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if spans and spans[-1][1] == number * rows:
            spans[-1] = (spans[-1][0], (number + 1) * rows)
        else:
            spans.append((number * rows, (number + 1) * rows))
    while len(spans) > _SPANS:
        at = min(range(1, len(spans)), key=lambda n: spans[n][0] - spans[n - 1][1])
        spans[at - 1 : at + 1] = [(spans[at - 1][0], spans[at][1])]
    return spans


def read_along(numbers: Collection[int], known: Collection[int], rows: int) -> list[int]:
    """These windows, and those that lie between them in what is read: whoever is read is looked at everywhere."""
    wanted, wider = sorted(numbers), list[int]()
    while wanted != wider:
        spans = spans_of(wanted, rows)
        inside = {n for n in known if any(low <= n * rows < high for low, high in spans)}
        wanted, wider = sorted(inside | set(wanted)), wanted
    return wanted


def shares(spans: Sequence[tuple[int, int]], parts: int) -> list[list[tuple[int, int]]]:
    """The same positions, cut into at most so many parts of the same width: a query each."""
    share = max(1, -(-sum(high - low for low, high in spans) // parts))
    pieces = [(at, min(at + share, high)) for low, high in spans for at in range(low, high, share)]
    return [pieces[at::parts] for at in range(min(parts, len(pieces)))]


def logged(
    spark: SparkSession,
    sources: Stations,
    ground: Ground,
    cells: Cells,
    numbers: Sequence[int],
    strays: Sequence[str] = (),
) -> DataFrame:
    """The records of these windows' messages, and the strays."""
    from pyspark.sql import functions as F

    schema = (
        "id string, position bigint, key binary, topic string, partition int, offset bigint, digest string, "
    )
    if not ground.topics or not numbers:
        return spark.createDataFrame([], schema + "source string, age_s double")
    # Only the offsets between which these windows' messages stand.
    starts, highest = dict(ground.ends), dict[Place, int]()
    wanted = list(cells.stood_in_log(numbers))
    wanted += list(cells.nameless.items()) if strays else []
    for place, cell in wanted:
        starts[place] = min(starts[place], cell.low)
        highest[place] = max(highest.get(place, 0), cell.high + 1)
    spans = spans_of(numbers, ground.rows)
    inside = F.expr(" or ".join(f"position >= {low} and position < {high}" for low, high in spans))
    if ground.sources is not None:
        inside = inside & F.col("source").isin(sorted(ground.sources))
    if strays:
        # Whoever claims no position may be a copy of ours, whatever it says.
        inside = inside | (_unclaimed(ground) & F.col("id").isin(list(strays)))
    records = known_of(ground, records_of(sources.log.raw(spark, starts, {**ground.ends, **highest})))
    return records.where(inside).withColumn("age_s", _age(ground))


def _consumer_frames(
    spark: SparkSession,
    sources: Stations,
    ground: Ground,
    cells: Cells,
    reading: Reading,
    spans: Sequence[tuple[int, int]],
    tasks: int,
) -> tuple[DataFrame, DataFrame]:
    from pyspark.sql import functions as F

    inbox = spark.createDataFrame(
        [],
        "consumer string, id string, topic string, partition int, offset bigint, position bigint, "
        "key binary, digest string",
    )
    effects = spark.createDataFrame([], "consumer string, outcome string, id string")
    # Usually all lies between the ids that the outbox has there: an index range. Else there is room for other clocks.
    near, far = (ids_of(cells, reading.numbers, tasks, room_ms=room) for room in (0, _DAY_MS))
    places = _places(cells, set(reading.numbers))
    for database in sources.inboxes():
        labels = ground.labels_in(database)
        if not labels:
            continue
        tables = sources.tables(database)
        queries = tables.queries(rows=ground.rows, bucket=BUCKET)
        if _all_between(near, spark, sources, ground, cells, database, spans):
            kept = tables.read(spark, [queries.inbox_rows(each, spans) for each in near])
            done = tables.read(spark, [queries.effect_rows(each) for each in near])
        else:
            kept = tables.read(spark, [queries.inbox_rows(each, spans) for each in far])
            # All ids: an effect is found by its place in the log, wherever its id lies.
            done = tables.read(spark, [queries.effect_rows(ALL_IDS, places)])
        # Only what the consumers had passed when they were looked at: the rest may not be finished yet.
        # What was kept of a log that was replaced since says nothing of how far they have come in this one.
        seen, before = F.lit(False), F.lit(False)
        for topic, at in ground.view.remade.items():
            before = before | ((F.col("topic") == topic) & (F.col("kept_at") < F.lit(at)))
        for name, label in labels.items():
            upto = offset_of(ground.consumers[label].next_offsets)
            passed = F.col("offset").isNull() | (F.col("offset") < upto) | before
            seen = seen | ((F.col("consumer") == name) & passed)
        if ground.sources is not None:
            seen = seen & F.col("source").isin(sorted(inbox_sources(ground)))
        kept = kept.where(seen).drop("source", "kept_at")
        inbox = inbox.unionByName(_labelled(kept.where(F.col("topic").isin(ground.topics)), labels))
        effects = effects.unionByName(_labelled(done, labels))
    return inbox, effects


def _all_between(
    ids: Sequence[IdRange],
    spark: SparkSession,
    sources: Stations,
    ground: Ground,
    cells: Cells,
    database: str,
    spans: Sequence[tuple[int, int]],
) -> bool:
    """Whether as much of these windows lies between these ids, in one database, as was counted of them under any."""
    if ids[0] == ALL_IDS or sources.log.is_copy:
        # Files are read as a whole, whatever is asked of them.
        return False
    labels = ground.labels_in(database)
    tables = sources.tables(database)
    queries = tables.queries(rows=ground.rows, bucket=BUCKET)
    ours = None if ground.sources is None else inbox_sources(ground)
    found: int = sum(
        row.n
        for row in tables.read(spark, [queries.inbox_counts(each, spans) for each in ids]).collect()
        if row.consumer in labels and row.topic in ground.topics and (ours is None or row.source in ours)
    )
    inside = [
        digest.count
        for label in labels.values()
        for number, topics in cells.inbox.get(label, {}).items()
        if any(low <= number * ground.rows < high for low, high in spans)
        for digest in topics.values()
    ]
    return found == sum(inside)


def _places(cells: Cells, numbers: set[int]) -> list[Stretch]:
    """Where in the log these windows' messages stand, or stood when they were kept."""
    found: dict[Place, tuple[int, int]] = {}
    stood = [(place, cell.low, cell.high) for place, cell in cells.stood_in_log(numbers)]
    stood += [(place, *ends) for (w, place), ends in cells.kept_between.items() if w in numbers]
    for place, low, high in stood:
        known = found.get(place, (low, high))
        found[place] = min(low, known[0]), max(high, known[1])
    return [(place, low, high + 1) for place, (low, high) in sorted(found.items())]


def _labelled(frame: DataFrame, labels: dict[str, str]) -> DataFrame:
    from pyspark.sql import functions as F

    pairs = [F.lit(each) for name, label in labels.items() for each in (name, label)]
    label = F.try_element_at(F.create_map(*pairs), F.col("consumer"))
    return frame.withColumn("consumer", label).where("consumer is not null")


def _unfinished(spark: SparkSession, ground: Ground, what: str) -> DataFrame:
    rows = [
        (label, each.id, each.state)
        for label, view in ground.consumers.items()
        for each in getattr(view, what)
    ]
    return spark.createDataFrame(rows, "consumer string, id string, state string")


def _covered(ground: Ground) -> Column:
    """Whether a batch that was sent covers a row, as the relay stood when it was looked at."""
    from pyspark.sql import functions as F

    pairs = [
        each
        for lane, upto in enumerate(ground.view.settled)
        for each in (F.lit(lane), F.lit(upto).cast("bigint"))
    ]
    sent = F.col("position") <= F.coalesce(F.try_element_at(F.create_map(*pairs), F.col("lane")), F.lit(0))
    for (lane, topic), after in ground.view.holds.items():
        held = (F.col("lane") == lane) & (F.col("topic") == topic) & (F.col("position") > after)
        sent = sent & ~held
    return sent


def _age(ground: Ground) -> Column:
    from pyspark.sql import functions as F

    return F.lit(ground.view.at.timestamp()) - F.col("at").cast("double")


def ids_of(cells: Cells, numbers: Iterable[int], parts: int, *, room_ms: int = _DAY_MS) -> list[IdRange]:
    """Between which ids these windows' messages lie, in parts, with room for clocks; all ids, where nobody can say."""
    found = [cells.ids[number] for number in numbers if number in cells.ids]
    low = min((uuid.UUID(each) for each, _ in found), default=None)
    high = max((uuid.UUID(each) for _, each in found), default=None)
    if low is None or high is None or low.version != 7 or high.version != 7:
        return [ALL_IDS]
    # Cut where they lie: nearly nothing does in the room around them.
    step = max(1, -(-(high.int - low.int) // parts))
    inner = [uuid.UUID(int=at) for at in range(low.int + step, high.int, step)]
    if not room_ms:
        return list(pairwise([low, *inner, uuid.UUID(int=high.int + 1)]))
    return list(pairwise([shifted(low, -room_ms), *inner, shifted(high, room_ms)]))


def shifted(id: uuid.UUID, milliseconds: int) -> uuid.UUID:
    """The lowest UUIDv7 of a moment so much later, or earlier."""
    moment = min(max((id.int >> 80) + milliseconds, 0), 2**48 - 1)
    return uuid.UUID(int=moment << 80)
