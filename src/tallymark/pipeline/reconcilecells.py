"""The first look: a digest per window and station, summed where the rows are. Where these agree, no message is read.

A cell of the outbox is (window, topic); of the log (window, topic, partition); of an inbox (consumer, window, topic).
What was kept and what was applied are compared by their place in the log, because effects know no position: cells of
(consumer, topic, partition, bucket of offsets).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tallymark.pipeline.reconcilerecords import folded, halves, limbs, number_of
from tallymark.store.postgres.tally import ConsumerView
from tallymark.tally.digest import Digest
from tallymark.tally.records import Place
from tallymark.tally.windows import Window

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Of offsets: where one effect of it is wrong, all windows that it holds messages of are looked into.
BUCKET = 10_000
# More than anybody has: what topic, partition and lane are told apart by in one number.
_PARTITIONS, _LANES = 2**20, 2**10
Bucket = tuple[str, str, int, int]


@dataclass(slots=True)
class LogCell:
    """A window's messages in one partition."""

    digest: Digest
    low: int
    high: int
    # The highest position that one of them stands behind.
    behind: int | None = None
    # Which of them claims which position (tallycells.py: FOLD).
    claims: int = 0


@dataclass(frozen=True, slots=True)
class Resent:
    """Where a consumer keeps a message that was sent again, and the digests of its contents and of its id."""

    position: int | None
    contents: Digest
    ids: Digest


def _by_window() -> dict[int, dict[Any, Any]]:
    return defaultdict(dict)


@dataclass(slots=True)
class Cells:
    """All cells of a run, by window number (position divided by the window's rows)."""

    rows: int
    # What each consumer reads; of one that is not here, all.
    reads: Mapping[str, Collection[str]] = field(default_factory=dict)
    outbox: dict[int, dict[str, Digest]] = field(default_factory=_by_window)
    claims: Counter[int] = field(default_factory=Counter)
    ids: dict[int, tuple[str, str]] = field(default_factory=dict)
    log: dict[int, dict[Place, LogCell]] = field(default_factory=_by_window)
    # Records that claim no position, or one of nobody's: how many, and where.
    nameless: dict[Place, LogCell] = field(default_factory=dict)
    # Records that claim positions of another outbox, which writes into the same topics.
    others: int = 0
    # The lowest and the highest position of each lane in each partition.
    firsts: dict[tuple[str, int, int], int] = field(default_factory=dict)
    lasts: dict[tuple[str, int, int], int] = field(default_factory=dict)
    # By consumer, window and topic.
    inbox: dict[str, dict[int, dict[str, Digest]]] = field(default_factory=lambda: defaultdict(_by_window))
    beginnings: dict[tuple[str, str, int], int] = field(default_factory=dict)
    # The lowest and the highest offset that a window's messages were kept or applied from, by partition.
    kept_between: dict[tuple[int, Place], tuple[int, int]] = field(default_factory=dict)
    kept_at: dict[Bucket, Digest] = field(default_factory=dict)
    # … of whose windows, and by which ids.
    kept_ids: dict[Bucket, dict[int, Digest]] = field(default_factory=lambda: defaultdict(dict))
    applied_at: dict[Bucket, Digest] = field(default_factory=dict)
    # Ids that were applied, by consumer and window, each once; and by which function they were hashed.
    effects: dict[tuple[str, int], Digest] = field(default_factory=dict)
    hashed: str = ""
    # Effects beyond the first of their message, by consumer and window.
    twice: Counter[tuple[str, int]] = field(default_factory=Counter)
    # What was sent again: its positions, by window and id; where it is kept, by consumer and id.
    resent_in: dict[int, dict[str, set[int]]] = field(default_factory=_by_window)
    resent: dict[str, dict[str, Resent]] = field(default_factory=lambda: defaultdict(dict))
    # Windows with effects that were made out of order, or stand elsewhere than they were kept from.
    misapplied_in: set[int] = field(default_factory=set)

    def stood_at(self, number: int, place: Place, low: int, high: int) -> None:
        known = self.kept_between.get((number, place), (low, high))
        self.kept_between[number, place] = min(low, known[0]), max(high, known[1])

    def beginning(self, label: str, view: ConsumerView, place: Place) -> int | None:
        """Where a consumer began in a partition: as it was written down then; where it was not, its lowest message.

        A replay of single messages keeps what lies before that, and owes it nothing in between.
        """
        begun = view.starts.get(place)
        return self.beginnings.get((label, *place)) if begun is None else begun

    def numbers(self) -> list[int]:
        return sorted(
            self.outbox.keys() | self.log.keys() | {w for each in self.inbox.values() for w in each}
        )

    def window(self, number: int) -> Window:
        return Window(number * self.rows, (number + 1) * self.rows)

    def outbox_of(self, number: int) -> Digest:
        return sum(self.outbox.get(number, {}).values(), Digest())

    def log_of(self, number: int, topics: Collection[str] | None = None) -> Digest:
        cells = self.log.get(number, {}).items()
        return sum((cell.digest for (t, _), cell in cells if topics is None or t in topics), Digest())

    def log_by_topic(self, number: int) -> dict[str, Digest]:
        found: dict[str, Digest] = {}
        for (topic, _), cell in self.log.get(number, {}).items():
            found[topic] = found.get(topic, Digest()) + cell.digest
        return found

    def has_read(self, consumer: str, topic: str) -> bool:
        """Whether what it keeps of a topic counts: of one that it reads no more, nothing is owed to it."""
        return consumer not in self.reads or topic in self.reads[consumer]

    def inbox_of(self, consumer: str, number: int) -> Digest:
        return sum(self.inbox.get(consumer, {}).get(number, {}).values(), Digest())

    def effects_of(self, consumer: str, number: int) -> Digest:
        return self.effects.get((consumer, number), Digest())

    def ends_of(self, number: int) -> dict[Place, int]:
        return {place: cell.high for place, cell in self.log.get(number, {}).items()}

    def stood_in_log(self, numbers: Iterable[int]) -> Iterator[tuple[Place, LogCell]]:
        """Where messages of these windows stand."""
        for number in numbers:
            yield from self.log.get(number, {}).items()

    def differing(self, readers: Mapping[str, frozenset[str]]) -> set[int]:
        """Windows whose stations do not hold the same messages; readers are consumers with their topics."""
        found: set[int] = set()
        for number in self.numbers():
            logged = self.log_by_topic(number)
            claims = sum(cell.claims for cell in self.log.get(number, {}).values())
            same = _alike(self.outbox.get(number, {}), logged) and self.claims[number] == claims
            for name, topics in readers.items():
                owed = {topic: digest for topic, digest in logged.items() if topic in topics}
                same = same and _alike(owed, self.inbox.get(name, {}).get(number, {}))
            if not same:
                found.add(number)
        for bucket in self.unlike():
            found |= self.kept_ids[bucket].keys()
        return found

    def overtaken(self) -> list[int]:
        """Windows among whose records order is decided: from one that stands behind another, up to that other one.

        By lanes, which is cheap to see; by keys most of them are in order. One of its key may stand in between.
        """
        found: set[int] = set()
        for number, places in self.log.items():
            for cell in places.values():
                if cell.behind is not None:
                    # Among those that are there: who claims a position of the far future would have us count up to it.
                    found.update(n for n in self.log if number <= n <= cell.behind // self.rows)
        return sorted(found)

    def unlike(self) -> list[Bucket]:
        """Stretches of the log of which not the same was kept and applied."""
        return [
            bucket
            for bucket in self.kept_at.keys() | self.applied_at.keys()
            if not self.kept_at.get(bucket, Digest()).same_messages(self.applied_at.get(bucket, Digest()))
        ]


def _alike(one: Mapping[str, Digest], other: Mapping[str, Digest]) -> bool:
    """Whether they hold the same messages, of each topic."""
    nothing = Digest()
    return all(
        one.get(topic, nothing).same_messages(other.get(topic, nothing))
        for topic in one.keys() | other.keys()
    )


def add_outbox(cells: Cells, rows: Iterable[Any]) -> None:
    for row in rows:
        window = cells.outbox[row.w]
        window[row.topic] = window.get(row.topic, Digest()) + digest_of(row, "l")
        cells.claims[row.w] += row.claims
        low, high = cells.ids.get(row.w, (row.low, row.high))
        cells.ids[row.w] = min(low, row.low), max(high, row.high)


def add_inbox(
    cells: Cells, rows: Iterable[Any], label: Mapping[str, str], sources: Collection[str] | None = None
) -> None:
    """`label`: what each consumer of this database is called in this run; `sources`: whose positions count, or all."""
    for row in rows:
        if (consumer := label.get(row.consumer)) is None or not cells.has_read(consumer, row.topic):
            continue
        ours = sources is None or row.source in sources
        if row.w is not None and ours:
            window = cells.inbox[consumer][row.w]
            window[row.topic] = window.get(row.topic, Digest()) + digest_of(row, "l")
        bucket = (consumer, row.topic, row.partition, row.bucket)
        ids = digest_of(row, "i")
        cells.kept_at[bucket] = cells.kept_at.get(bucket, Digest()) + ids
        if row.w is not None and ours:
            cells.kept_ids[bucket][row.w] = cells.kept_ids[bucket].get(row.w, Digest()) + ids
        if row.low is not None:
            place = (consumer, row.topic, row.partition)
            cells.beginnings[place] = min(row.low, cells.beginnings.get(place, row.low))
            if row.w is not None and ours:
                cells.stood_at(row.w, (row.topic, row.partition), row.low, row.high)


def add_effects(cells: Cells, rows: Iterable[Any], label: Mapping[str, str]) -> None:
    for row in rows:
        if (consumer := label.get(row.consumer)) is not None and cells.has_read(consumer, row.topic):
            bucket = (consumer, row.topic, row.partition, row.bucket)
            cells.applied_at[bucket] = cells.applied_at.get(bucket, Digest()) + digest_of(row, "i")


def log_sums(
    records: DataFrame,
    *,
    rows: int,
    lanes: int,
    parked: Iterable[int],
    drawn: int,
    topics: Sequence[str],
    usual: str = "",
) -> DataFrame:
    """One pass over the log: sums per window and partition, and what stands behind a higher position of its lane.

    `drawn`: the highest position that anybody was given. Whoever claims a higher one says nothing of order. `usual`: the
    source that most records name.
    """
    from pyspark.sql import Window as Over
    from pyspark.sql import functions as F

    # What was parked came out of turn: it does not say where the log begins.
    late = sorted(parked)
    # All of the log is sorted for the sake of order, so its rows are numbers: topic, partition and lane are one, and a
    # source is there only where it is not the usual one.
    numbered = number_of(F.col("topic"), topics)
    # A key's slot is a hash of it, and one lane has them all; a foreign record may have none, and is in nobody's order.
    lane = F.coalesce(F.pmod(F.col("slot"), F.lit(lanes)), F.lit(0)) if lanes > 1 else F.lit(0)
    narrow = records.select(
        ((numbered * _PARTITIONS + F.col("partition")) * _LANES + lane).alias("place"),
        "offset",
        "position",
        F.when(F.col("source") != usual, F.col("source")).alias("unusual"),
        *(half.alias(name) for half, name in zip(halves(F.col("digest")), ("a", "b"), strict=True)),
    )
    before = Over.partitionBy("place", "unusual").orderBy("offset").rowsBetween(Over.unboundedPreceding, -1)
    given = F.when(F.col("position") <= drawn, F.col("position"))
    placed = narrow.withColumn("highest", F.max(given).over(before)).withColumn(
        "behind", F.when(F.col("position") < F.col("highest"), F.col("highest"))
    )
    if late:
        # Beside it, not in it: an expression with a hundred thousand numbers is one that nobody compiles.
        parking = records.sparkSession.createDataFrame([(at,) for at in late], "late bigint")
        placed = placed.join(F.broadcast(parking), placed.position == parking.late, "left")
    in_turn = F.when(F.col("late").isNull(), F.col("position")) if late else F.col("position")
    sums = placed.groupBy("place", "unusual", F.expr(f"position div {rows}").alias("w")).agg(
        F.count("*").alias("n"),
        *(F.sum(each).alias(f"l{at}") for at, each in enumerate(limbs(F.col("a"), F.col("b")))),
        F.min("offset").alias("low"),
        F.max("offset").alias("high"),
        F.count("behind").alias("inversions"),
        F.max("behind").alias("behind"),
        F.coalesce(F.sum(folded(F.col("position"), F.col("a"))), F.lit(0)).alias("claims"),
        F.min(in_turn).alias("first"),
        F.max(given).alias("last"),
    )
    named = F.array(*(F.lit(topic) for topic in topics))
    return sums.withColumns(
        {
            "topic": F.element_at(named, F.expr(f"cast(place div {_PARTITIONS * _LANES} as int) + 1")),
            "partition": F.expr(f"cast(place div {_LANES} % {_PARTITIONS} as int)"),
            "lane": F.expr(f"cast(place % {_LANES} as int)"),
            "source": F.coalesce(F.col("unusual"), F.lit(usual)),
        }
    )


def add_log(cells: Cells, rows: Iterable[Any], sources: Collection[str] | None = None) -> None:
    """`sources`: whose positions count, if not all."""
    for row in rows:
        strange = row.w is not None and sources is not None and row.source not in sources
        if strange and row.source:
            cells.others += row.n
            continue
        digest = digest_of(row, "l", inversions=row.inversions)
        cell = LogCell(digest, row.low, row.high, row.behind, row.claims)
        if row.w is None or strange:
            _merge(cells.nameless, (row.topic, row.partition), cell)
            continue
        _merge(cells.log[row.w], (row.topic, row.partition), cell)
        place = (row.topic, row.partition, row.lane)
        cells.lasts[place] = max(row["last"] or 0, cells.lasts.get(place, 0))
        if row["first"] is not None:
            cells.firsts[place] = min(row["first"], cells.firsts.get(place, row["first"]))


def _merge(into: dict[Place, LogCell], key: Place, cell: LogCell) -> None:
    if (known := into.get(key)) is not None:
        both = [each for each in (known.behind, cell.behind) if each is not None]
        cell = LogCell(
            known.digest + cell.digest,
            min(known.low, cell.low),
            max(known.high, cell.high),
            max(both, default=None),
            known.claims + cell.claims,
        )
    into[key] = cell


def digest_of(row: Any, prefix: str, *, inversions: int = 0) -> Digest:
    """The sums of a row: `l` of contents, `i` of ids."""
    return Digest(
        row.n, (row[f"{prefix}0"], row[f"{prefix}1"], row[f"{prefix}2"], row[f"{prefix}3"]), inversions
    )
