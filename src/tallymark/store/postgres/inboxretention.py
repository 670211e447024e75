"""Keeps the inbox's tables in bounds (P7, pitfall 16): saved ids go when the log itself no longer has the messages.

A day of ids goes only when it is older than `keep`, when the log of every partition that it holds messages of begins
behind the last of them, and when none of them is unfinished. First the inbox's memory is shortened (`kept_from`), in a
commit of its own; then the day is detached, looked at once more, and dropped. A crash at any point leaves something
that the next round finds and finishes. Nobody who keeps messages ever waits for it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import psycopg
from psycopg import sql

from tallymark.errors import TallymarkError
from tallymark.inbox.ports import Place
from tallymark.lifecycle import Role
from tallymark.store.postgres.connection import Connection, connect, explain, set_session
from tallymark.store.postgres.migrations import INBOX_AHEAD, require_schema
from tallymark.store.queries import load

log = logging.getLogger("tallymark.retention")

# Rows per statement where rows are pruned: short locks, and short transactions.
_CHUNK = 5000
_PRUNED = ("prune_named", "prune_named_again", "prune_named_applications", "prune_dead_letters")


@dataclass(frozen=True, slots=True)
class InboxRetentionReport:
    """What one round did."""

    made: int = 0
    dropped: tuple[str, ...] = ()
    pruned: int = 0
    # From when on the inbox knows what it kept, where this round moved that.
    kept_from: datetime | None = None
    # The oldest day that is old enough to go and must stay, and why. It keeps all later ones.
    held_back: str | None = None
    because: str | None = None


@dataclass(frozen=True, slots=True)
class _Partition:
    name: str
    low: str
    high: str
    pending: bool = False
    old: bool = True

    @property
    def suffix(self) -> str:
        return self.name.partition("_")[2]


class InboxRetention:
    """One round of housekeeping at a time, on a connection of its own. Needs the rights of the schema's owner."""

    def __init__(self, url: str, *, schema: str = "tallymark") -> None:
        self._url = url
        self._schema = schema
        self._sql = load("tallymark.store.postgres", "inboxretention.sql", schema)
        # The highest offsets of days that could not go yet: they hardly change, and are long to read.
        self._seen: dict[str, dict[Place, int]] = {}
        self._told: str | None = None

    def read(self) -> tuple[set[str], set[Place]]:
        """Topics and places whose logs count: of every consumer there ever was, and of days that could not go."""
        try:
            with connect(self._url, application="tallymark retention") as connection:
                require_schema(connection, self._schema, Role.CONSUMER)
                topics = {topic for (topic,) in connection.execute(self._sql["topics"])}
                places = {(topic, partition) for topic, partition in connection.execute(self._sql["places"])}
        except psycopg.Error as error:
            raise explain(error, self._url) from error
        return topics, places.union(*self._seen.values())

    def run(self, log_starts: Mapping[Place, int], keep: timedelta) -> InboxRetentionReport:
        """Make, finish, drop, prune. `log_starts`: all places of all consumers; one that is missing is not known."""
        try:
            with connect(self._url, application="tallymark retention") as connection:
                require_schema(connection, self._schema, Role.CONSUMER)
                # Nobody is to wait for us: if a lock cannot be had quickly, the next round tries again.
                set_session(connection, "set lock_timeout = '2s'")
                # Before anything that can be refused or go wrong: without partitions nothing can be kept.
                made = self._one(connection, "make_ahead", ahead=INBOX_AHEAD)
                if not self._one(connection, "keeper"):
                    return InboxRetentionReport(made)
                report = self._keep_house(connection, log_starts, keep, made)
                self._one(connection, "done")
                return report
        except psycopg.Error as error:
            raise explain(error, self._url) from error

    def run_safely(self, log_starts: Mapping[Place, int], keep: timedelta) -> None:
        """For a loop that must go on: what goes wrong is logged, and tried again the next time."""
        try:
            report = self.run(log_starts, keep)
        except TallymarkError as error:
            log.warning("retention: %s", error.sentence, extra={"action": "retention.failed"})
            return
        if report.dropped:
            log.info("dropped %s", ", ".join(report.dropped), extra={"action": "retention.drop"})
        held = report.held_back and f"{report.held_back} and what is younger stays: {report.because}"
        if held and held != self._told:
            log.warning("retention: %s", held, extra={"action": "retention.held"})
        self._told = held

    def _keep_house(
        self, connection: Connection, log_starts: Mapping[Place, int], keep: timedelta, made: int
    ) -> InboxRetentionReport:
        dropped = self._finish_begun(connection, log_starts)
        kept_from = held_back = because = None
        for day in self._partitions(connection, "inbox", keep):
            # In order: kept_from is one moment, so nothing goes while something older stays.
            if not day.old:
                break
            if because := self._why_not(connection, day, log_starts):
                held_back = day.name
                break
            kept_from = self._one(connection, "raise_kept_from", high=day.high)
            self._detach(connection, "inbox", day.name)
            if not self._drop_or_return(connection, day, log_starts):
                break
            dropped.append(day.name)
        dropped += self._drop_beside(connection)
        pruned = sum(self._prune(connection, name, log_starts, keep) for name in _PRUNED)
        return InboxRetentionReport(made, tuple(dropped), pruned, kept_from, held_back, because)

    def _why_not(
        self, connection: Connection, day: _Partition, log_starts: Mapping[Place, int]
    ) -> str | None:
        """Why a day must stay; None where it may go."""
        seen = self._seen.get(day.name)
        if seen is not None and (reason := _not_passed(seen, log_starts)):
            return reason
        parameters = {"low": day.low, "high": day.high}
        unfinished = connection.execute(self._sql["queued_within"], parameters).fetchone()
        if unfinished is not None and unfinished[0]:
            return _unfinished(*unfinished)
        self._seen[day.name] = highest = self._highest(connection, day.name)
        return _not_passed(highest, log_starts)

    def _drop_or_return(
        self, connection: Connection, day: _Partition, log_starts: Mapping[Place, int]
    ) -> bool:
        """A detached day, once nobody can add to it: dropped if it still may go, or put back."""
        self._seen.pop(day.name, None)
        if self._why_not(connection, day, log_starts) is None:
            self._run(connection, "drop table {}", day.name)
            del self._seen[day.name]
            return True
        log.warning(
            "%s is needed after all: something was kept there while it was taken away",
            day.name,
            extra={"action": "retention.return"},
        )
        statement = sql.SQL("alter table {} attach partition {} for values from ({}) to ({})").format(
            sql.Identifier(self._schema, "inbox"),
            sql.Identifier(self._schema, day.name),
            sql.Literal(day.low),
            sql.Literal(day.high),
        )
        connection.execute(statement)
        return False

    def _finish_begun(self, connection: Connection, log_starts: Mapping[Place, int]) -> list[str]:
        """What an earlier round was killed at."""
        for table in ("inbox", "applications"):
            for day in self._partitions(connection, table, timedelta(0)):
                if day.pending:
                    self._run(connection, "alter table {} detach partition {} finalize", table, day.name)
        gone = []
        orphans = connection.execute(self._sql["orphans"], {"schema": self._schema}).fetchall()
        for name, low, high in orphans:
            # The effects of a day are detached only after the day itself was dropped: no second look is needed.
            if name.startswith("applications_"):
                self._run(connection, "drop table {}", name)
                gone.append(name)
            elif self._drop_or_return(connection, _Partition(name, low, high), log_starts):
                gone.append(name)
        return gone

    def _drop_beside(self, connection: Connection) -> list[str]:
        """The effects of days that are gone."""
        kept = {day.suffix for day in self._partitions(connection, "inbox", timedelta(0))}
        gone = []
        for day in self._partitions(connection, "applications", timedelta(0)):
            if day.suffix not in kept:
                self._detach(connection, "applications", day.name)
                self._run(connection, "drop table {}", day.name)
                gone.append(day.name)
        return gone

    def _prune(
        self, connection: Connection, name: str, log_starts: Mapping[Place, int], keep: timedelta
    ) -> int:
        parameters: dict[str, object] = {
            "topics": [topic for topic, _ in log_starts],
            "partitions": [partition for _, partition in log_starts],
            "starts": list(log_starts.values()),
            "keep": keep,
            "limit": _CHUNK,
        }
        total = 0
        while gone := self._one(connection, name, **parameters):
            total += gone
        return total

    def _highest(self, connection: Connection, name: str) -> dict[Place, int]:
        query = sql.SQL(
            'select topic, partition, max("offset") from {} where "offset" is not null group by topic, partition'
        ).format(sql.Identifier(self._schema, name))
        return {(topic, partition): top for topic, partition, top in connection.execute(query)}

    def _partitions(self, connection: Connection, table: str, keep: timedelta) -> list[_Partition]:
        parameters = {"table": f"{self._schema}.{table}", "keep": keep}
        return [_Partition(*row) for row in connection.execute(self._sql["partitions"], parameters)]

    def _detach(self, connection: Connection, table: str, name: str) -> None:
        self._run(connection, "alter table {} detach partition {} concurrently", table, name)

    def _one(self, connection: Connection, query: str, **parameters: object) -> Any:
        row = connection.execute(self._sql[query], parameters).fetchone()
        return None if row is None else row[0]

    def _run(self, connection: Connection, statement: str, *tables: str) -> None:
        names = [sql.Identifier(self._schema, table) for table in tables]
        connection.execute(sql.SQL(statement).format(*names))


def _not_passed(highest: Mapping[Place, int], log_starts: Mapping[Place, int]) -> str | None:
    """Why the log still counts: it must begin, at every place, behind the last message that is here."""
    for (topic, partition), top in sorted(highest.items()):
        start = log_starts.get((topic, partition))
        if start is None:
            return (
                f"nothing is known of the log of {topic}/{partition}, which it has messages of: Kafka is away, or has "
                "not been asked about it yet"
            )
        if start <= top:
            return (
                f"the log of {topic}/{partition} begins at {start} and may give offset {top} again (that of a "
                "compacted topic always does)"
            )
    return None


def _unfinished(count: int, dead: int, one: str) -> str:
    told = f"{count} of its messages are not finished"
    return f"{told}, {dead} of them dead letters that hold their keys ({one})" if dead else f"{told} ({one})"
