"""One transaction of a consumer's database: keep, queue, record, advance. It commits together, or not at all.

Keeping is optimistic: a batch goes into the inbox by COPY, and only where an id is there already does the transaction
begin again and tell apart what is new, what was kept before and what carries an id that was used for something else.
"""

from __future__ import annotations

import hashlib
import uuid
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from operator import itemgetter
from typing import Any

import psycopg
from psycopg import sql

from tallymark.errors import OutcomeUnknown, Problem, UsageError
from tallymark.inbox.ports import (
    Application,
    Claim,
    ClaimBounds,
    Failed,
    Kept,
    Move,
    Place,
    Queued,
    Received,
    StalePositions,
    TransactionSpoilt,
)
from tallymark.store.postgres.connection import Connection, explain, is_gone, place_of
from tallymark.store.postgres.deadcopy import DeadCopies
from tallymark.store.postgres.handed import Hands, ours
from tallymark.store.postgres.inboxcopy import APPLICATIONS, INBOX, application_pieces, inbox_pieces
from tallymark.store.postgres.inboxfew import FEW, application_columns, inbox_columns, pipelined
from tallymark.store.postgres.queue import Queue
from tallymark.store.postgres.staged import Staged
from tallymark.store.queries import load

# Deadlock, serialization failure: whoever runs the batch reruns it, and knows them by their code.
_TRANSIENT = ("40P01", "40001")
# No room, the system's own errors: no handler brings them about.
_SERVERS_OWN = ("53", "58")
# How often another owner's commit may come between our look and our COPY.
_TRIES = 5
# From the first position moved until the commit: see advance in inbox.sql.
_IDLE_AFTER_ADVANCE = "30s"
# Longer keys do not fit into an index; their digest stands for them.
_LONGEST_KEY = 1000

_place = itemgetter(3, 4)
Known = dict[tuple[uuid.UUID, str], tuple[bytes | None, bytes | None]]


class PostgresInboxTx:
    """The inbox's port, inside one transaction. Our own errors are explained; a handler's pass unchanged."""

    def __init__(
        self,
        connection: Connection,
        hands: Hands,
        *,
        url: str,
        schema: str,
        consumer: str,
        lease_s: float,
        dead_letter_topic: str | None = None,
        written: bool = False,
    ) -> None:
        self._connection = connection
        self._hands = hands
        self._url = url
        self._schema = schema
        self._consumer = consumer
        self._lease_s = lease_s
        self._sql = load("tallymark.store.postgres", "inbox.sql", schema)
        self._copies = (
            None
            if dead_letter_topic is None
            else DeadCopies(connection, self._sql, consumer=consumer, topic=dead_letter_topic)
        )
        self._queue = Queue(connection, schema=schema, consumer=consumer)
        # Whether it holds what must not be lost where it begins again.
        self._written = written
        self._handed = False
        self._kept: Counter[Place] = Counter()

    @property
    def handed(self) -> Any:
        self._written = self._handed = True  # who knows what a handler does with it
        with self._ours():
            return self._hands.handed

    @property
    def lost(self) -> bool:
        return self._hands.lost

    @property
    def over(self) -> bool:
        return self._hands.over

    @property
    def mark(self) -> str | None:
        return self._queue.mark

    def committed(self, mark: str | None) -> bool:
        with self._ours():
            return self._queue.committed(mark)

    def standing(self, rows: Sequence[Queued]) -> list[Queued]:
        with self._ours():
            return self._queue.standing(rows)

    def keep(self, messages: Sequence[Received]) -> Kept:
        if not messages:
            return Kept((), (), ())
        with self._ours():
            kept = self._keep_sorted(messages) if self._written else self._keep_all(messages)
            copies = [each for n in kept.repeated if (each := messages[n]).named and each.offset is not None]
            if copies:
                self._send("note_again", inbox_columns(copies), prepare=False)
        self._written = True
        fresh = messages if len(kept.new) == len(messages) else [messages[n] for n in kept.new]
        self._kept.update(map(_place, fresh))
        return kept

    def staged(self, run: str, table: str, tokens: Mapping[str, int], places: Mapping[Place, int]) -> Staged:
        """What executors have loaded for this transaction: each winning attempt's token with the rows it said."""
        self._written = True
        staged = Staged(
            self._connection,
            schema=self._schema,
            run=run,
            table=table,
            consumer=self._consumer,
            tokens=tokens,
            places=places,
        )
        self._kept = staged.kept
        return staged

    def any_queued(self) -> bool:
        with self._ours():
            return self._queue.any_queued()

    def held(self, key_hashes: Collection[int]) -> frozenset[int]:
        with self._ours():
            return self._queue.held(key_hashes)

    def enqueue(self, rows: Sequence[Queued]) -> list[int]:
        with self._writing():
            return self._queue.enqueue(rows)

    def claim(self, after: int, bounds: ClaimBounds) -> Claim:
        with self._writing():
            return self._queue.claim(after, bounds)

    def finish(self, rows: Sequence[Queued]) -> None:
        with self._writing():
            self._queue.finish(rows)

    def fail(self, failures: Sequence[Failed]) -> None:
        with self._writing():
            self._queue.fail(failures)
            if self._copies is not None:
                for each in failures:
                    if each.again_in_s is None:
                        self._copies.add(each)

    def quarantine(self, messages: Sequence[tuple[Received, str]]) -> None:
        with self._writing():
            self._queue.quarantine(messages)

    def record(self, applications: Sequence[Application]) -> None:
        if applications:
            with self._writing():
                self._copy(APPLICATIONS, application_pieces(applications, self._consumer))

    def advance(self, moves: Sequence[Move], applications: Sequence[Application] = ()) -> None:
        """Should come last: from here on a successor waits for this transaction's end."""
        if not moves or len(applications) > FEW:
            self.record(applications)
            applications = ()
        if not moves:
            return
        with self._writing():
            parameters = {
                "consumer": self._consumer,
                "topics": [m.topic for m in moves],
                "partitions": [m.partition for m in moves],
                "epochs": [m.epoch for m in moves],
                "starts": [m.start for m in moves],
                "uptos": [m.end for m in moves],
                "leader_epochs": [m.leader_epoch for m in moves],
                "logged_ats": [m.logged_at for m in moves],
                "kept": [self._kept[m.topic, m.partition] for m in moves],
                "lease_s": self._lease_s,
                "idle": _IDLE_AFTER_ADVANCE,
            }
            with pipelined(self._connection):
                if applications:
                    self._send("record_few", application_columns(applications))
                found = ours(self._connection).execute(self._sql["advance"], parameters)
            moved = {(topic, partition) for topic, partition, _ in found}
        if missing := {(m.topic, m.partition) for m in moves} - moved:
            raise StalePositions(missing)

    def raise_version(self, topic: str, key: bytes, version: int) -> bool:
        if len(key) > _LONGEST_KEY:
            key = b"sha256:" + hashlib.sha256(key).digest()
        with self._writing():
            parameters = {"consumer": self._consumer, "topic": topic, "key": key, "version": version}
            return (
                ours(self._connection).execute(self._sql["raise_version"], parameters).fetchone() is not None
            )

    def locked_version(self, table: str, key_column: str, version_column: str, key: Any) -> int | None:
        query = sql.SQL("select {} from {} where {} = %s for update").format(
            sql.Identifier(version_column), sql.Identifier(*table.split(".")), sql.Identifier(key_column)
        )
        self._written = True
        try:
            row = ours(self._connection).execute(query, [key]).fetchone()
        except (psycopg.errors.UndefinedTable, psycopg.errors.UndefinedColumn) as error:
            raise UsageError(
                f"Version names something that is not there: {error.diag.message_primary}",
                remedy="name the table, its key column and its version column as they are in the database",
            ) from error
        except psycopg.Error as error:
            self._refuse_lost(error)
            raise
        return None if row is None or row[0] is None else int(row[0])

    def savepoint(self) -> AbstractContextManager[None]:
        return self._hands.savepoint()

    def settle_handed(self, *, check: bool = False) -> None:
        self._hands.settle(check=check)

    def _keep_all(self, messages: Sequence[Received]) -> Kept:
        try:
            if len(messages) > FEW:
                self._copy(INBOX, inbox_pieces(messages, self._consumer))
            else:
                with pipelined(self._connection):
                    self._send("keep_few", inbox_columns(messages))
                    asked = self._queue.ask()
                self._queue.hear(asked)
        except psycopg.errors.UniqueViolation:
            # Nothing was written before: keep comes first. So nothing is lost, and no savepoint was paid for.
            self._hands.restart()
            return self._keep_sorted(messages)
        return Kept(range(len(messages)), (), ())

    def _keep_sorted(self, messages: Sequence[Received]) -> Kept:
        for _ in range(_TRIES):
            kept = sort_out(messages, self._known(messages))
            try:
                with self._connection.transaction():
                    self._copy(INBOX, inbox_pieces([messages[n] for n in kept.new], self._consumer))
            except psycopg.errors.UniqueViolation:  # someone kept one of them since we looked: look again
                continue
            return kept
        raise Problem(
            f"other owners kept the same messages of {self._consumer} {_TRIES} times in a row while we did",
            remedy="look with `tallymark inbox status` for two that read the same partitions",
        )

    def _known(self, messages: Sequence[Received]) -> Known:
        parameters = {
            "consumer": self._consumer,
            "ids": [message.id for message in messages],
            "sources": [message.source for message in messages],
        }
        rows = ours(self._connection, binary=True).execute(self._sql["known"], parameters, prepare=False)
        return {(messages[n - 1].id, messages[n - 1].source): (key, digest) for n, key, digest in rows}

    def _send(self, name: str, parameters: dict[str, Any], *, prepare: bool | None = None) -> None:
        named = {"consumer": self._consumer, **parameters}
        ours(self._connection).execute(self._sql[name], named, prepare=prepare)

    def _copy(self, statement: str, pieces: Iterable[bytes]) -> None:
        with ours(self._connection) as cursor, cursor.copy(statement.format(self._schema)) as copy:
            for piece in pieces:
                copy.write(piece)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        self._written = True
        with self._ours():
            yield

    @contextmanager
    def _ours(self) -> Iterator[None]:
        """What goes wrong in a statement of ours, in our words."""
        try:
            yield
        except psycopg.Error as error:
            self._refuse_lost(error)
            if error.sqlstate in _TRANSIENT:
                raise
            if error.sqlstate == "23514" and "no partition" in str(error):
                raise Problem(
                    f"the inbox has no place for an id: {error.diag.message_detail}",
                    remedy="it is older than what is kept, and so cannot be told from one applied before, or lies too "
                    "far ahead: such messages are for quarantine",
                ) from error
            explained = explain(error, self._url)
            if self._handed and (error.sqlstate or "")[:2] not in _SERVERS_OWN:
                raise TransactionSpoilt(
                    f"what the inbox itself writes failed after a handler had used the transaction: {explained}",
                    remedy="look at what handlers set in it (a role, read only, a time-out): it holds for all after it",
                ) from error
            raise explained from error

    def _refuse_lost(self, error: psycopg.Error) -> None:
        if is_gone(error) or self._connection.closed:
            raise OutcomeUnknown(
                f"lost the connection to {place_of(self._url)} in mid-transaction"
            ) from error


def sort_out(messages: Sequence[Received], known: Known) -> Kept:
    """Which of a batch are new, which were kept before with the same contents, which reuse an id. Pure."""
    new, repeated, reused = [], [], []
    for n, message in enumerate(messages):
        name = message.id, message.source
        contents = message.key, None if message.value is None else hashlib.sha256(message.value).digest()
        before = known.setdefault(name, contents)
        if before is contents:
            new.append(n)
        elif before == contents:
            repeated.append(n)
        else:
            reused.append(n)
    return Kept(new, repeated, reused)
