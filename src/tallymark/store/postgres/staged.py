"""A micro-batch that executors have loaded, as the one transaction that commits it sees it.

Only rows under the tokens of winning attempts count, and only after each token's count was compared with what its task
said (pitfall 19): a lost or a zombie attempt's rows are never looked at. What the inbox had already is taken out, so
that what remains is what handlers may see (pitfall 22).

What comes back to the driver is counted or queued more often than it is read: then it comes without values and headers,
so that the driver's memory does not follow a batch's bytes (P7).
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import psycopg
from psycopg import sql
from psycopg.rows import tuple_row

from tallymark.errors import Problem, Stale
from tallymark.inbox.identity import key_hash
from tallymark.inbox.ports import Place, Received
from tallymark.store.postgres.connection import Connection
from tallymark.store.postgres.handed import ours
from tallymark.store.postgres.inboxcopy import inbox_pieces
from tallymark.store.queries import load

STAGE = (
    'copy {} (id, source, named, topic, partition, "offset", position, key, value, headers, logged_at, token)'
    " from stdin (format binary)"
)
_COLUMNS = 'id, source, named, topic, partition, "offset", position, key, value, headers, logged_at'
_KINDS = (
    "uuid",
    "text",
    "text",
    "text",
    "integer",
    "bigint",
    "bigint",
    "bytea",
    "bytea",
    "json",
    "timestamptz",
)
# So many rows of the queue are read whole; and so many keys of a batch are looked up at a time.
_FEW_WAIT = 2_000
_KEYS = 2_000
# Whole rows, values and all, that are held in memory at a time.
PIECE = 500
_NO_ID = uuid.UUID(int=0)
# How often somebody else's commit (a replay's) may come between our look and our insert.
_TRIES = 5


class StagingLost(Stale):
    """Rows that a task had loaded are not there any more: the server crashed, or another run has dropped the table. The
    batch is loaded again."""


def staging_table(schema: str, run: str, suffix: str) -> str:
    """One of a run's."""
    return f"{schema}.staging_{run}{suffix}"


def stage(connection: Connection, table: str, messages: Iterable[Received], token: str) -> None:
    """What a task does: rows by COPY, under its token."""
    with connection.cursor() as cursor, cursor.copy(STAGE.format(table)) as copy:
        # The last column of the inbox's rows is the consumer's; here it is the token's.
        for piece in inbox_pieces(messages, token):
            copy.write(piece)


class Staged:
    """The rows of one micro-batch."""

    def __init__(
        self,
        connection: Connection,
        *,
        schema: str,
        run: str,
        table: str,
        consumer: str,
        tokens: Mapping[str, int],
        places: Mapping[Place, int],
    ) -> None:
        self._connection = connection
        self._consumer = consumer
        self._expected = dict(tokens)
        self._tokens = list(tokens)
        self._table = table
        self._run = run
        queries = load("tallymark.store.postgres", "pipeline.sql", schema)
        self._sql = {name: text.replace("{table}", self._table) for name, text in queries.items()}
        # Kept for the first time, by place.
        self.kept: Counter[Place] = Counter(places)
        self._numbered = False

    @property
    def count(self) -> int:
        """Rows that are left to apply."""
        return self._left

    def check(self) -> None:
        """Refuse to go on unless each winning attempt's rows are all there."""
        self._run_query("room")
        try:
            found: dict[str, int] = dict(self._rows("staged"))
        except psycopg.errors.UndefinedTable as error:
            raise StagingLost("the table that tasks have loaded into was dropped") from error
        for token, rows in self._expected.items():
            if found.get(token, 0) != rows:
                raise StagingLost(f"{found.get(token, 0)} of {rows} rows that a task loaded are there")
        self._left = sum(self._expected.values())

    def keep(self, reused: Callable[[list[Received]], object]) -> int:
        """Put the rows into the inbox; gives back how many were kept before. Those that reuse an id go to `reused`."""
        repeated = 0
        for _ in range(_TRIES):
            if not self._left:
                return repeated
            try:
                with self._connection.transaction():
                    self._run_query("keep_staged")
                return repeated
            except psycopg.errors.UniqueViolation:  # known before, or kept by a replay since we looked
                for name in ("drop_known", "drop_twice"):
                    repeated += self._drop_counted(name)
                    for piece in self._marked():
                        reused(piece)
        raise Problem(
            f"others kept the same messages of {self._consumer} {_TRIES} times in a row while we did",
            remedy="look for a replay into the same consumer that does not end",
        )

    def _drop_counted(self, name: str) -> int:
        dropped = 0
        for topic, partition, count in self._rows(name):
            dropped += count
            self.kept[topic, partition] -= count
        self._left -= dropped
        return dropped

    def drop_odd(self, low: int, high: int) -> Iterator[list[Received]]:
        """Take out, a piece at a time, what claims to be from before `low` or from after `high` (as ids)."""
        self._run_query("mark_odd", low=uuid.UUID(int=low), high=uuid.UUID(int=high))
        yield from self._marked()

    def _marked(self) -> Iterator[list[Received]]:
        """What was marked, some at a time, and then it is gone."""
        with psycopg.ServerCursor(self._connection, "tallymark_marked", row_factory=tuple_row) as cursor:
            cursor.execute(self._sql["marked"], {"tokens": self._tokens})
            while rows := cursor.fetchmany(PIECE):
                yield self._without([Received(*row) for row in rows])
        self._run_query("drop_marked")

    def put_back(self, messages: Sequence[Received]) -> None:
        for each in messages:
            ours(self._connection).execute(self._sql["put_back_odd"], [*each, self._tokens[0]])
            self.kept[each.topic, each.partition] += 1
        self._left += len(messages)

    def drop_held(
        self, ordered: Collection[str], held: Callable[[Collection[int]], frozenset[int]]
    ) -> list[Received]:
        """Take out, in order, what waits behind the unfinished of its key. Without values: it is for the queue.

        Found from the shorter side. Few wait: by their keys. Many: by the keys that came, and `held` tells which of them
        have to wait; a batch must not cost as much as the queue is long.
        """
        if self._rows("how_many_wait", at_most=_FEW_WAIT + 1)[0][0] <= _FEW_WAIT:
            return self._in_order(self._rows("drop_held", ordered=list(ordered)))
        waiting: list[tuple[str, bytes]] = []
        for keys in self._keys(ordered):
            hashes = [key_hash(topic, key, _NO_ID) for topic, key in keys]
            found = held(set(hashes))
            waiting += [each for each, hashed in zip(keys, hashes, strict=True) if hashed in found]
        return self.drop_behind(waiting) if waiting else []

    def drop_behind(self, keys: Collection[tuple[str, bytes]], from_n: int | None = None) -> list[Received]:
        """The same for these keys: for all of it, or from the n-th row on."""
        waiting = {"topics": [topic for topic, _ in keys], "keys": [key for _, key in keys]}
        if from_n is None:
            return self._in_order(self._rows("drop_behind", **waiting))
        return self._in_order(self._rows("drop_behind_from", **waiting, from_n=from_n))

    def _in_order(self, rows: Sequence[Any]) -> list[Received]:
        found = [Received(*row) for row in rows]
        self._left -= len(found)
        return sorted(found, key=lambda each: (each.topic, each.partition, each.offset))

    def _keys(self, ordered: Collection[str]) -> Iterator[list[tuple[str, bytes]]]:
        """All keys of these rows, some at a time: together they may be as large as the batch."""
        named = {"consumer": self._consumer, "tokens": self._tokens, "ordered": list(ordered)}
        with psycopg.ServerCursor(self._connection, "tallymark_keys", row_factory=tuple_row) as cursor:
            cursor.execute(self._sql["keys"], named)
            while keys := cursor.fetchmany(_KEYS):
                yield keys

    def drop_all(self) -> list[Received]:
        """Everything, in order: it is applied by others, later."""
        self._left = 0
        return self.outlines()

    def outlines(self, from_n: int | None = None) -> list[Received]:
        """Everything, or what comes from the n-th row on, in order and without values."""
        return [Received(*row) for row in self._rows("outlines", from_n=from_n)]

    def number(self) -> int:
        """Give each row its place in the order; gives back how many there are."""
        if not self._numbered:
            self._run_query("number")
            self._numbered = True
        return self._left_at_numbering()

    def _left_at_numbering(self) -> int:
        row = ours(self._connection).execute(
            f"select coalesce(max(n) + 1, 0) from {self._table} where token = any(%s)", [self._tokens]
        )
        found = row.fetchone()
        return int(found[0]) if found else 0

    def rows(self, low: int, high: int) -> list[Received]:
        """Those from the low-th to before the high-th that are still there, in order."""
        return [Received(*row) for row in self._rows("rows", low=low, high=high)]

    def relation(self, low: int | None = None, high: int | None = None) -> str:
        """The rows as something to select from. Columns as in the inbox."""
        tokens = sql.SQL(", ").join(map(sql.Literal, self._tokens)).as_string(self._connection)
        cut = "" if low is None else f" and n >= {int(low)} and n < {int(high or 0)}"
        return f"(select {_COLUMNS} from {self._table} where token in ({tokens}){cut}) as batch"

    def record(self, low: int | None = None, high: int | None = None) -> int:
        """Write down that these were applied; gives back how many."""
        return self._run_query("record_staged", low=low, high=high).rowcount

    def write_ledger(self, **values: Any) -> None:
        self._run_query("write_ledger", run=self._run, **values)

    def _without(self, gone: list[Received]) -> list[Received]:
        for each in gone:
            self.kept[each.topic, each.partition] -= 1
        self._left -= len(gone)
        return gone

    def _rows(self, name: str, **parameters: Any) -> list[Any]:
        return self._run_query(name, **parameters).fetchall()

    def _run_query(self, name: str, **parameters: Any) -> psycopg.Cursor[tuple[Any, ...]]:
        named = {"consumer": self._consumer, "tokens": self._tokens, **parameters}
        return ours(self._connection).execute(self._sql[name], named, prepare=False)


def one_row(message: Received, connection: Connection) -> str:
    """A single message as something to select from, with the columns of `Staged.relation`."""
    values = ", ".join(
        f"{sql.Literal(value).as_string(connection)}::{kind}"
        for value, kind in zip(message, _KINDS, strict=True)
    )
    return f"(select * from (values ({values})) as one ({_COLUMNS})) as batch"


def no_rows() -> str:
    """No message at all as something to select from, with the same columns: what a statement is tried on."""
    nothing = ", ".join(f"null::{kind}" for kind in _KINDS)
    return f"(select * from (values ({nothing})) as one ({_COLUMNS}) where false) as batch"
