"""Rolling upgrades: code of version N runs on a schema of N and N+1; anything newer, and anything older, is refused."""

from __future__ import annotations

import re
from enum import StrEnum

import psycopg
import pytest

from tallymark.errors import SchemaMismatch, UsageError
from tallymark.lifecycle import (
    ApplicationOutcome,
    BatchState,
    DeadState,
    HoldState,
    OwnerKind,
    ParkedState,
    QueueState,
    Role,
)
from tallymark.store.postgres.migrations import known, migrate
from tallymark.store.postgres.relaystore import PostgresRelayStore

NEWEST = max(migration.version for migration in known())


def pretend(database: str, version: int) -> None:
    with psycopg.connect(database) as tx:
        tx.execute(
            "insert into tallymark.migrations (version, name, role) values (%s, 'later', 'both')", [version]
        )


def identity(database: str) -> str:
    store = PostgresRelayStore(database)
    try:
        return store.identity().outbox_id
    finally:
        store.close()


def test_the_next_version_is_run_on(database: str) -> None:
    made = migrate(database, role=Role.PRODUCER)
    pretend(database, NEWEST + 1)
    assert identity(database) == made.outbox_id
    assert migrate(database, role=Role.PRODUCER).applied == ()


def test_a_database_in_another_encoding_is_refused(database: str) -> None:
    """What is written in UTF-8 would not be found again there."""
    with psycopg.connect(database, autocommit=True) as tx:
        name = f"{tx.info.dbname}_latin1"
        tx.execute(f"create database {name} encoding 'LATIN1' locale 'C' template template0")
        try:
            with pytest.raises(UsageError, match="is encoded in LATIN1, not in UTF8"):
                migrate(database.replace(tx.info.dbname, name), role=Role.CONSUMER)
        finally:
            tx.execute(f"drop database {name} with (force)")


def test_a_version_beyond_that_is_refused_with_what_to_do(database: str) -> None:
    migrate(database, role=Role.PRODUCER)
    pretend(database, NEWEST + 2)
    with pytest.raises(SchemaMismatch, match=f"has version {NEWEST + 2}") as refused:
        identity(database)
    assert "upgrade Tallymark" in refused.value.remedy
    with pytest.raises(SchemaMismatch):
        migrate(database, role=Role.PRODUCER)


def test_a_schema_for_another_role_is_refused_with_the_command_that_helps(database: str) -> None:
    migrate(database, role=Role.CONSUMER)
    with pytest.raises(SchemaMismatch, match="has no tables for a producer") as refused:
        identity(database)
    assert "tallymark init --role producer" in refused.value.remedy


def test_a_missing_schema_is_refused_with_the_command_that_helps(database: str) -> None:
    with pytest.raises(SchemaMismatch, match="there is no schema tallymark") as refused:
        identity(database)
    assert "tallymark init" in refused.value.remedy
    assert f"in database {psycopg.conninfo.conninfo_to_dict(database)['dbname']} at " in str(refused.value)
    assert refused.value.remedy in refused.value.__notes__, "a traceback says what to do, too"


def test_a_schema_of_an_earlier_version_is_named(database: str) -> None:
    migrate(database, role=Role.PRODUCER)
    with psycopg.connect(database) as connection:
        connection.execute("delete from tallymark.migrations where version = 11")
    with pytest.raises(SchemaMismatch, match="older than this Tallymark: it lacks migration 11"):
        identity(database)


def test_a_second_role_adds_what_is_missing(database: str) -> None:
    migrate(database, role=Role.CONSUMER)
    assert "0002_outbox" in migrate(database, role=Role.PRODUCER).applied


@pytest.mark.parametrize(
    ("column", "states"),
    [
        ("batches.state", BatchState),
        ("parked.state", ParkedState),
        ("topic_holds.state", HoldState),
        ("queue.state", QueueState),
        ("dead_letters.state", DeadState),
        ("applications.outcome", ApplicationOutcome),
        ("positions.owner_kind", OwnerKind),
    ],
)
def test_the_database_enforces_the_same_states(database: str, column: str, states: type[StrEnum]) -> None:
    table, _, name = column.partition(".")
    migrate(database, role=Role.BOTH)
    with psycopg.connect(database) as tx:
        checks = tx.execute(
            "select pg_get_constraintdef(oid) from pg_constraint where conrelid = %s::regclass and contype = 'c'",
            [f"tallymark.{table}"],
        ).fetchall()
    (of_states,) = [text for (text,) in checks if text.startswith(f"CHECK (({name} = ANY")]
    assert set(re.findall(r"'([a-z-]+)'::text", of_states)) == {state.value for state in states}
