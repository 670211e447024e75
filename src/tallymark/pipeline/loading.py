"""What an executor does: its part of a micro-batch into the staging table, by COPY, under a token of its own.

The token is drawn anew by each attempt of a task (pitfall 19), so that the rows of an attempt that was lost, or goes
on as a zombie, have a token that nobody counts. Messages get their ids and sources by the same code as in the service.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from tallymark.crashpoint import reached
from tallymark.inbox.identity import is_named, received
from tallymark.inbox.ports import Place, Received

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

# A message's topic and partition.
_place = itemgetter(3, 4)
# What a task tells the driver, per place.
REPORT = "token string, topic string, partition int, rows long, low string, high string, logged_ms long"


@dataclass(frozen=True, slots=True)
class Loaded:
    """What the winning attempts have loaded."""

    # The staging table that it lies in.
    table: str
    tokens: dict[str, int]
    places: dict[Place, int]
    # The lowest and the highest id among those that carry a time; None where there are none.
    low: int | None
    high: int | None
    # Kafka's time of the last message, by place, in milliseconds.
    logged_ms: dict[Place, int]

    @property
    def rows(self) -> int:
        return sum(self.tokens.values())


def records(source: DataFrame) -> DataFrame:
    """The columns of Kafka's source that are kept."""
    return source.selectExpr(
        "topic", "partition", "offset", "key", "value", "headers", "unix_millis(timestamp) as logged_ms"
    )


def load(source: DataFrame, url: str, table: str) -> Loaded:
    """Run the tasks. Gives back what the attempts that won have said, each once."""
    return combined(table, records(source).mapInArrow(partial(load_part, url, table), REPORT).collect())


def combined(table: str, reports: Sequence[Any]) -> Loaded:
    """The tasks' reports as one. Pure."""
    tokens: dict[str, int] = {}
    places: dict[Place, int] = {}
    logged: dict[Place, int] = {}
    for token, topic, partition, rows, _low, _high, logged_ms in reports:
        place = topic, partition
        tokens[token] = tokens.get(token, 0) + rows
        places[place] = places.get(place, 0) + rows
        logged[place] = max(logged.get(place, logged_ms), logged_ms)
    return Loaded(
        table,
        tokens,
        places,
        min((int(each[4], 16) for each in reports if each[4]), default=None),
        max((int(each[5], 16) for each in reports if each[5]), default=None),
        logged,
    )


def load_part(url: str, table: str, batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
    """What runs in each task. A function of the module: it travels by its name, and takes nothing along."""
    import psycopg
    import pyarrow as pa

    from tallymark.store.postgres.connection import connect, explain
    from tallymark.store.postgres.staged import StagingLost, stage

    token = secrets.token_hex(16)
    tally = _Tally()
    messages = tally.counted(batches)
    # One COPY for the whole task: the server writes while the next rows are made. None where there is nothing to load.
    if (first := next(messages, None)) is not None:
        connection = connect(url, application="tallymark pipeline task", autocommit=False)
        try:
            stage(connection, table, chain((first,), messages), token)
            connection.commit()
            reached("pipeline.part_loaded")
        except psycopg.errors.UndefinedTable as error:
            raise StagingLost("the table that a task loads into was dropped") from error
        except psycopg.Error as error:
            # The driver sees the task's last words only: in ours it knows a server that was away from a fault.
            raise explain(error, url) from error
        finally:
            connection.close()
    if rows := tally.rows(token):
        names = [each.split()[0] for each in REPORT.split(", ")]
        kinds = [pa.string(), pa.string(), pa.int32(), pa.int64(), pa.string(), pa.string(), pa.int64()]
        columns = zip(zip(*rows, strict=True), kinds, strict=True)
        yield pa.RecordBatch.from_arrays([pa.array(column, kind) for column, kind in columns], names=names)


def messages_of(batch: pa.RecordBatch) -> list[Received]:
    """Arrow's columns as the rows that will be kept."""
    headers = batch.column("headers")
    # All headers of all rows as two flat lists: much quicker than one dictionary each.
    offsets = headers.offsets.to_pylist()
    flat = headers.values
    pairs = list(zip(flat.field("key").to_pylist(), flat.field("value").to_pylist(), strict=True))
    columns = (
        batch.column(name).to_pylist()
        for name in ("topic", "partition", "offset", "key", "value", "logged_ms")
    )
    return [
        received(topic, partition, offset, key, value, pairs[first:last], logged_ms)
        for topic, partition, offset, key, value, logged_ms, first, last in zip(
            *columns, offsets, offsets[1:], strict=False
        )
    ]


class _Tally:
    """What one attempt has loaded, by place."""

    def __init__(self) -> None:
        self._rows: Counter[Place] = Counter()
        self._logged: dict[Place, int] = {}
        self._low: int | None = None
        self._high: int | None = None

    def counted(self, batches: Iterable[pa.RecordBatch]) -> Iterator[Received]:
        """Each message once, counted by the time it is handed on."""
        for batch in batches:
            messages = messages_of(batch)
            self._count(messages)
            yield from messages
            reached("pipeline.mid_load")

    def _count(self, messages: Sequence[Received]) -> None:
        self._rows.update(map(_place, messages))
        if timed := [each.id.int for each in messages if not is_named(each.id)]:
            low, high = min(timed), max(timed)
            self._low = low if self._low is None else min(low, self._low)
            self._high = high if self._high is None else max(high, self._high)
        # The last one of each place stays.
        logged = {_place(each): each.logged_at for each in messages if each.logged_at is not None}
        self._logged |= {place: int(at.timestamp() * 1000) for place, at in logged.items()}

    def rows(self, token: str) -> list[tuple[Any, ...]]:
        low, high = (None if each is None else f"{each:032x}" for each in (self._low, self._high))
        return [
            (token, *place, rows, low, high, self._logged.get(place, -1))
            for place, rows in self._rows.items()
        ]
