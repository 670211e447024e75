"""What a verb connects to: by flag, by name, the only one; a local cluster as a whole or not at all."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tallymark.cli import connections
from tallymark.errors import SettingsError
from tallymark.lifecycle import Role
from tallymark.local.cluster import LocalCluster
from tallymark.settings import load
from tests.cli.conftest import Run

TWO = """
[databases.bank]
url = "postgresql://u:p@h/bank"
role = "producer"
[databases.ledger]
url = "postgresql://u:p@h/ledger"
"""


def url(folder: Path, text: str, name: str | None, role: Role | None = None) -> str:
    (folder / "tallymark.toml").write_text(text)
    chosen = connections.database(load(environ={}, directory=folder).settings, name, role=role)
    return chosen.url.get_secret_value()


def test_a_database_by_name_by_url_and_by_default(tmp_path: Path) -> None:
    assert url(tmp_path, TWO, "ledger") == "postgresql://u:p@h/ledger"
    assert url(tmp_path, TWO, "postgresql://else/where") == "postgresql://else/where"
    assert url(tmp_path, 'database = "bank"\n' + TWO, None) == "postgresql://u:p@h/bank"
    assert url(tmp_path, '[databases.one]\nurl = "host=h dbname=one"', None) == "host=h dbname=one"


def test_the_only_database_of_a_role_is_meant(tmp_path: Path) -> None:
    # ledger says nothing of its role, so it may be both.
    assert url(tmp_path, TWO, None, Role.CONSUMER) == "postgresql://u:p@h/ledger"
    with pytest.raises(SettingsError, match="which database") as asked:
        url(tmp_path, TWO, None, Role.PRODUCER)
    assert "bank | ledger" in asked.value.remedy
    # What was named is meant, whatever its role, and so is the default.
    assert url(tmp_path, TWO, "bank", Role.CONSUMER) == "postgresql://u:p@h/bank"
    assert url(tmp_path, 'database = "bank"\n' + TWO, None, Role.CONSUMER) == "postgresql://u:p@h/bank"
    alone = '[databases.bank]\nurl = "postgresql://u:p@h/bank"\nrole = "producer"\n'
    with pytest.raises(SettingsError, match="no consumer's database in the settings, only bank"):
        url(tmp_path, alone, None, Role.CONSUMER)


@pytest.mark.parametrize(
    ("given", "option"),
    [
        (None, ""),
        ("bank", " --database bank"),
        ("my bank", " --database 'my bank'"),
        ("postgresql://u:s3cretpw@h/d", " --database URL"),
        ("host=h password=s3cretpw", " --database URL"),
    ],
)
def test_a_suggested_command_repeats_no_password(given: str | None, option: str) -> None:
    assert connections.as_given(given) == option


@pytest.mark.parametrize(
    ("name", "what", "remedy"),
    [
        (None, "which database?", "--database bank | ledger"),
        ("legder", "there is no database 'legder'", "Did you mean ledger?"),
        ("shop", "there is no database 'shop'", "[databases.shop]"),
        ("mysql://u:s3cretpw@h/d", "not a postgresql:// URL", "postgresql://"),
    ],
)
def test_a_database_that_cannot_be_told(tmp_path: Path, name: str | None, what: str, remedy: str) -> None:
    with pytest.raises(SettingsError) as caught:
        url(tmp_path, TWO, name)
    assert what in str(caught.value)
    assert remedy in caught.value.remedy
    assert "s3cretpw" not in caught.value.sentence


def test_the_kafka_client_gets_the_pass_through_settings(tmp_path: Path) -> None:
    (tmp_path / "tallymark.toml").write_text(
        '[kafka]\nbootstrap_servers = "a:1"\n[kafka.client]\nsasl.password = "hunter22"\n'
    )
    settings = load(environ={}, directory=tmp_path).settings
    assert connections.kafka_client(settings) == {"bootstrap.servers": "a:1", "sasl.password": "hunter22"}


def test_a_running_local_cluster_is_the_default_as_a_whole(
    run: Run, cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TALLYMARK_HOME", str(cluster.home.path))
    shown = {each["name"]: each for each in run("config", "--json").json["settings"]}
    assert shown["kafka.bootstrap_servers"]["value"] == cluster.bootstrap_servers
    assert shown["kafka.bootstrap_servers"]["source"] == "local cluster"
    assert shown["database"]["source"] == "local cluster"
    assert "********" in shown["database"]["value"]
    assert run("topics", "check", "no-such-topic").code == 1
    # A name that no settings explain is a database on its server.
    named = {
        each["name"]: each["value"] for each in run("config", "--database", "shop", "--json").json["settings"]
    }
    assert named["databases.shop.url"].endswith("/shop")


def test_a_local_cluster_is_never_mixed_with_someones_own(
    run: Run, cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TALLYMARK_HOME", str(cluster.home.path))
    monkeypatch.setenv("TALLYMARK_DATABASE", "postgresql://u:p@production/bank")
    ran = run("topics", "check")
    assert ran.code == 2
    assert "no Kafka is given" in ran.err
    assert "tallymark local env" in ran.err


@pytest.fixture
def two(cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, str]]:
    """Names of two databases that a test may make on the local cluster."""
    monkeypatch.setenv("TALLYMARK_HOME", str(cluster.home.path))
    names = (f"bank_{uuid.uuid4().hex[:8]}", f"ledger_{uuid.uuid4().hex[:8]}")
    yield names
    for name in names:
        cluster.drop_database(name)


def test_what_was_set_up_on_a_local_cluster_is_known_by_name(run: Run, two: tuple[str, str]) -> None:
    """Without settings: verbs that look across stations find all of them."""
    bank, ledger = two
    assert run("init", "--database", bank, "--role", "producer").code == 0
    assert run("init", "--database", ledger, "--role", "consumer").code == 0
    ran = run("trace", "019e2f64-0000-7000-8000-000000000000")
    assert (ran.code, f"in {bank}, {ledger}" in ran.err) == (1, True), ran.err
    # Each verb means the one whose role it is; where two have it, it asks.
    assert run("outbox", "list").code == 0
    assert run("inbox", "status").code == 0
    assert run("init", "--database", ledger, "--role", "producer").code == 0
    ran = run("outbox", "list")
    assert (ran.code, "which database?" in ran.err, bank in ran.err) == (2, True, True), ran.err
    assert run("inbox", "status").code == 0


def test_what_local_env_gave_to_a_shell_is_the_local_cluster(
    run: Run, cluster: LocalCluster, two: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TALLYMARK_BOOTSTRAP_SERVERS", cluster.bootstrap_servers)
    monkeypatch.setenv("TALLYMARK_DATABASE", cluster.postgres.url("tallymark"))
    assert run("init", "--database", two[0], "--role", "producer").code == 0
    assert run("outbox", "list", "--database", two[0]).code == 0


def test_the_url_of_a_local_database_is_for_programs(
    run: Run, cluster: LocalCluster, two: tuple[str, str]
) -> None:
    unmade = run("local", "url", two[0])
    assert (unmade.code, f"tallymark init --database {two[0]} makes it" in unmade.err) == (1, True)
    assert run("init", "--database", two[0], "--role", "producer").code == 0
    exported = run("local", "env").out
    assert "TALLYMARK_HOME=" in exported
    assert "unset TALLYMARK_DATABASE" in exported, (
        "one of its own name is there: an empty third would hide it"
    )
    shown = run("local", "url", two[0])
    with psycopg.connect(shown.out.strip()) as connection:
        assert connection.info.dbname == two[0]
    assert "********" in run("local", "url", two[0], "--json").json["url"]
    assert run("local", "url", "no/name").code == 2


def test_without_a_local_cluster_there_is_no_url(run: Run) -> None:
    ran = run("local", "url", "bank")
    assert (ran.code, "tallymark local up" in ran.err) == (1, True)


@pytest.mark.parametrize("arguments", [("relay", "status"), ("inbox", "status", "--database", "ledger")])
def test_a_local_postgresql_that_does_not_run_is_what_is_wrong(
    cluster: LocalCluster, run: Run, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    """And not the settings: adding a database to them would only hide the local cluster."""
    monkeypatch.setenv("TALLYMARK_HOME", str(cluster.home.path))
    cluster.postgres.stop()
    try:
        ran = run(*arguments)
    finally:
        cluster.postgres.start()
    assert ran.code == 3
    assert "PostgreSQL of the local cluster" in ran.err
    assert "tallymark local up" in ran.err
