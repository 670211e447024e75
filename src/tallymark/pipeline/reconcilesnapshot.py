"""Stations of yesterday: snapshots of the databases, and the archive of the log. Nothing live is asked.

The same queries as of live databases (store/postgres/tallycells.sql), in Spark's words over Parquet. A snapshot is known
by its database's name; of which log it speaks is told by the topics' ids.
"""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from functools import cached_property, reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tallymark.errors import Problem, UsageError
from tallymark.inbox.identity import saved_id
from tallymark.pipeline import archivefiles
from tallymark.pipeline.manifestlog import ManifestLog
from tallymark.pipeline.reconcileports import LogFacts, Offsets, Tables
from tallymark.pipeline.snapshot import Snapshot, read, stations
from tallymark.store.postgres.tally import ConsumerView, ProducerView
from tallymark.store.postgres.tallycells import Dialect
from tallymark.store.postgres.tallyrecord import consumers_of, parked_of, producer_of, retired_of
from tallymark.tally.records import ParkedRow, Place

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tallymark.store.postgres.findings import Findings


def _part(value: str) -> str:
    length = f"cast(concat(cast(octet_length({value}) as string), ':') as binary)"
    return f"case when {value} is null then cast('-' as binary) else concat({length}, {value}) end"


SPARK = Dialect(
    digest=f"md5(concat({{netstring}}, {_part('o.key')}, {_part('o.value')}))",
    first_half="cast(conv(left(h, 16), 16, -10) as bigint)",
    second_half="cast(conv(right(h, 16), 16, -10) as bigint)",
    hash0="xxhash64(o.id)",
    hash1="xxhash64(o.id, 1)",
    hashed="xxhash64",
    bytewise="o.id",
    id="o.id",
    named="coalesce(o.named, o.id)",
    id_netstring=_part("cast(o.id as binary)"),
    named_netstring=_part("cast(coalesce(o.named, o.id) as binary)"),
    div="div",
    moment="timestamp",
    quote="`",
)


class ArchivedLog:
    """What the archive holds of a log."""

    is_copy = True

    def __init__(self, folder: Path) -> None:
        self.name = f"the archive {folder}"
        self._folder = folder
        self._state = ManifestLog(folder).load()
        if not self._state.topics:
            raise UsageError(
                f"there is no archive in {folder}", remedy="`tallymark pipeline archive` makes one"
            )

    @property
    def copied_at(self) -> datetime:
        return datetime.fromtimestamp(self._state.copied_ms / 1000, UTC)

    def facts(self, topics: Sequence[str]) -> dict[str, LogFacts]:
        return {topic: LogFacts(self._state.topics[topic]) for topic in topics if topic in self._state.topics}

    def bounds(self, topics: Collection[str]) -> dict[Place, tuple[int, int]]:
        """Of each partition what was archived without a gap: behind the last one."""
        found = {
            place: (extent.first, extent.next)
            for place, extent in self._state.extents.items()
            if place[0] in topics
        }
        for gap in self._state.gaps:
            if gap.place in found:
                start, end = found[gap.place]
                found[gap.place] = max(start, gap.end), end
        return found

    def written_ends(self, topics: Collection[str]) -> Offsets:
        # What it holds was committed: nothing is open in it.
        return {place: end for place, (_, end) in self.bounds(topics).items()}

    def at_time(self, places: Sequence[Place], moment_ms: int) -> Offsets:
        # The files' days would say; reading from the beginning says the same, and misses nothing.
        del moment_ms
        bounds = self.bounds({topic for topic, _ in places})
        return {place: bounds[place][0] for place in places}

    def claims(self, offsets: Offsets) -> dict[Place, int | None]:
        raise AssertionError(f"a copy is of the log that it was made of: {offsets}")

    def raw(self, spark: SparkSession, starts: Offsets, ends: Offsets) -> DataFrame:
        from pyspark.sql import functions as F

        topics = {topic for topic, _ in starts}
        files = [each for each in self._state.files.values() if each.topic in topics]
        wanted = F.lit(False)
        for (topic, partition), start in starts.items():
            place = (F.col("topic") == topic) & (F.col("partition") == partition)
            inside = (F.col("offset") >= start) & (F.col("offset") < ends[topic, partition])
            wanted = wanted | (place & inside)
        return archivefiles.read(spark, self._folder, files).where(wanted)


class SnapshotSide:
    """One snapshot: an outbox, consumers, or both."""

    def __init__(self, folder: Path, log: ArchivedLog, name: str | None = None) -> None:
        """`name`: what its database is called where it is live; by default, what it calls itself."""
        self.made: Snapshot = read(folder)
        self.name = name or self.made.database
        self._folder = folder
        self._said = stations(folder)
        self._log = log
        # What its tables are called in queries: no other snapshot's.
        self.schema = f"s{secrets.token_hex(6)}"

    @cached_property
    def producer(self) -> ProducerView | None:
        return producer_of(self._said)

    @property
    def tables(self) -> Tables:
        return Tables(self._read, self.schema, SPARK)

    def view(self) -> ProducerView:
        if self.producer is None:
            raise AssertionError(f"{self._folder} has no outbox")
        return self.producer

    def views(self, *, unfinished: bool = True) -> list[ConsumerView]:
        """As if they had read the archive: what lies behind its end is not looked at."""
        del unfinished  # it is in the same file
        views = consumers_of(self._said, self.name)
        ends = self._log.bounds({topic for view in views for topic in view.topics})
        for view in views:
            for place, offset in view.next_offsets.items():
                view.next_offsets[place] = min(offset, ends[place][1]) if place in ends else offset
        return views

    def retired(self) -> set[str]:
        return retired_of(self._said)

    def parked(self, first: int, last: int) -> list[ParkedRow]:
        return [row for row in parked_of(self._said) if first <= row.position <= last]

    def position_since(self, moment: datetime) -> int | None:
        at = moment.astimezone(UTC).isoformat()
        found = self._one(
            f"select min(position) as found from {self.schema}.outbox where created_at >= timestamp'{at}'"
        )
        return None if found is None else int(found)

    def added_at(self, position: int) -> datetime | None:
        first = f"from {self.schema}.outbox where position >= {int(position)}"
        found = self._one(f"select min_by(created_at, position) as found {first}")
        return None if found is None else found.replace(tzinfo=UTC)

    def positions_of(self, ids: Sequence[str]) -> list[int]:
        return [row.position for row in self._among("outbox", ids).select("position").collect()]

    def known(self, ids: Sequence[str]) -> set[str]:
        return {row.id for row in self._among("outbox", ids).select("id").distinct().collect()}

    def usual_source(self) -> str:
        # To ask would be to read it.
        return ""

    def sources(self, among: Sequence[str]) -> frozenset[str]:
        named = "coalesce(get_json_object(headers, '$.ce_source'), '')"
        query = f"select distinct {named} as source from {self.schema}.outbox"
        found = {row.source for row in self._read(_session(), [query]).collect()}
        return frozenset(found & set(among) if found else among)

    def kept(self, consumer: str, ids: Sequence[str]) -> set[str]:
        saved = {str(saved_id(each)): each for each in ids}
        found = self._among("inbox", list(saved)).where(f"consumer = '{_escaped(consumer)}'")
        return {saved[row.id] for row in found.select("id").distinct().collect()}

    def id_bounds(self) -> tuple[uuid.UUID, uuid.UUID] | None:
        # Files are cut already: there is nothing to gain from asking in several ranges.
        return None

    def beginnings(self) -> dict[tuple[str, str, int], int]:
        rows = self._read(
            _session(),
            [
                f"select consumer, topic, partition, min(`offset`) as low from {self.schema}.inbox"
                " where `offset` is not null group by consumer, topic, partition"
            ],
        ).collect()
        return {(row.consumer, row.topic, row.partition): row.low for row in rows}

    def _one(self, query: str) -> Any:
        return self._read(_session(), [query]).collect()[0].found

    def _among(self, table: str, ids: Sequence[str]) -> DataFrame:
        frame = self._read(_session(), [f"select * from {self.schema}.{table}"])
        return frame.where(frame.id.isin(list(ids)))

    def _read(self, spark: SparkSession, queries: Sequence[str]) -> DataFrame:
        for table in self.made.tables:
            view = f"{self.schema}_{table.name}"
            if not spark.catalog.tableExists(view):
                spark.read.parquet(archivefiles.local(self._folder / table.name)).createOrReplaceTempView(
                    view
                )
        # A session's views have no schema of their own: it is the beginning of their names.
        frames = [spark.sql(query.replace(f"{self.schema}.", f"{self.schema}_")) for query in queries]
        return reduce(lambda one, other: one.union(other), frames)


class SnapshotSources:
    """All snapshots of one run, and the archive that they speak of."""

    def __init__(
        self,
        folders: Sequence[Path],
        archive: Path,
        *,
        findings: Mapping[str, Findings] | None = None,
        names: Mapping[Path, str] | None = None,
    ) -> None:
        """`findings`: where to keep what is found, by the id of the outbox; `names`: what databases are called."""
        self.log = ArchivedLog(archive)
        self._findings = findings or {}
        self._sides: dict[str, SnapshotSide] = {}
        for folder in folders:
            side = SnapshotSide(folder, self.log, (names or {}).get(folder))
            if (other := self._sides.get(side.name)) is not None:
                raise UsageError(
                    f"{folder} and {other.made.folder} are both of database {side.name}",
                    remedy="give one snapshot of each; two databases of one name are told apart by --snapshot NAME=DIR",
                )
            self._sides[side.name] = side
        if not self.outboxes:
            raise UsageError(
                "none of the snapshots has an outbox", remedy="give the producer's too: --snapshot DIR"
            )
        for side in self._sides.values():
            self._refuse_other_log(side)
        ours = {self._sides[name].view().outbox_id for name in self.outboxes}
        if stranger := sorted(self._findings.keys() - ours):
            raise UsageError(
                f"none of the snapshots is of outbox {stranger[0]}, beside which findings and certificates are kept",
                remedy="name the database that the producer's snapshot was taken of: --database NAME",
            )

    @property
    def copied_at(self) -> datetime:
        return min(datetime.fromisoformat(side.made.taken_at) for side in self._sides.values())

    @property
    def outboxes(self) -> Collection[str]:
        return [name for name, side in self._sides.items() if side.producer is not None]

    def producer(self, name: str) -> SnapshotSide:
        return self._sides[name]

    def inboxes(self) -> dict[str, SnapshotSide]:
        return {
            name: side
            for name, side in self._sides.items()
            if side.made.positions or side.views() or side.retired()
        }

    def tables(self, database: str) -> Tables:
        return self._sides[database].tables

    def findings(self, name: str) -> Findings | None:
        return self._findings.get(self._sides[name].view().outbox_id)

    def _refuse_other_log(self, side: SnapshotSide) -> None:
        """A snapshot of a database that has nothing to do with this archive, or with what its topics were then."""
        said = {
            topic: topic_id
            for topic, (topic_id, _) in (side.producer.topics if side.producer else {}).items()
        }
        said |= {topic: topic_id for _, topic, _, _, topic_id in side.made.positions if topic_id}
        archived = self.log.facts(list(said))
        for topic, topic_id in sorted(said.items()):
            if topic in archived and archived[topic].topic_id != topic_id:
                raise Problem(
                    f"the snapshot {side.made.folder} is of another database: {side.name} speaks of topic {topic} "
                    f"with id {topic_id}, and {self.log.name} holds {archived[topic].topic_id}",
                    remedy="give a snapshot of a database that wrote or read what is archived there",
                )
        if said and not archived:
            raise Problem(
                f"the snapshot {side.made.folder} is of another database: {side.name} knows none of the topics that "
                f"{self.log.name} holds",
                remedy="give a snapshot of a database that wrote or read what is archived there",
            )


def _session() -> SparkSession:
    from pyspark.sql import SparkSession

    return SparkSession.active()


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("'", "\\'")
