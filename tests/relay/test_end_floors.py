"""A writer that idles in its transaction holds the relay back: named by status, and ended by option (pitfall 9)."""

from __future__ import annotations

import psycopg
import pytest

from tallymark.lifecycle import Role
from tallymark.message import Entry, new_id
from tallymark.outbox.ports import PLAIN
from tallymark.store.postgres.migrations import migrate
from tallymark.store.postgres.relaystore import PostgresRelayStore
from tallymark.store.postgres.writer import PostgresWriter
from tests.waiting import wait_for


def add(tx: psycopg.Connection) -> None:
    PostgresWriter().add(tx, Entry(new_id(), "transfers", b"alice", b"{}", "{}"), PLAIN)


def test_an_idle_writer_is_ended_and_a_bystander_is_not(database: str) -> None:
    migrate(database, role=Role.PRODUCER, partitions_ahead=2)
    store = PostgresRelayStore(database)
    store.identity()
    with (
        psycopg.connect(database, application_name="forgotten") as idle,
        psycopg.connect(database) as bystander,
    ):
        add(idle)
        bystander.execute("select 1")  # idle in a transaction too, and in nobody's way
        with psycopg.connect(database) as other:
            add(other)
        assert store.frontier(0) == 0, "the floor holds the reader back"
        assert store.end_floors(3600) == [], "not yet"
        ended = wait_for(lambda: store.end_floors(0.05), what="the idle writer is ended")
        assert len(ended) == 1
        assert "forgotten" in ended[0]
        assert wait_for(lambda: store.frontier(0), what="the reader goes on") == 2
        bystander.execute("select 1")
        with pytest.raises(psycopg.OperationalError):
            idle.execute("select 1")
    store.close()
