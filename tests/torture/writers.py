"""Writers that behave as services do: transactions of 1 to 20 adds, rollbacks, savepoints, pauses, late commits.

Before it adds, a writer locks the key's row and takes the key's next number under that lock, so that commit order is add
order. A commit whose outcome is unknown is remembered and resolved at the end by looking for its ids in the outbox.
"""

from __future__ import annotations

import random
import threading
from dataclasses import dataclass, field

import psycopg

from tallymark.outbox.outbox import Draft, Outbox
from tallymark.store.postgres.writer import PostgresWriter

KEYS = 50
_KEYLESS = 0.05


class _RollBack(Exception):
    """The business transaction changes its mind."""


@dataclass
class Record:
    """What one writer knows of its transactions: lists of ids."""

    committed: list[list[str]] = field(default_factory=list)
    rolled_back: list[list[str]] = field(default_factory=list)
    unknown: list[list[str]] = field(default_factory=list)
    # Rolled back to a savepoint, in a transaction that went on.
    undone: list[list[str]] = field(default_factory=list)
    deadlocks: int = 0


def prepare(url: str) -> None:
    """The business table: one row per key, with the number of the key's last message."""
    with psycopg.connect(url) as connection:
        connection.execute("create table account (key text primary key, seq bigint not null default 0)")
        connection.execute(
            "insert into account (key) select 'account-' || n from generate_series(1, %s) n", [KEYS]
        )


class Writer(threading.Thread):
    """Adds until `stop` is set; reconnects for as long as PostgreSQL is away."""

    def __init__(self, url: str, topic: str, seed: str, stop: threading.Event) -> None:
        super().__init__(name=f"writer-{seed}", daemon=True)
        self.record = Record()
        self.failure: BaseException | None = None
        self._url = url
        self._topic = topic
        self._random = random.Random(seed)  # noqa: S311 - a seed that can be given again is the point
        self._stopped = stop
        self._outbox = Outbox(f"/torture/{seed}", writer=PostgresWriter())

    def run(self) -> None:
        while not self._stopped.is_set():
            try:
                with psycopg.connect(
                    self._url, connect_timeout=5, application_name="torture writer"
                ) as connection:
                    while not self._stopped.is_set():
                        self._transact(connection)
                        self._stopped.wait(self._random.choice([0, 0, 0, 0.005, 0.02]))
            except psycopg.OperationalError:  # PostgreSQL is away: what was in doubt is recorded
                self._stopped.wait(0.2)
            except BaseException as error:  # noqa: BLE001 - handed to whoever joins: the run has failed
                self.failure = error
                return

    def _transact(self, connection: psycopg.Connection) -> None:
        kept: list[str] = []
        dropped: list[str] = []
        try:
            self._fill(connection, kept, dropped)
            if self._random.random() < 0.01:
                self._stopped.wait(self._random.uniform(0.2, 1.5))  # a late commit: P14
            if self._random.random() < 0.15:
                raise _RollBack
        except (_RollBack, psycopg.errors.DeadlockDetected) as why:
            self.record.deadlocks += isinstance(why, psycopg.errors.DeadlockDetected)
            self.record.rolled_back.append(kept + dropped)
            connection.rollback()
            return
        except psycopg.OperationalError:  # before the commit was asked for: nothing of it can be there
            self.record.rolled_back.append(kept + dropped)
            raise
        if dropped:
            self.record.undone.append(dropped)
        try:
            connection.commit()
        except psycopg.OperationalError:
            self.record.unknown.append(kept)
            raise
        self.record.committed.append(kept)

    def _fill(self, connection: psycopg.Connection, kept: list[str], dropped: list[str]) -> None:
        adds = self._random.randint(1, 20)
        # Ascending keys: writers wait for each other, and seldom in a circle.
        keys = sorted(self._random.randint(1, KEYS) for _ in range(adds))
        if self._random.random() < 0.2:
            drafts = [self._draft(connection, key) for key in keys]
            kept += [str(id_) for id_ in self._outbox.add_many(connection, drafts)]
            return
        undo = self._random.random() < 0.2
        cut = self._random.randint(0, adds)
        for key in keys[:cut]:
            kept.append(self._add(connection, key))
        if undo:
            try:
                with connection.transaction():  # a savepoint
                    for key in keys[cut:]:
                        dropped.append(self._add(connection, key))
                    raise _RollBack
            except _RollBack:
                pass
            if self._random.random() < 0.5:  # and on with the same transaction, its floor given back
                kept.append(self._add(connection, keys[-1]))
            return
        for key in keys[cut:]:
            kept.append(self._add(connection, key))
            if self._random.random() < 0.01:
                self._stopped.wait(0.05)

    def _add(self, connection: psycopg.Connection, key: int) -> str:
        draft = self._draft(connection, key)
        return str(self._outbox.add(connection, draft.topic, draft.value, key=draft.key, type=draft.type))

    def _draft(self, connection: psycopg.Connection, key: int) -> Draft:
        if self._random.random() < _KEYLESS:
            return Draft(self._topic, {"seq": 0, "note": self._random.random()}, type="torture.keyless")
        row = connection.execute(
            "update account set seq = seq + 1 where key = %s returning seq", [f"account-{key}"]
        ).fetchone()
        assert row is not None
        value = {"seq": row[0], "by": self.name, "note": "x" * self._random.randint(0, 400)}
        return Draft(self._topic, value, key=f"account-{key}", type="torture.moved")


class Bystander(threading.Thread):
    """A transaction that writes, has nothing to do with the outbox, and stays open for as long as it can."""

    def __init__(self, url: str, stop: threading.Event) -> None:
        super().__init__(name="bystander", daemon=True)
        self._url = url
        self._stopped = stop

    def run(self) -> None:
        while not self._stopped.is_set():
            try:
                with psycopg.connect(self._url, connect_timeout=5) as connection:
                    connection.execute("create table if not exists aside (n int)")
                    connection.commit()
                    connection.execute("insert into aside values (1)")
                    while not self._stopped.wait(1.0):
                        connection.execute("select 1")
            except psycopg.OperationalError:
                self._stopped.wait(0.5)
