"""Topics: describe them, and create them with settings that keep what they acknowledge.

`create` is idempotent: a topic that is there already as asked is left alone; one that is there otherwise is
an error, never changed. It returns when every partition has its leader and its copies.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tallymark.broker import faults
from tallymark.broker.kafka import (
    AclOperation,
    AdminClient,
    ConfigResource,
    KafkaError,
    KafkaException,
    NewTopic,
    ResourceType,
    TopicCollection,
)
from tallymark.broker.safety import Purpose, TopicFacts, safe_min_insync
from tallymark.errors import OutcomeUnknown, Problem, UsageError

_POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """A topic to be made. `config` overrides the safe settings; the caller has judged whether it may."""

    name: str
    partitions: int
    replication_factor: int = 3
    purpose: Purpose = Purpose.EVENTS
    config: Mapping[str, str] = field(default_factory=dict)

    @property
    def settings(self) -> dict[str, str]:
        """The topic's settings, written out: a broker's defaults may change under it."""
        return {
            "min.insync.replicas": str(safe_min_insync(self.replication_factor)),
            "unclean.leader.election.enable": "false",
            "cleanup.policy": self.purpose.value,
            **self.config,
        }

    def expected(self) -> TopicFacts:
        """What it will look like, for the rules to judge before it is made."""
        settings = self.settings
        return TopicFacts(
            name=self.name,
            topic_id="",
            partitions=self.partitions,
            replication_factor=self.replication_factor,
            min_insync_replicas=_number(settings, "min.insync.replicas", 1),
            unclean_election=settings["unclean.leader.election.enable"].lower() == "true",
            cleanup_policy=settings["cleanup.policy"],
            retention_ms=_number(settings, "retention.ms", 7 * 24 * 3600 * 1000),
            retention_bytes=_number(settings, "retention.bytes", -1),
            max_message_bytes=_number(settings, "max.message.bytes", 1_048_588),
        )


def _number(settings: Mapping[str, str], name: str, default: int) -> int:
    try:
        return int(settings.get(name, default))
    except ValueError:
        raise UsageError(
            f"{name} must be a whole number, not {settings[name]!r}", remedy=f"Give --config {name}=NUMBER."
        ) from None


def names(admin: AdminClient, *, timeout: float = 10.0) -> list[str]:
    """The topics that are there, without Kafka's and Tallymark's internal ones (two underscores)."""
    try:
        found = admin.list_topics(timeout=timeout).topics
    except KafkaException as error:
        raise faults.explain(error, doing="listing topics") from error
    return sorted(name for name in found if not name.startswith("__"))


def describe(
    admin: AdminClient, wanted: Sequence[str], *, timeout: float = 10.0, patience: float = 0.0
) -> dict[str, TopicFacts]:
    """The facts of each of these topics that exists; one that does not is absent from the answer.

    A broker may hear of a new topic a moment after its neighbour: with `patience` (seconds) what is missing is
    looked for again before it is said to be.
    """
    deadline = time.monotonic() + patience
    while True:
        found = _described(admin, wanted, timeout)
        if len(found) == len(set(wanted)) or time.monotonic() >= deadline:
            return found
        admin.poll(_POLL_S)


def _described(admin: AdminClient, wanted: Sequence[str], timeout: float) -> dict[str, TopicFacts]:
    if not wanted:
        return {}
    described = admin.describe_topics(
        TopicCollection(list(wanted)), request_timeout=timeout, include_authorized_operations=True
    )
    found: dict[str, Any] = {}
    for name, future in described.items():
        try:
            found[name] = future.result()
        except KafkaException as error:
            if faults.error_of(error).code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise faults.explain(error, doing=f"describing topic {name}") from error
    configs = _configs(admin, list(found), timeout)
    return {name: _facts(name, found[name], configs[name]) for name in found if name in configs}


def _configs(admin: AdminClient, wanted: Sequence[str], timeout: float) -> dict[str, dict[str, str]]:
    if not wanted:
        return {}
    resources = [ConfigResource(ResourceType.TOPIC, name) for name in wanted]
    configs: dict[str, dict[str, str]] = {}
    for resource, future in admin.describe_configs(resources, request_timeout=timeout).items():
        try:
            configs[resource.name] = {name: str(entry.value) for name, entry in future.result().items()}
        except KafkaException as error:
            # Another broker answers this one: it may not have heard of a new topic yet.
            if faults.error_of(error).code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                doing = f"reading the settings of topic {resource.name}"
                raise faults.explain(error, doing=doing) from error
    return configs


def _facts(name: str, topic: Any, config: Mapping[str, str]) -> TopicFacts:
    return TopicFacts(
        name=name,
        topic_id=str(topic.topic_id),
        partitions=len(topic.partitions),
        # The weakest partition is what the topic is worth.
        replication_factor=min(len(each.replicas) for each in topic.partitions),
        min_insync_replicas=int(config["min.insync.replicas"]),
        unclean_election=config["unclean.leader.election.enable"] == "true",
        cleanup_policy=config["cleanup.policy"],
        retention_ms=int(config["retention.ms"]),
        retention_bytes=int(config["retention.bytes"]),
        max_message_bytes=int(config["max.message.bytes"]),
        timestamp_type=config.get("message.timestamp.type", "CreateTime"),
        under_replicated=tuple(each.id for each in topic.partitions if len(each.isr) < len(each.replicas)),
        leaderless=tuple(each.id for each in topic.partitions if each.leader is None or each.leader.id < 0),
        # A broker that does not say which rights we have has not denied any.
        writable=not topic.authorized_operations or AclOperation.WRITE in topic.authorized_operations,
    )


def create(admin: AdminClient, spec: TopicSpec, *, timeout: float = 30.0) -> bool:
    """Make the topic and wait until it can be used; False when it was there already, as asked."""
    deadline = time.monotonic() + timeout
    new = NewTopic(spec.name, spec.partitions, spec.replication_factor, config=spec.settings)
    try:
        admin.create_topics([new], operation_timeout=timeout, request_timeout=timeout)[spec.name].result()
        made = True
    except KafkaException as error:
        cause = faults.error_of(error)
        if cause.code() == KafkaError.INVALID_REPLICATION_FACTOR:
            raise Problem(
                f"topic {spec.name}: the cluster has too few brokers for {spec.replication_factor} copies",
                remedy="On a small cluster for trying things: --replication-factor 1 "
                "--accept-risk replication.factor --accept-risk min.insync.replicas.",
            ) from error
        if cause.code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise faults.explain(error, doing=f"creating topic {spec.name}") from error
        made = False
    facts = _when_ready(admin, spec.name, deadline)
    if not made:
        _same(facts, spec)
    return made


def _when_ready(admin: AdminClient, name: str, deadline: float) -> TopicFacts:
    while True:
        facts = describe(admin, [name]).get(name)
        if facts and not facts.leaderless and (not facts.under_replicated or time.monotonic() > deadline):
            return facts
        if time.monotonic() > deadline:
            raise OutcomeUnknown(
                f"topic {name} was asked for and has not come up in time",
                remedy=f"Look with `tallymark topics check {name}`; creating it again is safe.",
            )
        admin.poll(_POLL_S)


def _same(facts: TopicFacts, spec: TopicSpec) -> None:
    """A topic that is there already must be the one that was asked for."""
    wanted = spec.expected()
    differing = [
        f"{setting} is {have}, not {want}"
        for setting, have, want in (
            ("partitions", facts.partitions, wanted.partitions),
            ("replication.factor", facts.replication_factor, wanted.replication_factor),
            ("min.insync.replicas", facts.min_insync_replicas, wanted.min_insync_replicas),
            ("cleanup.policy", facts.cleanup_policy, wanted.cleanup_policy),
        )
        if have != want
    ]
    if differing:
        raise Problem(
            f"topic {spec.name} exists and differs: {'; '.join(differing)}",
            remedy="It was left as it is. Ask for what is there, or change it with Kafka's own tools.",
        )
