"""The job: messages again into a consumer, from Kafka, or from the archive where Kafka no longer has them.

Saved ids keep each once: what the consumer kept before changes nothing. What is new to it goes through its queue, in the
order of the log, and is applied by its own handlers under their own scheme. Memory does not grow with what is replayed:
the driver holds a piece of it at a time (replaypieces).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tallymark.crashpoint import reached
from tallymark.errors import Problem
from tallymark.inbox.identity import is_named, received
from tallymark.inbox.ports import Received
from tallymark.pipeline import archivefiles, failures
from tallymark.pipeline.manifest import Move, Stored
from tallymark.pipeline.replaypieces import CELL, ROW_WEIGHT, Cell, Portion, chunks, pieces, windows
from tallymark.pipeline.replayplan import Source
from tallymark.store.postgres.replay import Redriven

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_SKEW = timedelta(days=1)
# What a message weighs in the driver, by estimate.
_WEIGHT = (
    f"{ROW_WEIGHT}L + coalesce(octet_length(key), 0) + coalesce(octet_length(value), 0) "
    "+ coalesce(aggregate(headers, 0L, "
    "(sum, h) -> sum + 100 + octet_length(h.key) + coalesce(octet_length(h.value), 0)), 0)"
)
# As identity.received: the last ce_id counts; a message without one is named by its place.
_ID = (
    "coalesce(nullif(cast(try_element_at(filter(headers, h -> h.key = 'ce_id'), -1).value as string), ''), "
    "concat(topic, '/', partition, '/', offset, '@', unix_millis(timestamp)))"
)


def since_of(ids: Sequence[str]) -> int:
    """The earliest time, in milliseconds, at which any of these can have been logged; 0 where an id says nothing."""
    import uuid

    earliest = None
    for each in ids:
        try:
            found = uuid.UUID(each)
        except ValueError:
            return 0
        if found.version != 7 or is_named(found):
            return 0
        moment = found.int >> 80
        earliest = moment if earliest is None else min(moment, earliest)
    return max(0, (earliest or 0) - int(_SKEW.total_seconds() * 1000))


class Replay:
    """One replay, read by Spark and written by the driver."""

    def __init__(
        self,
        spark: SparkSession,
        client: Mapping[str, str],
        archive: Path | None,
        redrive: Callable[[Sequence[Received]], Redriven],
        *,
        since_ms: int | None = None,
        ids: Sequence[str] | None = None,
        note: Callable[[Redriven], None] = lambda _total: None,
        portion: Portion = Portion(),  # noqa: B008 - frozen
    ) -> None:
        self._spark = spark
        self._client = client
        self._archive = archive
        self._redrive = redrive
        self._since_ms = since_ms
        self._ids = ids
        self._note = note
        self._portion = portion
        self.found: set[str] = set()
        self.total = Redriven()
        self.from_archive = 0

    def run(self, source: Source) -> Redriven:
        """The archive's part first: it is older."""
        try:
            self._drive(source.archived, lambda moves: self._old(source.files, moves))
            self.from_archive = self.total.read
            self._drive(source.kafka, self._new)
        except Exception as error:
            raise failures.explain(error) from error
        return self.total

    def _old(self, files: Sequence[Stored], moves: Sequence[Move]) -> DataFrame | None:
        if self._archive is None:
            raise Problem("no archive was named")
        lying = [each for each in files if any(_may_hold(each, move) for move in moves)]
        if not lying:
            return None
        rows = archivefiles.read(self._spark, self._archive, lying)
        return rows.where(" or ".join(_condition(move) for move in moves))

    def _new(self, moves: Sequence[Move]) -> DataFrame:
        return archivefiles.records(archivefiles.between(self._spark, self._client, moves))

    def _drive(self, moves: Sequence[Move], read: Callable[[Sequence[Move]], DataFrame | None]) -> None:
        """Window by window, piece by piece, chunk by chunk; each chunk is a transaction."""
        for window in windows(moves, self._portion.window):
            if (all_ := read(window)) is None:
                continue
            cells = weighed(chosen(all_, self._since_ms, self._ids))
            for piece in pieces(window, cells, self._portion.piece):
                if (rows := read(piece)) is not None:
                    self._fetch(chosen(rows, self._since_ms, self._ids))

    def _fetch(self, rows: DataFrame) -> None:
        # Files hold several partitions, in no order: put in the log's.
        piece = sorted(rows.collect(), key=itemgetter("topic", "partition", "offset"))
        for chunk in chunks(_messages(piece, self.found if self._ids else None), self._portion):
            self.total += self._redrive(chunk)
            reached("replay.chunk")
            self._note(self.total)


def weighed(rows: DataFrame) -> list[Cell]:
    """What these weigh, by the cells that they lie in."""
    from pyspark.sql.functions import expr

    cells = rows.groupBy("topic", "partition", expr(f"offset div {CELL}")).agg(expr(f"sum({_WEIGHT})"))
    return [Cell(*row) for row in cells.collect()]


def chosen(rows: DataFrame, since_ms: int | None, ids: Sequence[str] | None) -> DataFrame:
    """Those asked for, with the columns that a message is made of."""
    named = rows.selectExpr(
        *("topic", "partition", "offset", "key", "value", "headers"),
        "unix_millis(timestamp) as logged_ms",
        f"{_ID} as name",
    )
    if since_ms is not None:
        named = named.where(f"logged_ms >= {since_ms}")
    if ids is not None:
        wanted = rows.sparkSession.createDataFrame([(each,) for each in sorted(set(ids))], "name string")
        named = named.join(wanted.hint("broadcast"), "name", "left_semi")
    return named


def _messages(rows: Iterable[Any], found: set[str] | None) -> Iterator[Received]:
    for row in rows:
        if found is not None:
            found.add(row["name"])
        yield received(
            row["topic"],
            row["partition"],
            row["offset"],
            _bytes(row["key"]),
            _bytes(row["value"]),
            [(each["key"], _bytes(each["value"])) for each in row["headers"] or ()],
            row["logged_ms"],
        )


def _bytes(value: bytearray | None) -> bytes | None:
    return None if value is None else bytes(value)


def _may_hold(file: Stored, move: Move) -> bool:
    return (
        file.topic == move.topic
        and file.partitions[0] <= move.partition <= file.partitions[1]
        and file.offsets[0] < move.end
        and file.offsets[1] >= move.start
    )


def _condition(move: Move) -> str:
    topic = move.topic.replace("\\", "\\\\").replace("'", "\\'")
    return (
        f"(topic = '{topic}' and partition = {move.partition} "
        f"and offset >= {move.start} and offset < {move.end})"
    )


def moment_ms(moment: datetime) -> int:
    return int(moment.astimezone(UTC).timestamp() * 1000)
