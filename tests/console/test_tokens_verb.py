"""`tallymark tokens`: shown once, kept as a hash, listed without themselves, revoked at once."""

from __future__ import annotations

import hashlib
from datetime import timedelta

import psycopg
import pytest

from tallymark.errors import SchemaMismatch, UsageError
from tallymark.lifecycle import Role, TokenRole
from tallymark.observe.masking import mask
from tallymark.store.postgres.migrations import migrate
from tallymark.store.postgres.tokens import Tokens, fresh
from tests.cli.conftest import Run, run

__all__ = ["run"]


@pytest.fixture
def prepared(database: str) -> str:
    migrate(database, role=Role.PRODUCER)
    return database


def test_a_token_is_shown_once_and_kept_as_a_hash(prepared: str, run: Run) -> None:
    made = run("tokens", "create", "--role", "viewer", "--name", "grafana", "--database", prepared)
    assert made.code == 0, made.err
    token = made.out.strip()
    assert token.startswith("tmk_")
    assert "not shown again" in made.err
    with psycopg.connect(prepared) as connection:
        rows = connection.execute("select name, role, hash, expires_at from tallymark.api_tokens").fetchall()
        kept = connection.execute("select to_json(t)::text from tallymark.api_tokens t").fetchall()
        audit = connection.execute("select action, subject from tallymark.audit").fetchall()
    assert rows == [("grafana", "viewer", hashlib.sha256(token.encode()).digest(), None)]
    assert token not in str(kept)
    assert audit == [("tokens.create", "token grafana")]
    listed = run("tokens", "list", "--database", prepared, "--json")
    assert token not in listed.out
    assert [each["name"] for each in listed.json] == ["grafana"]


def test_as_json_with_a_time_of_its_end(prepared: str, run: Run) -> None:
    made = run("tokens", "create", "--role", "admin", "--expires", "90d", "--database", prepared, "--json")
    assert made.json["token"].startswith("tmk_")
    assert made.json["role"] == made.json["name"] == "admin"
    with psycopg.connect(prepared) as connection:
        row = connection.execute("select expires_at - created_at from tallymark.api_tokens").fetchone()
    assert row is not None
    assert abs(row[0] - timedelta(days=90)) < timedelta(seconds=1)


def test_revoked_by_name_or_number_and_only_once(prepared: str, run: Run) -> None:
    for name in ("one", "two"):
        run("tokens", "create", "--role", "viewer", "--name", name, "--database", prepared)
    assert run("tokens", "revoke", "one", "--reason", "left", "--database", prepared).code == 0
    assert run("tokens", "revoke", "2", "--database", prepared, "--json").json["name"] == "two"
    again = run("tokens", "revoke", "one", "--database", prepared)
    assert again.code == 1
    assert "no token one is in use" in again.err
    # The name is free again.
    assert run("tokens", "create", "--role", "viewer", "--name", "one", "--database", prepared).code == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--role", "king"), "king"),
        (("--role", "viewer", "--expires", "soon"), "--expires must be written like"),
        (("--role", "viewer", "--expires", "0s"), "from a moment to ten years"),
        (("--role", "viewer", "--expires", "99999999999d"), "--expires"),
        (("--role", "viewer", "--name", "a b"), "is not a token's name"),
        (("--role", "viewer", "--name", "7"), "not a number"),
    ],
)
def test_wrong_input_is_told_in_a_line_or_two(
    prepared: str, run: Run, arguments: tuple[str, ...], said: str
) -> None:
    told = run("tokens", "create", *arguments, "--database", prepared)
    assert told.code == 2, told.err
    assert said in told.err
    assert "Traceback" not in told.err


def test_a_name_that_is_in_use_is_refused(prepared: str) -> None:
    tokens = Tokens(prepared)
    tokens.create("grafana", TokenRole.VIEWER, who="tests")
    with pytest.raises(UsageError, match="in use"):
        tokens.create("grafana", TokenRole.ADMIN, who="tests")


def test_without_the_schema_the_command_that_helps_is_named(database: str) -> None:
    with pytest.raises(SchemaMismatch) as refused:
        Tokens(database).all()
    assert "tallymark init" in refused.value.remedy


def test_a_token_is_masked_wherever_it_turns_up() -> None:
    token = fresh()
    assert token not in mask(f"GET /x Authorization: Bearer {token} and again {token}.")
