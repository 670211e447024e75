"""A connection that PostgreSQL ends at once, or whose network goes silent: in our words, and in time."""

from __future__ import annotations

import socket
from typing import Any

import psycopg
import pytest

from tallymark.errors import Unreachable
from tallymark.store.postgres.connection import Connection, connect
from tallymark.store.postgres.migrations import migrate
from tallymark.store.postgres.relaystore import PostgresRelayStore


def _end(url: str, connection: Connection) -> None:
    with psycopg.connect(url, autocommit=True) as other:
        other.execute("select pg_terminate_backend(%s, 5000)", [connection.info.backend_pid])


class _EndedAtOnce(psycopg.Connection[tuple[Any, ...]]):
    """PostgreSQL is stopped just after it let us in."""

    @classmethod
    def connect(cls, conninfo: str = "", **given: Any) -> Any:
        connection = super().connect(conninfo, **given)
        _end(conninfo, connection)
        return connection


def test_a_server_that_goes_just_after_it_let_us_in_is_unreachable(database: str) -> None:
    with pytest.raises(Unreachable):
        connect(database, application="tests", kind=_EndedAtOnce)


def test_and_so_is_one_that_goes_before_the_schema_was_looked_at(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    migrate(database, lanes=1, partitions_ahead=2)
    store = PostgresRelayStore(database)

    def and_gone(url: str, **given: Any) -> Connection:
        connection = connect(url, **given)
        _end(url, connection)
        return connection

    with monkeypatch.context() as patched:
        patched.setattr(store._db, "_connect", and_gone)
        with pytest.raises(Unreachable):
            store.identity()
    assert store.identity().lanes == 1
    store.close()


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="TCP has no such time-out here")
def test_what_is_never_acknowledged_ends_the_connection(database: str) -> None:
    """A peer that vanished while a statement was on its way: keepalives are silent then."""
    with connect(database, application="tests") as connection:
        wire = socket.socket(fileno=connection.fileno())
        try:
            assert wire.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 25_000
        finally:
            wire.detach()


@pytest.mark.parametrize(("default", "ours"), [("off", "on"), ("remote_apply", "remote_apply")])
def test_a_commit_of_ours_waits_for_the_disk_whatever_the_database_says(
    database: str, default: str, ours: str
) -> None:
    """Else a claim that Kafka's commit followed could be gone after a crash."""
    with psycopg.connect(database, autocommit=True) as owner:
        name = owner.info.dbname
        owner.execute(f'alter database "{name}" set synchronous_commit = {default}'.encode())
    with connect(database, application="tests") as connection:
        assert connection.execute("show synchronous_commit").fetchone() == (ours,)
