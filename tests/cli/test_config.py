"""`tallymark config`: effective settings, where each came from, and no secret."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Run


def test_every_setting_with_its_source(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tallymark.toml").write_text(
        '[kafka]\nclient = { "sasl.password" = "hunter22" }\n[databases.bank]\nurl = "postgresql://u:pa55word@h/b"\n'
    )
    monkeypatch.setenv("TALLYMARK_RELAY__MODE", "sync")
    ran = run("config", "--bootstrap-servers", "a:9092", "--json")
    assert ran.code == 0
    found = {each["name"]: (each["value"], each["source"]) for each in ran.json["settings"]}
    assert found["kafka.bootstrap_servers"] == ("a:9092", "flag")
    assert found["relay.mode"] == ("sync", "environment")
    assert found["databases.bank.url"] == ("postgresql://u:********@h/b", "file")
    assert found['kafka.client."sasl.password"'] == ("********", "file")
    assert found["relay.retention"] == ("7d", "default")
    assert ran.json["file"] == str(tmp_path / "tallymark.toml")
    for shown in (ran.out, run("config").out):
        assert "hunter22" not in shown
        assert "pa55word" not in shown


def test_for_people(run: Run) -> None:
    lines = run("config", "--database", "postgresql://u:s3cretpw@h/b").out.splitlines()
    database = next(line.split() for line in lines if line.split()[:1] == ["database"])
    assert database == ["database", "postgresql://u:********@h/b", "--database"]


def test_a_file_elsewhere(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = tmp_path / "other.toml"
    elsewhere.write_text('schema_name = "elsewhere"')
    assert "elsewhere" in run("--config", str(elsewhere), "config").out
    monkeypatch.setenv("TALLYMARK_CONFIG", str(elsewhere))
    assert "elsewhere" in run("config").out


def test_a_wrong_type_in_the_file(run: Run, tmp_path: Path) -> None:
    (tmp_path / "tallymark.toml").write_text("[relay]\nbatch_messages = [1]\n")
    ran = run("config")
    assert ran.code == 2
    assert ran.err.startswith(f"error: {tmp_path / 'tallymark.toml'}:2: relay.batch_messages should be")
    assert len(ran.err.splitlines()) == 2
