"""Which topic settings keep a message once it is acknowledged, and which do not: pure rules over facts.

A finding names its setting, so that `--accept-risk SETTING` can name it too. *refuse* breaks a promise
(committed data can be lost or dropped); *warn* makes trouble under a fault or later.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from enum import StrEnum

DAY_MS = 24 * 3600 * 1000


class Severity(StrEnum):
    """What a finding asks for."""

    REFUSE = "refuse"
    WARN = "warn"


class Purpose(StrEnum):
    """What a topic is for: events are kept for a time, receipts for ever by key."""

    EVENTS = "delete"
    RECEIPTS = "compact"


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """A topic as the cluster describes it."""

    name: str
    topic_id: str
    partitions: int
    replication_factor: int
    min_insync_replicas: int
    unclean_election: bool
    cleanup_policy: str
    retention_ms: int
    retention_bytes: int
    max_message_bytes: int
    timestamp_type: str = "CreateTime"
    under_replicated: tuple[int, ...] = ()
    leaderless: tuple[int, ...] = ()
    # Whether whoever looked may write into it.
    writable: bool = True


@dataclass(frozen=True, slots=True)
class Finding:
    """One rule that a topic breaks."""

    topic: str
    rule: str
    found: str
    safe: str
    why: str
    severity: Severity


@dataclass(frozen=True, slots=True)
class _Rule:
    setting: str
    safe: str
    why: str
    severity: Severity
    broken: Callable[[TopicFacts, Purpose], str | None]


def _when(broken: bool, found: object) -> str | None:
    return str(found) if broken else None


def _wrong_policy(facts: TopicFacts, purpose: Purpose) -> str | None:
    return _when(facts.cleanup_policy != purpose.value, facts.cleanup_policy)


_RULES: tuple[_Rule, ...] = (
    _Rule(
        "replication.factor", "3 or more",
        "with fewer copies one lost disk during a restart loses acknowledged messages", Severity.REFUSE,
        lambda topic, _: _when(topic.replication_factor < 3, topic.replication_factor),
    ),
    _Rule(
        "min.insync.replicas", "2 or more",
        "an acknowledgement by all in-sync replicas may mean one copy only", Severity.REFUSE,
        lambda topic, _: _when(topic.min_insync_replicas < 2, topic.min_insync_replicas),
    ),
    _Rule(
        "min.insync.replicas", "less than the replication factor",
        "one broker away stops all writing", Severity.WARN,
        lambda topic, _: _when(
            1 < topic.replication_factor <= topic.min_insync_replicas,
            f"{topic.min_insync_replicas} of {topic.replication_factor}",
        ),
    ),
    _Rule(
        "unclean.leader.election.enable", "false",
        "a replica that lags behind may become leader, and what it lacks is dropped", Severity.REFUSE,
        lambda topic, _: _when(topic.unclean_election, "true"),
    ),
    _Rule(
        "cleanup.policy", "delete",
        "compaction removes events that share a key", Severity.REFUSE,
        lambda topic, purpose: _wrong_policy(topic, purpose) if purpose is Purpose.EVENTS else None,
    ),
    _Rule(
        "cleanup.policy", "compact",
        "a receipt that expires leaves a batch in doubt for ever", Severity.REFUSE,
        lambda topic, purpose: _wrong_policy(topic, purpose) if purpose is Purpose.RECEIPTS else None,
    ),
    _Rule(
        "retention.ms", "a day or more",
        "messages are deleted before a consumer that was away can read them", Severity.WARN,
        lambda topic, purpose: _when(
            purpose is Purpose.EVENTS and 0 <= topic.retention_ms < DAY_MS, topic.retention_ms
        ),
    ),
    _Rule(
        "retention.bytes", "-1",
        "a burst deletes messages before they are read, whatever their age", Severity.WARN,
        lambda topic, purpose: _when(
            purpose is Purpose.EVENTS and topic.retention_bytes != -1, topic.retention_bytes
        ),
    ),
    _Rule(
        "replicas", "all in sync",
        "partitions run on fewer copies than they should", Severity.WARN,
        lambda topic, _: _when(
            bool(topic.under_replicated), f"partitions {_list(topic.under_replicated)} lag"
        ),
    ),
    _Rule(
        "leaders", "one for each partition",
        "nothing can be written to or read from a partition without a leader", Severity.WARN,
        lambda topic, _: _when(bool(topic.leaderless), f"partitions {_list(topic.leaderless)} have none"),
    ),
)  # fmt: skip

SETTINGS: tuple[str, ...] = tuple(
    dict.fromkeys(rule.setting for rule in _RULES if rule.setting not in ("replicas", "leaders"))
)


def _list(partitions: tuple[int, ...]) -> str:
    shown = ", ".join(str(each) for each in partitions[:8])
    return f"{shown}, …" if len(partitions) > 8 else shown


def judge(facts: TopicFacts, purpose: Purpose = Purpose.EVENTS) -> list[Finding]:
    """Every rule that this topic breaks, the grave ones first."""
    found = [
        Finding(facts.name, rule.setting, broken, rule.safe, rule.why, rule.severity)
        for rule in _RULES
        if (broken := rule.broken(facts, purpose)) is not None
    ]
    return sorted(found, key=lambda each: each.severity is not Severity.REFUSE)


def refused(findings: Collection[Finding], accepted: Collection[str] = ()) -> Iterator[Finding]:
    """The findings that forbid using the topic, without those whose risk was accepted by name."""
    return (each for each in findings if each.severity is Severity.REFUSE and each.rule not in accepted)


def safe_min_insync(replication_factor: int) -> int:
    """The min ISR that survives the loss of a broker without losing data or stopping: 2 of 3, 3 of 5."""
    return max(1, min(replication_factor // 2 + 1, replication_factor - 1))
