"""The durable local queue: the same relay and promises over one file, whatever kills the process."""

from __future__ import annotations

import signal
import sqlite3
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest

from tallymark.errors import Problem
from tallymark.store.sqlite.retention import SqliteRetention
from tallymark.store.sqlite.schema import create
from tallymark.store.stores import stores_for
from tests.conftest import MakeTopic
from tests.store.sqliteground import OUTBOX, logged, relay, sent, writing
from tests.waiting import wait_for


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "edge.db"
    create(path)
    return path


@pytest.mark.parametrize("crash_point", ["relay.after_claim", "relay.before_mark:2", "relay.after_mark"])
def test_killed_anywhere_nothing_is_lost_doubled_or_late(
    path: Path, bootstrap_servers: str, make_topic: MakeTopic, crash_point: str
) -> None:
    """P1, P2, P3: kill -9, start again, compare file and log by id. A cold start waits for no lease."""
    topic = make_topic(1)
    with writing(path) as tx:
        ids = [str(OUTBOX.add(tx, topic, {"n": n}, key="k")) for n in range(200)]
    with relay(path, bootstrap_servers, crash_point=crash_point, lease_s=600) as first:
        assert first.wait() == -signal.SIGKILL, first.output
    with writing(path) as tx:
        ids += [str(OUTBOX.add(tx, topic, {"n": n}, key="k")) for n in range(200, 300)]
    with relay(path, bootstrap_servers, lease_s=600) as second:
        wait_for(lambda: sent(path) >= 300, what="all are sent")
        second.terminate()
        assert second.wait() == 0, second.output
    assert logged(bootstrap_servers, topic, 300) == ids
    with writing(path) as tx:
        assert {str(OUTBOX.state(tx, id_)) for id_ in ids} == {"sent"}


def test_a_second_relay_is_refused_and_told_who_has_the_file(
    path: Path, bootstrap_servers: str, make_topic: MakeTopic
) -> None:
    with relay(path, bootstrap_servers) as first:
        first.wait_output("guarantees")
        wait_for(lambda: len(_relays(path)) == 1, what="the first has joined")
        owner, pid = _relays(path)[0]
        assert pid == first.pid
        with relay(path, bootstrap_servers) as second:
            assert second.wait() == 1
            assert f"is served by relay {owner} (pid {pid}" in second.output
        first.terminate()
        assert first.wait() == 0
    assert _relays(path) == []


def _relays(path: Path) -> list[tuple[str, int]]:
    with closing(sqlite3.connect(path, timeout=20)) as connection:
        return connection.execute("select owner, pid from tallymark_relays").fetchall()


def test_the_file_is_free_when_its_holder_lets_go(path: Path) -> None:
    url = f"sqlite:///{path}"
    first = stores_for(url, keep=timedelta(days=7))
    with pytest.raises(Problem, match="is served by"):
        stores_for(url, keep=timedelta(days=7))
    first.close()
    stores_for(url, keep=timedelta(days=7)).close()


def test_retention_deletes_what_was_sent_and_nothing_else(path: Path) -> None:
    with writing(path) as tx:
        for n in range(10):
            OUTBOX.add(tx, "t", n, key="k")
        tx.execute("update tallymark_lanes set covered = 6")
        tx.execute("update tallymark_outbox set created_at = created_at - 7200 where position <= 8")
    assert SqliteRetention(str(path), keep=timedelta(hours=3)).run_once() == 0
    assert SqliteRetention(str(path), keep=timedelta(hours=1)).run_once() == 6
    with writing(path) as tx:
        assert [p for (p,) in tx.execute("select position from tallymark_outbox")] == [7, 8, 9, 10]
        tx.execute(
            "insert into tallymark_topic_holds (lane, topic, state, from_position, reason) values (0,'t','held',0,'')"
        )
        tx.execute("update tallymark_lanes set covered = 8")
    assert SqliteRetention(str(path), keep=timedelta(hours=1)).run_once() == 0, "a held topic needs its rows"


def test_positions_never_come_twice_after_everything_was_deleted(path: Path) -> None:
    with writing(path) as tx:
        OUTBOX.add(tx, "t", 1)
        tx.execute("delete from tallymark_outbox")
        OUTBOX.add(tx, "t", 2)
        assert tx.execute("select position from tallymark_outbox").fetchall() == [(2,)]
