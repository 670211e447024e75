"""Where the tally looks: stations that are live, or snapshots and an archive of them. What both can be asked.

The comparison knows nothing else of its sources: live databases over JDBC and Kafka (reconcilesources.py), or Parquet
(reconcilesnapshot.py).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

from tallymark.store.postgres.tally import ConsumerView, ProducerView
from tallymark.store.postgres.tallycells import CellQueries, Dialect
from tallymark.tally.records import ParkedRow, Place

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tallymark.store.postgres.findings import Findings

Offsets = Mapping[Place, int]


class OutboxSide(Protocol):
    """An outbox and its relay."""

    def view(self) -> ProducerView: ...
    def parked(self, first: int, last: int) -> list[ParkedRow]: ...
    def position_since(self, moment: datetime) -> int | None: ...
    def added_at(self, position: int) -> datetime | None: ...
    def positions_of(self, ids: Sequence[str]) -> list[int]: ...
    def known(self, ids: Sequence[str]) -> set[str]: ...
    def usual_source(self) -> str:
        """What most of its messages name as their source, as far as that is easy to say; else ""."""
        ...

    def sources(self, among: Sequence[str]) -> frozenset[str]:
        """Which of these its messages name as their source."""
        ...


class InboxSide(Protocol):
    """The consumers of one database."""

    def views(self, *, unfinished: bool = True) -> list[ConsumerView]:
        """Every consumer; without what is `unfinished` where nobody wants to know."""
        ...

    def retired(self) -> set[str]:
        """Consumers that were stopped for good: nothing is owed to them."""
        ...

    def kept(self, consumer: str, ids: Sequence[str]) -> set[str]: ...
    def id_bounds(self) -> tuple[uuid.UUID, uuid.UUID] | None: ...
    def beginnings(self) -> dict[tuple[str, str, int], int]: ...


@dataclass(frozen=True, slots=True)
class LogFacts:
    """A topic. `expires_after_s`: None where retention drops nothing, 0 where it goes by size too.

    `compacted`: it keeps the last message of each key only.
    """

    topic_id: str
    expires_after_s: float | None = None
    compacted: bool = False


class LogSide(Protocol):
    """The log between its ends."""

    @property
    def name(self) -> str:
        """What it is called in messages: "Kafka", or the archive's folder."""
        ...

    @property
    def is_copy(self) -> bool:
        """Whether it may end before what was sent: a copy of the log that is made while the log grows."""
        ...

    @property
    def copied_at(self) -> datetime | None:
        """Where it is a copy: a moment up to which it holds all that was logged, by the clock of whoever copied it."""
        ...

    def facts(self, topics: Sequence[str]) -> Mapping[str, LogFacts]: ...
    def bounds(self, topics: Sequence[str]) -> dict[Place, tuple[int, int]]: ...
    def written_ends(self, topics: Sequence[str]) -> Offsets:
        """How far it is written, also where that cannot be read yet."""
        ...

    def at_time(self, places: Sequence[Place], moment_ms: int) -> Offsets: ...
    def claims(self, offsets: Offsets) -> Mapping[Place, int | None]:
        """Which position the record at each offset claims; None where none stands there. Never asked of a copy."""
        ...

    def raw(self, spark: SparkSession, starts: Offsets, ends: Offsets) -> DataFrame:
        """Committed records with topic, partition, offset, key, value, headers and timestamp."""
        ...


@dataclass(frozen=True, slots=True)
class Tables:
    """One database's tables, as Spark reads them: some queries of the same columns, side by side."""

    read: Callable[[SparkSession, Sequence[str]], DataFrame]
    schema: str
    dialect: Dialect

    def queries(self, *, rows: int, bucket: int) -> CellQueries:
        return CellQueries(self.schema, rows=rows, bucket=bucket, dialect=self.dialect)


class Stations(Protocol):
    """Everything that one run looks at, by the names of its databases."""

    @property
    def copied_at(self) -> datetime | None:
        """Where databases are copies: when the oldest of them was made, by its own clock."""
        ...

    @property
    def outboxes(self) -> Collection[str]: ...
    @property
    def log(self) -> LogSide: ...
    def producer(self, name: str) -> OutboxSide: ...
    def inboxes(self) -> Mapping[str, InboxSide]: ...
    def tables(self, database: str) -> Tables: ...
    def findings(self, name: str) -> Findings | None:
        """Where an outbox's findings and certificates are kept; None where nothing is kept."""
        ...
