"""A real standalone Spark beside a home: found again, counted in status, ended by down; and jobs on it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tallymark.errors import UsageError
from tallymark.local.cluster import LocalCluster
from tallymark.local.process import State
from tallymark.local.spark import alive_workers
from tests.waiting import wait_for


@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
    # Spark alone: no brokers, no PostgreSQL.
    folder = Path(tempfile.mkdtemp(prefix="tallymark-spark-"))
    yield folder
    LocalCluster(folder).down(wipe=True)
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def standing(home: Path) -> LocalCluster:
    made = LocalCluster(home, brokers=0, postgres=0, spark=True)
    made.up()
    return made


def page(standing: LocalCluster) -> int:
    return int(json.loads(standing.spark.file.read_text())["master"]["page"])


@pytest.mark.full
def test_master_and_workers_are_processes_of_their_own(standing: LocalCluster, home: Path) -> None:
    names = {each.name: each for each in standing.status().processes}
    assert set(names) == {"spark-master", "spark-worker-1", "spark-worker-2"}
    assert all(each.state is State.RUNNING for each in names.values())
    assert len({each.pid for each in names.values()}) == 3
    assert standing.status().healthy
    assert alive_workers(page(standing)) == 2
    # Another process finds them, and starts nothing twice.
    again = LocalCluster(home)
    assert {each.pid for each in again.up().processes} == {each.pid for each in names.values()}
    assert again.spark.url == standing.spark.url


@pytest.mark.full
def test_a_worker_that_was_killed_is_seen_and_comes_back(standing: LocalCluster) -> None:
    standing.process("spark-worker-1").kill()
    assert not standing.status().healthy
    wait_for(lambda: alive_workers(page(standing)) == 1, what="the master has noticed")
    standing.up()
    assert standing.status().healthy
    assert alive_workers(page(standing)) == 2


@pytest.mark.full
def test_down_ends_all_of_it_and_a_home_without_it_has_none(standing: LocalCluster, home: Path) -> None:
    pids = [each.pid for each in standing.status().processes]
    assert standing.down() == ["spark-master", "spark-worker-1", "spark-worker-2"]
    assert not [pid for pid in pids if pid and psutil.pid_exists(pid)]
    seen = subprocess.run(
        [sys.executable, "-m", "tallymark", "local", "status", "--home", str(home), "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert {each["state"] for each in json.loads(seen.stdout)["processes"]} == {"stopped"}
    with tempfile.TemporaryDirectory() as other:
        plain = LocalCluster(other)
        assert not plain.spark.wanted
        with pytest.raises(UsageError, match="there is no Spark"):
            _ = plain.spark.url
