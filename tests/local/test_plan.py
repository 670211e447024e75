"""What a cluster is to be, decided without starting anything."""

from __future__ import annotations

import socket
import stat
from pathlib import Path

import pytest

from tallymark.errors import Problem, Unreachable, UsageError
from tallymark.local import brokerfiles
from tallymark.local.home import Home, Listener
from tallymark.local.java import find_java
from tallymark.local.plan import Wish, move_taken_ports, new_record, refuse_unless_same, same_voters

SILENT = lambda _: None  # noqa: E731 - a report that nobody reads


def test_a_record_survives_the_disk_and_is_private(tmp_path: Path) -> None:
    home = Home(tmp_path)
    secure = Listener("SECURE", "SASL_SSL", {"ssl.keystore.password": "hidden-thing"})
    record = new_record(Wish(3, 18, (secure,), {"log.retention.ms": "5"}))
    home.save(record)
    assert home.load() == record
    assert stat.S_IMODE(home.record_file.stat().st_mode) == 0o600
    assert "hidden-thing" not in repr(record)
    assert len(record.ports()) == 3 * 3 + 1


@pytest.mark.parametrize("text", ["", "{}", '{"format": 99}', "[1]"])
def test_a_damaged_record_says_how_to_start_afresh(tmp_path: Path, text: str) -> None:
    (tmp_path / "cluster.json").write_text(text)
    with pytest.raises(Problem, match="damaged") as raised:
        Home(tmp_path).load()
    assert "--wipe" in raised.value.remedy


def test_only_taken_ports_of_absent_servers_move() -> None:
    record = new_record(Wish(3, 18))
    with socket.socket() as other:
        other.bind(("127.0.0.1", record.brokers[0].controller))
        other.listen()
        assert move_taken_ports(record, [], SILENT) == record
        said: list[str] = []
        moved = move_taken_ports(record, ["broker-1", "broker-2", "postgres"], said.append)
    assert moved.brokers[1:] == record.brokers[1:]
    assert moved.brokers[0].client == record.brokers[0].client
    assert moved.brokers[0].controller not in record.ports()
    assert not same_voters(moved, record)
    assert "taken by another program" in said[0]


def test_a_home_keeps_its_shape(tmp_path: Path) -> None:
    record = new_record(Wish(3, 18))
    for same in (Wish(None, None), Wish(3, 18)):
        refuse_unless_same(record, same, tmp_path)
    for other in (Wish(1, None), Wish(None, 16), Wish(None, 0)):
        with pytest.raises(UsageError, match="was made with"):
            refuse_unless_same(record, other, tmp_path)


@pytest.mark.parametrize(("brokers", "copies", "in_sync"), [(3, "3", "2"), (2, "2", "1"), (1, "1", "1")])
def test_settings_are_as_safe_as_the_number_of_brokers_allows(
    brokers: int, copies: str, in_sync: str
) -> None:
    settings = brokerfiles.properties(new_record(Wish(brokers, 0)), 1, Path("data"), {})
    assert settings["default.replication.factor"] == copies
    assert settings["offsets.topic.replication.factor"] == copies
    assert settings["transaction.state.log.replication.factor"] == copies
    assert settings["min.insync.replicas"] == in_sync
    assert settings["transaction.state.log.min.isr"] == in_sync
    assert settings["unclean.leader.election.enable"] == "false"
    assert settings["auto.create.topics.enable"] == "false"


def test_overrides_win_and_properties_are_escaped() -> None:
    record = new_record(Wish(1, 0, (), {"a": "1", "b": "1"}))
    settings = brokerfiles.properties(record, 1, Path("data"), {"b": "2"})
    assert (settings["a"], settings["b"]) == ("1", "2")
    assert brokerfiles.render_properties({"x": "C:\\y\nz"}) == "x=C:\\\\y\\nz\n"


def test_java_of_a_wrong_version_is_named_and_a_fit_one_is_taken(tmp_path: Path) -> None:
    old = tmp_path / "java"
    old.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\" 2019-01-15' >&2\n")
    old.chmod(0o755)
    with pytest.raises(Unreachable, match=r"is Java 11") as raised:
        find_java([old, tmp_path / "absent"])
    assert "Install Java 17 to 21" in raised.value.remedy
    assert find_java([old, find_java().executable]).major >= 17


def test_a_home_that_cannot_be_written_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be written"):
        Home(tmp_path / "file" / "home").prepare()
