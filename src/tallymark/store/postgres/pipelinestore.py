"""A pipeline run's tables: its row among the runs, its staging tables, the ledger of its batches."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg

from tallymark import __version__
from tallymark.errors import OutcomeUnknown, Problem, TallymarkError, Unreachable, UsageError
from tallymark.inbox.ports import InboxTx
from tallymark.lifecycle import Role
from tallymark.store.postgres.connection import connect, explain
from tallymark.store.postgres.inboxstore import PostgresInboxStore
from tallymark.store.postgres.inboxtx import PostgresInboxTx
from tallymark.store.postgres.session import Session
from tallymark.store.postgres.staged import staging_table
from tallymark.store.queries import load

log = logging.getLogger("tallymark.pipeline")

_APPLICATION = "tallymark pipeline"
# Syntax errors, and names or rights that are not there.
_NEVER_WORKS = "42"


class _Undone(Exception):
    """Ends a transaction that was only to be tried."""


@dataclass(frozen=True, slots=True)
class RunBatch:
    """One committed micro-batch."""

    batch: int
    ranges: list[list[Any]]
    read: int
    kept: int
    applied: int
    queued: int
    dead: int
    load_s: float
    commit_s: float
    committed_at: datetime


@dataclass(frozen=True, slots=True)
class RunTotals:
    """All batches of one run."""

    batches: int
    read: int
    kept: int
    applied: int
    queued: int
    dead: int
    first_at: datetime | None
    last_at: datetime | None
    load_s: float
    commit_s: float


@dataclass(frozen=True, slots=True)
class RunStatus:
    """The last run of a consumer."""

    consumer: str
    run: str
    owner: str
    topics: list[str]
    master: str
    started_at: datetime
    seen_at: datetime
    ended_at: datetime | None
    trouble: str | None
    totals: RunTotals
    last: list[RunBatch]


class PipelineStore:
    """The tables of one run."""

    def __init__(
        self,
        url: str,
        make_inbox: Callable[[], PostgresInboxStore],
        *,
        schema: str,
        consumer: str,
        run: str,
    ) -> None:
        self.url = url
        self._make_inbox = make_inbox
        self.inbox = make_inbox()
        self.run = run
        # A run has two: one is loaded while the other is committed. By what follows its name.
        self._suffixes = ["", "_b"]
        # Others, which somebody held when they were to be cleared; the one that was given up first comes first.
        self._given_up: list[str] = []
        self._consumer = consumer
        self._schema = schema
        self._db = Session(
            url, schema=schema, file="pipeline.sql", application=_APPLICATION, role=Role.CONSUMER
        )
        self._begun = False

    def begin(self, owner: str, topics: Sequence[str], master: str) -> None:
        """Write the run down and make its staging tables; what former runs left behind goes."""
        self._begun = True
        self._db.rows(
            "begin_run",
            {
                "run": self.run,
                "consumer": self._consumer,
                "owner": owner,
                "topics": sorted(topics),
                "master": master,
                "host": socket.gethostname(),
                "pid": os.getpid(),
                "version": __version__,
            },
        )
        self.make_staging()
        self._drop("end_left", "drop_staging")
        self.forget()

    def refuse_unworkable(self, statement: str) -> None:
        """Refuse a statement to apply that cannot work whatever the messages are: tried once over none, and undone.

        Left to the batches it would fail for each message, and park all of the topic.
        """
        try:
            with self.inbox.begin() as tx:
                tx.handed.execute(statement, prepare=False)
                raise _Undone
        except _Undone:
            return
        except psycopg.Error as error:
            if not (error.sqlstate or "").startswith(_NEVER_WORKS):
                return  # it may be for want of messages: their turn will tell
            raise UsageError(
                f"the SQL to apply cannot work: {error.diag.message_primary} ({error.sqlstate})",
                remedy="correct the statement, the tables that it names or the rights of the database's user",
            ) from error

    @property
    def stagings(self) -> tuple[str, str]:
        """The run's two staging tables as they are now."""
        first, second = map(self._table, self._suffixes)
        return first, second

    def _table(self, suffix: str) -> str:
        return staging_table(self._schema, self.run, suffix)

    def make_staging(self) -> None:
        """The run's two staging tables, where they are not there."""
        for suffix in self._suffixes:
            self._db.rows("make_staging", {"run": self.run, "suffix": suffix})

    def forget(self) -> None:
        """What nobody asks for any more, over a connection of its own: also for a thread that keeps house (P7)."""
        queries = load("tallymark.store.postgres", "pipeline.sql", self._schema)
        try:
            with connect(self.url, application=_APPLICATION) as connection:
                for name in ("forget_batches", "forget_runs"):
                    connection.execute(queries[name], {"consumer": self._consumer, "run": self.run})
        except (psycopg.Error, TallymarkError) as error:  # the next time may be luckier
            known = explain(error, self.url) if isinstance(error, psycopg.Error) else error
            log.warning("old runs are not forgotten: %s", known, extra={"action": "pipeline.forget"})

    def renew(self) -> PostgresInboxStore:
        """Commit over another session from now on; gives back the store of the one before, which somebody still holds."""
        old, self.inbox = self.inbox, self._make_inbox()
        return old

    def seen(self) -> None:
        """The run goes on. For those who look only: where it cannot be said, it is said later."""
        try:
            self._db.rows("seen_run", {"run": self.run})
        except TallymarkError as error:
            log.debug("could not say that it runs: %s", error, extra={"action": "pipeline.seen"})

    def end(self, trouble: str | None) -> None:
        """Write down how it ended; its tables go. A run that was refused before it began has nothing of its own here."""
        for last in (False, True) if self._begun else ():
            try:
                self._db.rows("end_run", {"run": self.run, "trouble": trouble})
                self._drop("drop_ended")
                break
            except (
                OutcomeUnknown
            ) as error:  # the server was restarted since: once more, over a new connection
                if last:
                    log.warning("could not tidy up: %s", error, extra={"action": "pipeline.end"})
            except TallymarkError as error:  # the next run tidies up
                log.warning("could not tidy up: %s", error, extra={"action": "pipeline.end"})
                break
        self._db.close()

    def transaction(self, tx: InboxTx) -> PostgresInboxTx:
        """The inbox's transaction as the one that knows staged rows."""
        if not isinstance(tx, PostgresInboxTx):
            raise TypeError(f"{type(tx).__name__} knows nothing of staging")
        return tx

    def explained(self, error: BaseException) -> TallymarkError | None:
        """What the database said, in our words; None where it said nothing.

        No room, and a server that only reads for now, count as one that is away: no message brings them about.
        """
        known = explain(error, self.url) if isinstance(error, psycopg.Error) else error
        said = error if isinstance(error, psycopg.Error) else error.__cause__
        code = getattr(said, "sqlstate", None) or ""
        if type(known) is Problem and (code.startswith("53") or code == "25006"):
            return Unreachable(str(known), remedy="see to the database: it is tried again for a while")
        return known if isinstance(known, TallymarkError) else None

    def clear_staging(self, table: str) -> None:
        """Empty it. Where somebody holds it (a dump does, for hours) another one takes its place among `stagings`.

        What stays is under tokens that nobody counts; but loaded again and again the table would only grow.
        """
        if self._cleared(table):
            return
        turn = self.stagings.index(table)
        spare = next((each for each in self._given_up if self._cleared(self._table(each))), None)
        if spare is None:
            spare = f"_{2 + len(self._given_up)}"
            try:
                self._soon("make_staging", suffix=spare)
            except (psycopg.Error, TallymarkError) as error:  # the next clearing may be luckier
                log.warning("no other staging table: %s", error, extra={"action": "pipeline.clear"})
                return
        else:
            self._given_up.remove(spare)
        self._given_up.append(self._suffixes[turn])
        self._suffixes[turn] = spare

    def _cleared(self, table: str) -> bool:
        try:
            self._soon("clear_staging", table)
        except (psycopg.Error, TallymarkError) as error:
            log.warning("%s was not cleared: %s", table, error, extra={"action": "pipeline.clear"})
            return False
        return True

    def _drop(self, *names: str) -> None:
        """Best effort: what somebody holds, the next run drops."""
        try:
            for name in names:
                self._soon(name)
        except (psycopg.Error, TallymarkError) as error:
            known = explain(error, self.url) if isinstance(error, psycopg.Error) else error
            log.warning("staging tables are left behind: %s", known, extra={"action": "pipeline.drop"})

    def _soon(self, name: str, table: str = "", *, suffix: str = "") -> None:
        """In a transaction of its own that waits for nobody: a task that was stopped may hold a table for ever."""
        statement = load("tallymark.store.postgres", "pipeline.sql", self._schema)[name]
        with connect(self.url, application=_APPLICATION, autocommit=False) as connection:
            connection.execute("set local lock_timeout = '2s'")
            asked = None if table else {"consumer": self._consumer, "run": self.run, "suffix": suffix}
            connection.execute(statement.replace("{table}", table), asked)


def statuses(url: str, *, schema: str, consumer: str | None = None, batches: int = 10) -> list[RunStatus]:
    """The last run of each consumer in this database."""
    db = Session(url, schema=schema, file="pipeline.sql", application=_APPLICATION, role=Role.CONSUMER)
    try:
        return [
            _status(
                row,
                RunTotals(*db.row("totals", {"run": row[1]})),
                [RunBatch(*each) for each in db.rows("batches", {"run": row[1], "limit": batches})],
            )
            for row in db.rows("runs", {"consumer": consumer})
        ]
    finally:
        db.close()


def _status(row: Sequence[Any], totals: RunTotals, last: list[RunBatch]) -> RunStatus:
    consumer, run, owner, topics, master, started_at, seen_at, ended_at, trouble = row
    return RunStatus(
        consumer, run, owner, topics, master, started_at, seen_at, ended_at, trouble, totals, last
    )
