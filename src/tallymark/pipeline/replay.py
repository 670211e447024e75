"""The job: messages again into a consumer, from Kafka, or from the archive where Kafka no longer has them.

Saved ids keep each once: what the consumer kept before changes nothing. What is new to it goes through its queue, in the
order of the log, and is applied by its own handlers under their own scheme. Memory does not grow with what is replayed:
the driver holds a piece of it at a time (replaypieces).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tallymark.crashpoint import reached
from tallymark.errors import Problem
from tallymark.inbox.identity import received
from tallymark.inbox.ports import Received
from tallymark.pipeline import archivefiles, failures
from tallymark.pipeline.manifest import Move, Stored
from tallymark.pipeline.replayids import NAME, Sought
from tallymark.pipeline.replaypieces import CELL, ROW_WEIGHT, Cell, Portion, chunks, pieces, windows
from tallymark.pipeline.replayplan import Source
from tallymark.store.postgres.replay import Redriven

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# What a message weighs in the driver, by estimate.
_WEIGHT = (
    f"{ROW_WEIGHT}L + coalesce(octet_length(key), 0) + coalesce(octet_length(value), 0) "
    "+ coalesce(aggregate(headers, 0L, "
    "(sum, h) -> sum + 100 + octet_length(h.key) + coalesce(octet_length(h.value), 0)), 0)"
)


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
        self._sought = None if ids is None else Sought(ids)
        self._note = note
        self._portion = portion
        self._names = None if self._sought is None else named(spark, self._sought)
        self.total = Redriven()
        self.from_archive = 0

    @property
    def found(self) -> set[str]:
        """Of the ids that were asked for, those that are in the log or in the archive."""
        return self._sought.found if self._sought else set()

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
            cells = weighed(chosen(all_, self._since_ms, self._names))
            for piece in pieces(window, cells, self._portion.piece):
                if (rows := read(piece)) is not None:
                    self._fetch(chosen(rows, self._since_ms, self._names))

    def _fetch(self, rows: DataFrame) -> None:
        # Files hold several partitions, in no order: put in the log's.
        piece = sorted(rows.collect(), key=itemgetter("topic", "partition", "offset"))
        messages = filter(self._sought.takes, messages_of(piece)) if self._sought else messages_of(piece)
        for chunk in chunks(messages, self._portion):
            self.total += self._redrive(chunk)
            reached("replay.chunk")
            self._note(self.total)


def weighed(rows: DataFrame) -> list[Cell]:
    """What these weigh, by the cells that they lie in."""
    from pyspark.sql.functions import expr

    cells = rows.groupBy("topic", "partition", expr(f"offset div {CELL}")).agg(expr(f"sum({_WEIGHT})"))
    return [Cell(*row) for row in cells.collect()]


def named(spark: SparkSession, sought: Sought) -> DataFrame:
    """What the log is searched for, as a frame. By way of Arrow: of a list, Python in the executors would make rows."""
    import pyarrow as pa

    return spark.createDataFrame(pa.table({"name": pa.array(sought.names(), pa.binary())}))


def chosen(rows: DataFrame, since_ms: int | None, names: DataFrame | None) -> DataFrame:
    """Those that may be asked for, with the columns that a message is made of."""
    from pyspark.sql.functions import expr

    if names is not None:
        rows = rows.withColumn("name", expr(NAME)).join(names.hint("broadcast"), "name", "left_semi")
    found = rows.selectExpr(
        *("topic", "partition", "offset", "key", "value", "headers"), "unix_millis(timestamp) as logged_ms"
    )
    return found if since_ms is None else found.where(f"logged_ms >= {since_ms}")


def messages_of(rows: Iterable[Any]) -> Iterator[Received]:
    """Rows as the messages that will be kept."""
    for row in rows:
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
