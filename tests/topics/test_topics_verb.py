"""`tallymark topics create | check` on real brokers."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from tallymark.broker import topics
from tallymark.broker.kafka import AdminClient
from tests.cli.conftest import Run
from tests.conftest import MakeTopic


@pytest.fixture
def name(admin: AdminClient) -> Iterator[str]:
    chosen = f"topics-verb-{uuid.uuid4().hex[:8]}"
    yield chosen
    for future in admin.delete_topics([chosen]).values():
        future.exception(30)  # most tests refuse to make it


def test_create_makes_a_safe_topic_once(
    run: Run, bootstrap_servers: str, admin: AdminClient, name: str
) -> None:
    create = ("topics", "create", name, "--partitions", "4", "--bootstrap-servers", bootstrap_servers)
    first = run(*create, "--json")
    assert (first.code, first.json["topics"]) == (0, [{"name": name, "created": True, "partitions": 4}])
    facts = topics.describe(admin, [name], patience=10)[name]
    assert (facts.partitions, facts.replication_factor, facts.min_insync_replicas) == (4, 3, 2)
    assert (facts.unclean_election, facts.cleanup_policy) == (False, "delete")
    assert len(facts.topic_id) == 22
    again = run(*create)
    assert (again.code, again.out) == (0, f"{name}: exists, as asked: left alone\n")
    more = run(*create[:4], "5", *create[5:])
    assert more.code == 1
    assert "exists and differs: partitions is 4, not 5" in more.err


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        (["--replication-factor", "1"], "replication.factor"),
        (["--config", "min.insync.replicas=1"], "min.insync.replicas"),
        (["--config", "unclean.leader.election.enable=true"], "unclean.leader.election.enable"),
        (["--config", "cleanup.policy=compact"], "cleanup.policy"),
    ],
)
def test_create_refuses_what_loses_messages(
    run: Run, bootstrap_servers: str, admin: AdminClient, name: str, *, options: list[str], rule: str
) -> None:
    refused = run("topics", "create", name, *options, "--bootstrap-servers", bootstrap_servers)
    assert refused.code == 1
    assert f"--accept-risk {rule}" in refused.err
    assert topics.describe(admin, [name]) == {}


def test_an_accepted_risk_is_taken_and_check_still_names_it(
    run: Run, bootstrap_servers: str, name: str
) -> None:
    at = ("--bootstrap-servers", bootstrap_servers, "--json")
    risks = ("--accept-risk", "replication.factor", "--accept-risk", "min.insync.replicas")
    made = run("topics", "create", name, "--replication-factor", "1", *risks, *at)
    assert (made.code, made.json["accepted_risks"]) == (0, ["replication.factor", "min.insync.replicas"])
    checked = run("topics", "check", name, *at)
    assert (checked.code, checked.json["ok"]) == (1, False)
    assert {each["rule"] for each in checked.json["findings"]} == {
        "replication.factor",
        "min.insync.replicas",
    }
    accepted = run("topics", "check", name, *risks, *at)
    assert (accepted.code, accepted.json["ok"], accepted.json["findings"]) == (0, True, [])


def test_check_finds_settings_that_were_changed_later(
    run: Run, bootstrap_servers: str, make_topic: MakeTopic
) -> None:
    sound = make_topic()
    unclean = make_topic(unclean_leader_election_enable="true")
    at = ("--bootstrap-servers", bootstrap_servers)
    assert run("topics", "check", sound, *at).code == 0
    found = run("topics", "check", sound, unclean, *at)
    assert found.code == 1
    assert unclean in found.out
    assert "unclean.leader.election.enable" in found.out


def test_a_missing_topic_is_a_problem(run: Run, bootstrap_servers: str, name: str) -> None:
    found = run("topics", "check", name, "--bootstrap-servers", bootstrap_servers, "--json")
    assert (found.code, found.json["missing"]) == (1, [name])


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["bad name!"], 2, "contains one or more characters"),
        (["x", "--config", "retention"], 2, "is not NAME=VALUE"),
        (["x", "--config", "retention.mss=1"], 2, "Unknown topic config name"),
        (["x", "--config", "min.insync.replicas=two"], 2, "must be a whole number"),
        (["x", "--accept-risk", "replication"], 2, "Did you mean replication.factor?"),
        (["x", "--partitions", "0"], 2, "--partitions"),
        (["x", "--replication-factor", "4"], 1, "too few brokers for 4 copies"),
    ],
)
def test_bad_input(run: Run, bootstrap_servers: str, arguments: list[str], code: int, said: str) -> None:
    ran = run("topics", "create", *arguments, "--bootstrap-servers", bootstrap_servers)
    assert (ran.code, said in ran.err) == (code, True), ran.err
    assert "Traceback" not in ran.err
