"""The Kafka cluster that a relay publishes to: publishers, topics as they are now, the receipts topic."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tallymark.broker import profiles, receipts, topics
from tallymark.broker.fencing import may_use_transactions
from tallymark.broker.kafka import AdminClient
from tallymark.broker.patience import Pace
from tallymark.broker.producers import PublisherSettings
from tallymark.broker.publisher import KafkaPublisher
from tallymark.broker.reach import admin_client
from tallymark.broker.safety import Purpose, TopicFacts, judge, refused
from tallymark.errors import AccessDenied, UsageError
from tallymark.lifecycle import Mode
from tallymark.policy import ModePolicy
from tallymark.relay.ports import Identity, TopicRecord, TopicReport


class KafkaCluster:
    """The relay's `Kafka` port."""

    def __init__(
        self,
        client: profiles.Client,
        *,
        prefix: str = "tallymark.",
        accepted: Collection[str] = (),
        transaction_timeout_s: float = 30.0,
        receipts_copies: int = 3,
    ) -> None:
        self._client = client
        self._prefix = prefix
        self._accepted = frozenset(accepted)
        self._timeout_s = transaction_timeout_s
        self._paces: dict[int, Pace] = {}
        self._copies = receipts_copies
        self._admin: AdminClient | None = None

    def publisher(
        self, identity: Identity, lane: int, mode: Mode, topics: Sequence[TopicRecord]
    ) -> KafkaPublisher:
        pace = self._paces.setdefault(lane, Pace(self._timeout_s))
        settings = PublisherSettings(
            self._client, identity, lane, ModePolicy.of(mode), self._prefix, pace.seconds
        )
        return KafkaPublisher(settings, topics, pace)

    def inspect(self, topic: str) -> TopicReport:
        return self.inspect_all([topic])[0]

    def inspect_all(self, wanted: Sequence[str]) -> list[TopicReport]:
        if self._admin is None:
            self._admin = admin_client(self._client)
        try:
            facts = topics.describe(self._admin, wanted)
        except (AccessDenied, UsageError) as refusal:  # no right to one, or no topic can be called so
            if len(wanted) == 1:
                return [TopicReport(wanted[0], problem=str(refusal))]
            return [self.inspect(topic) for topic in wanted]  # to which, is learnt one by one
        return [self._judged(topic, facts.get(topic)) for topic in wanted]

    def _judged(self, topic: str, facts: TopicFacts | None) -> TopicReport:
        if facts is None:
            return TopicReport(topic, problem=f"there is no topic {topic}")
        if not facts.writable:
            # Asked beforehand: in a transaction the client does not tell which topic it was denied.
            return TopicReport(
                topic, problem=f"Kafka denies the right to write into topic {topic}: grant Write on it"
            )
        findings = judge(facts, Purpose.EVENTS)
        for finding in refused(findings, self._accepted):
            return TopicReport(
                topic,
                problem=f"topic {topic} would break the promise: {finding.rule} is {finding.found}, "
                f"{finding.safe} is needed ({finding.why}); put it right, or --accept-risk {finding.rule}",
            )
        return TopicReport(
            topic,
            facts.topic_id,
            facts.partitions,
            facts.max_message_bytes,
            keyed="compact" in facts.cleanup_policy,
            accepted=tuple(sorted({f.rule for f in findings} & self._accepted)),
        )

    def prepare_receipts(self, identity: Identity) -> str:
        may_use_transactions(self._client, identity)
        return receipts.prepare(self._client, identity, self._prefix, self._accepted, self._copies)
