"""Keeps the outbox's tables in bounds: partitions are made ahead, and dropped whole when nobody needs them any more.

A partition goes only when every row in it is sent, or parked and so copied, and its newest row is older than
`keep`. Names that callers gave (`dedup_key`) go by their age, where `keep_names` says so; what is remembered of resends
goes with their rows. Nothing here blocks a writer:
ATTACH to make, DETACH CONCURRENTLY to take away, and only a table that no longer belongs to anything is dropped. A crash
at any point leaves something that the next round finds and finishes.

One round at a time. DETACH CONCURRENTLY can be in no transaction, and a session's lock would stay with a pooler: so the
lock is that of a transaction on a connection of its own, which is idle for as long as the round takes.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import psycopg
from psycopg import sql

from tallymark.errors import TallymarkError
from tallymark.lifecycle import Role
from tallymark.store.postgres.connection import Connection, connect, explain, set_session
from tallymark.store.postgres.migrations import require_schema
from tallymark.store.queries import load

log = logging.getLogger("tallymark.retention")

_AHEAD = 8
# Dropped side by side: a batch is needed as long as a row that it covers.
_TABLES = ("outbox", "batches", "parked")


@dataclass(frozen=True, slots=True)
class RetentionReport:
    """What one round did."""

    made: int = 0
    dropped: tuple[str, ...] = ()
    jumped_to: int | None = None


class Retention:
    """One round of housekeeping at a time, on a connection of its own."""

    def __init__(
        self,
        url: str,
        *,
        schema: str = "tallymark",
        keep: timedelta,
        keep_names: timedelta | None = None,
        owner: str | None = None,
    ) -> None:
        self._url = url
        self._schema = schema
        self._keep = keep
        self._keep_names = keep_names
        self._owner = owner
        self._sql = load("tallymark.store.postgres", "retention.sql", schema)

    def run_once(self) -> RetentionReport:
        """Make, drop, jump. Does nothing where another relay keeps house."""
        try:
            with connect(self._url, application="tallymark retention") as connection:
                require_schema(connection, self._schema, Role.PRODUCER)
                if self._owner is not None and not self._one(connection, "is_keeper", owner=self._owner):
                    return RetentionReport()
                with connect(self._url, application="tallymark retention", autocommit=False) as turn:
                    if not self._one(turn, "alone"):
                        return RetentionReport()
                    return self._keep_house(connection, turn)
        except psycopg.Error as error:
            raise explain(error, self._url) from error

    def run_safely(self) -> None:
        """For a loop that must go on: what goes wrong is logged, and tried again the next time."""
        try:
            report = self.run_once()
        except TallymarkError as error:
            log.warning("retention: %s", error.sentence, extra={"action": "retention.failed"})
            return
        if report.dropped:
            log.info("dropped %s", ", ".join(report.dropped), extra={"action": "retention.drop"})

    def _keep_house(self, connection: Connection, turn: Connection) -> RetentionReport:
        # A writer is never to wait for us: if a lock cannot be had quickly, the next round tries again.
        set_session(connection, "set lock_timeout = '2s'")
        made = self._one(connection, "make_ahead", ahead=_AHEAD)
        self._finish_begun(connection)
        while self._keep_names is not None and self._one(connection, "forget_names", keep=self._keep_names):
            pass
        row = connection.execute(self._sql["bounds"]).fetchone()
        if row is None:
            return RetentionReport(made)
        needed, last, size = row
        dropped, detached = self._drop_orphans(connection, min(needed, last))
        for name, bound, _ in self._partitions(connection, "outbox"):
            # Strictly beyond it: a lane that stands on a partition's last position still files its batches there.
            if bound > needed or bound > last or not self._is_old(connection, name):
                break
            dropped += self._drop(connection, f"outbox_{bound}")
        if bounds := [bound for _, bound, _ in self._partitions(connection, "outbox")]:
            lowest = min([bounds[0], *detached]) - size
            while self._one(connection, "forget_resends", lowest=lowest, size=size):
                pass
        dropped += self._drop_beside(connection, size, detached)
        jumped = self._jump(turn, last, size) if self._is_quiet(connection, last, size) else None
        return RetentionReport(made, tuple(dropped), jumped)

    def _drop_beside(self, connection: Connection, size: int, detached: Sequence[int]) -> list[str]:
        """Batches go when the rows that they cover have gone; parked messages when each is sent or discarded, too."""
        kept = {bound for _, bound, _ in self._partitions(connection, "outbox")} | set(detached)
        gone: list[str] = []
        for name, bound, _ in self._partitions(connection, "batches"):
            if bound not in kept:
                gone += self._drop(connection, name)
        for name, bound, _ in self._partitions(connection, "parked"):
            if bound not in kept and not self._one(
                connection, "parked_unfinished", low=bound - size, high=bound
            ):
                gone += self._drop(connection, name)
        return gone

    def _finish_begun(self, connection: Connection) -> None:
        for table in _TABLES:
            for name, _, pending in self._partitions(connection, table):
                if pending:
                    self._run(connection, "alter table {} detach partition {} finalize", table, name)

    def _drop_orphans(self, connection: Connection, needed: int) -> tuple[list[str], list[int]]:
        """What was detached and not dropped goes by the same rules: it may have been somebody else who detached it.

        Gives back what has gone, and the bounds of those of the outbox that stay.
        """
        kept = [bound for _, bound, _ in self._partitions(connection, "outbox")]
        gone: list[str] = []
        stay: list[int] = []
        for name, bound in connection.execute(self._sql["orphans"], {"schema": self._schema}).fetchall():
            rows = name.startswith("outbox_")
            if rows:
                done_with = bound <= needed and self._is_old(connection, name)
            else:
                done_with = bound not in (*kept, *stay) and not self._has_unfinished(connection, name)
            if done_with:
                self._run(connection, "drop table {}", name)
                gone.append(name)
                continue
            stay += [bound] if rows else []
            log.error(
                "%s is detached and still needed: attach it again, or drop it yourself",
                name,
                extra={"action": "retention.orphan"},
            )
        return gone, stay

    def _has_unfinished(self, connection: Connection, partition: str) -> bool:
        if not partition.startswith("parked_"):
            return False
        found = connection.execute(
            sql.SQL("select 1 from {} where state in ('failed', 'waiting', 'retrying') limit 1").format(
                sql.Identifier(self._schema, partition)
            )
        ).fetchone()
        return found is not None

    def _is_quiet(self, connection: Connection, last: int, size: int) -> bool:
        """Whether it has filled the partition that it is in for long."""
        first = connection.execute(
            f"select clock_timestamp() - created_at > %s from {self._schema}.outbox"
            " where position >= %s order by position limit 1",
            [self._keep / 7, last // size * size],
        ).fetchone()
        return first is not None and bool(first[0])

    def _jump(self, turn: Connection, last: int, size: int) -> int | None:
        """Let a quiet outbox begin a new partition, so that the old one can go when its time comes.

        In the transaction that has the lock, and as its last act: while it lives nobody else moves the sequence, and
        one that has lost its lock meanwhile cannot. The number that a transaction is given by it holds up vacuum.
        """
        parameters = {"next": (last // size + 1) * size - 1, "margin": size // 10}
        row = turn.execute(self._sql["jump"], parameters).fetchone()
        return None if row is None else int(row[0])

    def _is_old(self, connection: Connection, partition: str) -> bool:
        newest = connection.execute(
            sql.SQL(
                "select clock_timestamp() - created_at > %s from {} order by position desc limit 1"
            ).format(sql.Identifier(self._schema, partition)),
            [self._keep],
        ).fetchone()
        return newest is None or bool(newest[0])

    def _drop(self, connection: Connection, *names: str) -> list[str]:
        for name in names:
            table = name.partition("_")[0]
            self._run(connection, "alter table {} detach partition {} concurrently", table, name)
            self._run(connection, "drop table {}", name)
        return list(names)

    def _partitions(self, connection: Connection, table: str) -> list[tuple[str, int, bool]]:
        return connection.execute(self._sql["partitions"], {"table": f"{self._schema}.{table}"}).fetchall()

    def _one(self, connection: Connection, query: str, **parameters: object) -> Any:
        row = connection.execute(self._sql[query], parameters).fetchone()
        return None if row is None else row[0]

    def _run(self, connection: Connection, statement: str, *tables: str) -> None:
        names = [sql.Identifier(self._schema, table) for table in tables]
        connection.execute(sql.SQL(statement).format(*names))
