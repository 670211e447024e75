"""The safety rules over literal facts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tallymark.broker.safety import (
    SETTINGS,
    Purpose,
    Severity,
    TopicFacts,
    judge,
    refused,
    safe_min_insync,
)
from tallymark.broker.topics import TopicSpec
from tallymark.errors import UsageError

SAFE = TopicFacts(
    name="transfers",
    topic_id="t",
    partitions=6,
    replication_factor=3,
    min_insync_replicas=2,
    unclean_election=False,
    cleanup_policy="delete",
    retention_ms=7 * 24 * 3600 * 1000,
    retention_bytes=-1,
    max_message_bytes=1_048_588,
)


def test_a_safe_topic_has_no_findings() -> None:
    assert judge(SAFE) == []
    assert judge(replace(SAFE, retention_ms=-1)) == []
    assert judge(replace(SAFE, cleanup_policy="compact"), Purpose.RECEIPTS) == []


@pytest.mark.parametrize(
    ("facts", "rule", "found", "severity"),
    [
        (replace(SAFE, replication_factor=2, min_insync_replicas=2), "replication.factor", "2", "refuse"),
        (replace(SAFE, min_insync_replicas=1), "min.insync.replicas", "1", "refuse"),
        (replace(SAFE, min_insync_replicas=3), "min.insync.replicas", "3 of 3", "warn"),
        (replace(SAFE, unclean_election=True), "unclean.leader.election.enable", "true", "refuse"),
        (replace(SAFE, cleanup_policy="compact"), "cleanup.policy", "compact", "refuse"),
        (replace(SAFE, cleanup_policy="compact,delete"), "cleanup.policy", "compact,delete", "refuse"),
        (replace(SAFE, retention_ms=3_600_000), "retention.ms", "3600000", "warn"),
        (replace(SAFE, retention_bytes=10**9), "retention.bytes", "1000000000", "warn"),
        (replace(SAFE, under_replicated=(0, 4)), "replicas", "partitions 0, 4 lag", "warn"),
        (replace(SAFE, leaderless=(1,)), "leaders", "partitions 1 have none", "warn"),
    ],
)
def test_each_rule(facts: TopicFacts, rule: str, found: str, severity: str) -> None:
    first = judge(facts)[0]
    assert (first.topic, first.rule, first.found, first.severity) == ("transfers", rule, found, severity)
    assert first.why
    assert first.safe


def test_receipts_must_be_compacted() -> None:
    (finding,) = judge(SAFE, Purpose.RECEIPTS)
    assert (finding.rule, finding.safe, finding.severity) == ("cleanup.policy", "compact", Severity.REFUSE)


def test_grave_findings_come_first_and_can_be_accepted_by_name() -> None:
    findings = judge(replace(SAFE, replication_factor=1, min_insync_replicas=1, retention_ms=1))
    assert [each.rule for each in findings] == ["replication.factor", "min.insync.replicas", "retention.ms"]
    assert [each.rule for each in refused(findings)] == ["replication.factor", "min.insync.replicas"]
    assert [each.rule for each in refused(findings, {"replication.factor"})] == ["min.insync.replicas"]


def test_what_can_be_accepted_has_a_name() -> None:
    assert set(SETTINGS) == {
        "replication.factor",
        "min.insync.replicas",
        "unclean.leader.election.enable",
        "cleanup.policy",
        "retention.ms",
        "retention.bytes",
    }


@pytest.mark.parametrize(("copies", "min_isr"), [(1, 1), (2, 1), (3, 2), (4, 3), (5, 3), (7, 4)])
def test_the_safe_min_isr(copies: int, min_isr: int) -> None:
    assert safe_min_insync(copies) == min_isr


def test_what_create_makes_by_default_is_safe() -> None:
    assert judge(TopicSpec("transfers", 6).expected()) == []
    assert judge(TopicSpec("receipts", 6, purpose=Purpose.RECEIPTS).expected(), Purpose.RECEIPTS) == []


def test_a_setting_that_is_no_number_is_refused() -> None:
    with pytest.raises(UsageError, match=r"retention\.ms must be a whole number, not 'long'"):
        TopicSpec("transfers", 6, config={"retention.ms": "long"}).expected()
