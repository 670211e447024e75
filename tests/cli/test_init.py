"""`tallymark init` on a real PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from tallymark.local.cluster import LocalCluster
from tests.cli.conftest import Run


def schemas(url: str) -> set[str]:
    with psycopg.connect(url) as connection:
        return {name for (name,) in connection.execute("select nspname from pg_namespace")}


def test_twice_the_second_changes_nothing(run: Run, database: str) -> None:
    first = run("init", "--database", database, "--json")
    assert first.code == 0
    assert first.json["applied"]
    assert first.json["version_after"] > first.json["version_before"] == 0
    second = run("init", "--database", database, "--json")
    assert (second.code, second.json["applied"]) == (0, [])
    assert second.json["version_before"] == second.json["version_after"] == first.json["version_after"]
    assert second.json["outbox_id"] == first.json["outbox_id"] is not None
    assert "nothing to do" in run("init", "--database", database).out


def test_it_says_what_it_did(run: Run, database: str) -> None:
    ran = run("init", "--database", database, "--role", "producer", "--lanes", "4")
    assert ran.code == 0
    assert ran.out.startswith("schema tallymark: version 0 → ")
    assert "  applied 0001" in ran.out


def test_dry_run_prints_the_sql_and_changes_nothing(
    run: Run, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TALLYMARK_SCHEMA_NAME", "tally_two")
    before = schemas(database)
    ran = run("init", "--database", database, "--dry-run")
    assert ran.code == 0
    assert "tally_two" in ran.out
    assert "create table" in ran.out.lower()
    assert run("init", "--database", database, "--dry-run", "--json").json["sql"]
    assert schemas(database) == before
    assert run("init", "--database", database).code == 0
    assert schemas(database) == before | {"tally_two"}


@pytest.fixture
def stranger(database: str) -> Iterator[str]:
    """The URL of a user who may connect and nothing else."""
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("drop role if exists cli_stranger")
        connection.execute("create role cli_stranger login password 'str4nger'")
    yield make_conninfo(database, user="cli_stranger", password="str4nger")
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("drop role cli_stranger")


def test_no_right_to_create_a_schema(run: Run, database: str, stranger: str) -> None:
    before = schemas(database)
    ran = run("init", "--database", stranger)
    assert ran.code in (1, 3)
    assert ran.err.startswith("error: ")
    assert "Traceback" not in ran.err
    assert "str4nger" not in ran.err
    assert schemas(database) == before


def test_a_wrong_password_is_exit_3_and_is_not_repeated(run: Run, database: str) -> None:
    ran = run("init", "--database", make_conninfo(database, password="wr0ng-one"))
    assert ran.code == 3
    assert "password" in ran.err
    assert "wr0ng-one" not in ran.out + ran.err


def test_nobody_there_is_exit_3(run: Run) -> None:
    ran = run("init", "--database", "postgresql://u:s3cretpw@127.0.0.1:1/x", "--json")
    assert ran.code == 3
    assert "127.0.0.1" in ran.json["error"]
    assert "s3cretpw" not in ran.out + ran.err


def test_a_local_database_is_made_when_it_is_first_set_up(
    run: Run, cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TALLYMARK_HOME", str(cluster.home.path))
    cluster.drop_database("cli_init_shop")
    try:
        assert run("init", "--database", "cli_init_shop", "--json").json["applied"]
        assert run("init", "--database", "cli_init_shop", "--json").json["applied"] == []
    finally:
        cluster.drop_database("cli_init_shop")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--role", "prodcer"], "--role"),
        (["--lanes", "0"], "--lanes"),
        (["--database", "nowhere"], "there is no database 'nowhere'"),
        ([], "no database is given"),
    ],
)
def test_wrong_usage(run: Run, arguments: list[str], said: str) -> None:
    ran = run("init", *arguments)
    assert (ran.code, said in ran.err) == (2, True), ran.err
