"""A broker with the JMX agent tells what dashboard and alerts use."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
import pytest

from tallymark.errors import Problem
from tallymark.local.cluster import LocalCluster
from tallymark.local.home import Home
from tallymark.local.jmx import RULES, SERIES, VERSION, Agents
from tests.waiting import wait_for


def test_ports_are_kept_from_one_start_to_the_next(tmp_path: Path) -> None:
    agents = Agents(Home(tmp_path), wanted=True)
    agents.prepare(3, set())
    first = agents.ports()
    assert len(set(first.values())) == 3
    later = Agents(Home(tmp_path), wanted=False)
    assert later.wanted
    later.prepare(3, {1, 2, 3})
    assert later.ports() == first
    (option,) = later.options(2, tmp_path, tmp_path / "jars")
    assert option.startswith(f"-javaagent:{tmp_path}/jars/jmx_prometheus_javaagent-{VERSION}.jar=127.0.0.1:")
    assert str(first[2]) in option
    assert (tmp_path / "jmx.yml").read_text() == RULES


def test_without_the_option_there_is_nothing(tmp_path: Path) -> None:
    agents = Agents(Home(tmp_path), wanted=False)
    agents.prepare(3, set())
    assert (agents.ports(), agents.addresses()) == ({}, [])
    assert agents.options(1, tmp_path, tmp_path) == []


def test_brokers_that_run_without_are_not_restarted_behind_ones_back(tmp_path: Path) -> None:
    with pytest.raises(Problem, match="carry no agent") as refused:
        Agents(Home(tmp_path), wanted=True).prepare(3, {1})
    assert "local down" in refused.value.remedy


@pytest.mark.full
def test_a_real_broker_tells_what_is_used(tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path / "home", brokers=1, postgres=0, jmx=True)
    cluster.up()
    try:
        (address,) = cluster.agents.addresses()
        told = wait_for(
            lambda: httpx.get(f"http://{address}/metrics", timeout=30).text, what="the agent answers"
        )
        names = set(re.findall(r"^(\w+)[{ ]", told, re.MULTILINE))
        assert set(SERIES) <= names, sorted(set(SERIES) - names)
    finally:
        cluster.down(wipe=True)
