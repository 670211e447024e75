"""README and Start, followed to the letter on the real cluster: producer and consumer of one's own work."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tallymark.broker.kafka import AdminClient
from tallymark.local.cluster import LocalCluster
from tallymark.settings import load
from tests.docs.follower import Reader, reader_environment
from tests.docs.pages import ROOT, blocks

README, START = ROOT / "README.md", ROOT / "docs" / "start.md"
DATABASES = ("bank", "ledger")


@pytest.fixture
def reader(cluster: LocalCluster, admin: AdminClient, tmp_path: Path) -> Iterator[Reader]:
    topic = f"transfers_{uuid.uuid4().hex[:8]}"
    for name in DATABASES:  # a run that was killed may have left them
        cluster.drop_database(name)
    made = Reader(tmp_path, {"transfers": topic}, reader_environment(cluster.home.path))
    try:
        yield made
    finally:
        made.close()
        for name in DATABASES:
            cluster.drop_database(name)
        admin.delete_topics([topic])[topic].exception(30)


def balances(url: str) -> dict[str, int]:
    with psycopg.connect(url) as tx:
        return dict(tx.execute("select name, balance from account").fetchall())


def is_applied(reader: Reader) -> None:
    assert {"bank.py", "app.py", "tables.py"} <= {each.name for each in reader.folder.iterdir()}
    for name in ("BANK", "LEDGER"):
        assert balances(reader.environment[name]) == {"alice": 95, "bob": 5}
    assert len(reader.terminals) == 2


def test_readme_followed_to_the_letter_applies_a_first_message(reader: Reader) -> None:
    reader.follow(README)
    is_applied(reader)


@pytest.mark.full
@pytest.mark.timeout(600)
def test_readme_followed_to_its_end_counts_ingests_and_archives(reader: Reader) -> None:
    reader.slow = True
    reader.follow(README)
    is_applied(reader)
    assert "nothing is missing" in reader.said["tallymark tally run"]
    assert (reader.folder / "archive").is_dir()


@pytest.mark.full
@pytest.mark.timeout(300)
def test_start_followed_to_the_letter_applies_it_and_accounts_for_it(reader: Reader) -> None:
    reader.slow = True
    reader.follow(START)
    is_applied(reader)
    told = reader.said["tallymark tally run"]
    assert "1 message in" in told
    assert "nothing is missing" in told


def test_the_settings_that_start_shows_are_settings(tmp_path: Path) -> None:
    text = "".join(code.text for code in blocks(START) if code.kind == "toml")
    (tmp_path / "tallymark.toml").write_text(text)
    settings = load(environ={}, directory=tmp_path).settings
    assert set(settings.databases) == set(DATABASES)
    assert settings.kafka.bootstrap_servers == "kafka-1:9092,kafka-2:9092"
    assert settings.relay.accept_risk == ("replication.factor", "min.insync.replicas")
