"""`--database sqlite:///path`: init, status, show, failed, pause; and what is refused there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Run, run
from tests.store.sqliteground import OUTBOX, writing

__all__ = ["run"]  # the fixture


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'edge.db'}"


def test_init_twice_the_second_changes_nothing(run: Run, url: str) -> None:
    first = run("init", "--database", url, "--json").json
    second = run("init", "--database", url, "--json").json
    assert (first["applied"], second["applied"]) == (["outbox"], [])
    assert first["outbox_id"] == second["outbox_id"]


def test_a_dry_run_makes_no_file(run: Run, url: str, tmp_path: Path) -> None:
    ran = run("init", "--database", url, "--dry-run")
    assert "create table if not exists tallymark_outbox" in ran.out
    assert not (tmp_path / "edge.db").exists()


def test_status_show_and_list(run: Run, url: str, tmp_path: Path) -> None:
    with writing(tmp_path / "edge.db") as tx:
        id_ = OUTBOX.add(tx, "t", "v", key="k")
    status = run("relay", "status", "--database", url, "--json").json
    assert (status["backlog"], status["lane_count"], status["floors"]) == (1, 1, [])
    assert run("relay", "status", "--database", url).code == 0
    shown = run("outbox", "show", str(id_), "--database", url, "--json").json
    assert (shown["state"], shown["key"], shown["position"]) == ("pending", "k", 1)
    (listed,) = run("outbox", "list", "--database", url, "--json").json
    assert listed == shown


def test_failed_messages_are_retried_or_discarded_with_an_audit(run: Run, url: str, tmp_path: Path) -> None:
    path = tmp_path / "edge.db"
    with writing(path) as tx:
        first, second = (str(OUTBOX.add(tx, "t", "v", key="k")) for _ in range(2))
        tx.execute(
            "insert into tallymark_parked (position, id, topic, key, value, headers, created_at, state, reason, batch)"
            " select position, id, topic, key, value, headers, created_at, 'failed', 'too large', 0"
            " from tallymark_outbox"
        )
    listed = run("failed", "list", "--database", url, "--json").json
    assert [(each["id"], each["reason"]) for each in listed] == [(first, "too large"), (second, "too large")]
    assert run("failed", "show", first, "--database", url, "--json").json["id"] == first
    assert run("failed", "retry", first, "--database", url).code == 0
    assert run("failed", "discard", second, "--yes", "--reason", "a test", "--database", url).code == 0
    with writing(path) as tx:
        assert tx.execute("select state from tallymark_parked order by position").fetchall() == [
            ("retrying",),
            ("discarded",),
        ]
        assert tx.execute("select action, subject, reason from tallymark_audit order by seq").fetchall() == [
            ("failed.retry", first, ""),
            ("failed.discard", second, "a test"),
        ]


def test_pause_and_resume(run: Run, url: str) -> None:
    run("init", "--database", url)
    assert run("relay", "pause", "--database", url, "--json").json == {"paused": [0]}
    assert run("relay", "pause", "--database", url, "--json").json == {"paused": []}
    assert run("relay", "resume", "--database", url, "--json").json == {"resumed": [0]}


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["init", "--role", "consumer"], 2, "SQLite holds an outbox, not an inbox"),
        (["init", "--lanes", "4"], 2, "has one lane"),
        (["init", "--grants"], 2, "no roles"),
        (["relay", "lanes", "4"], 2, "has one lane"),
        (["relay", "status"], 1, "there is no file"),
        (["outbox", "show", "01998877-0000-7000-8000-000000000000"], 3, "cannot be opened"),
    ],
)
def test_what_cannot_be_is_said(
    run: Run, url: str, tmp_path: Path, arguments: list[str], code: int, said: str
) -> None:
    ran = run(*arguments, "--database", url)
    assert (ran.code, said in ran.err) == (code, True), ran.err
    assert not (tmp_path / "edge.db").exists()


def test_a_file_that_is_no_database(run: Run, url: str, tmp_path: Path) -> None:
    (tmp_path / "edge.db").write_bytes(b"something else entirely, long enough to be read as a header" * 100)
    ran = run("init", "--database", url)
    assert (ran.code, "is not an SQLite database" in ran.err) == (2, True), ran.err


def test_a_folder_that_is_not_there(run: Run) -> None:
    ran = run("init", "--database", "sqlite:////no/such/folder/edge.db")
    assert (ran.code, "cannot be opened" in ran.err) == (3, True), ran.err


@pytest.mark.parametrize("name", ["what?.db", "no #1.db", "100%.db", "a%41.db", "?mode=rwc"])
def test_a_path_with_signs_that_mean_something_in_a_uri(run: Run, tmp_path: Path, name: str) -> None:
    url = f"sqlite:///{tmp_path / name}"
    with writing(tmp_path / name) as tx:
        id_ = OUTBOX.add(tx, "t", "v", key="k")
    ran = run("outbox", "show", str(id_), "--database", url, "--json")
    assert (ran.code, ran.code or ran.json["state"]) == (0, "pending"), ran.err
