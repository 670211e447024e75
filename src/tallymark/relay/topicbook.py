"""What a lane knows of its topics: recorded once, looked at again at intervals.

Keys are placed by the *recorded* partition count; a topic that was recreated, or whose settings would break the
promise, is a problem that holds the topic until it is put right or accepted.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from tallymark.relay.ports import Kafka, RelayStore, TopicRecord, TopicReport


class TopicBook:
    """One lane's view of the topics that it publishes into."""

    def __init__(self, store: RelayStore, kafka: Kafka, *, look_again_s: float = 30.0) -> None:
        self._store = store
        self._kafka = kafka
        self._look_again_s = look_again_s
        self._known: dict[str, tuple[float, TopicRecord]] = {}

    def records(self) -> list[TopicRecord]:
        return [record for _, record in self._known.values()]

    def forget(self) -> None:
        """Look at every topic again before it is used next."""
        self._known.clear()

    def look_up(self, topics: Iterable[str]) -> tuple[list[TopicRecord], dict[str, str]]:
        """Records that are new or have changed since the last look, and the problems of those that cannot be used."""
        news: list[TopicRecord] = []
        problems: dict[str, str] = {}
        now = time.monotonic()
        due = [topic for topic in topics if not self._is_fresh(topic, now)]
        for report in self._kafka.inspect_all(due) if due else ():
            record, problem = self.judge(report)
            known = self._known.pop(report.topic, None)
            if record is None:
                problems[report.topic] = problem
                continue
            self._known[report.topic] = (now, record)
            if known is None or known[1] != record:
                news.append(record)
        return news, problems

    def _is_fresh(self, topic: str, now: float) -> bool:
        known = self._known.get(topic)
        return known is not None and now - known[0] < self._look_again_s

    def judge(self, report: TopicReport) -> tuple[TopicRecord | None, str]:
        """The record to publish by, or why there is none."""
        if report.problem is not None:
            return None, report.problem
        recorded = self._store.topic(report.topic)
        if recorded is not None and recorded.topic_id != report.topic_id:
            return None, (
                f"topic {report.topic} was deleted and recreated (its id is {report.topic_id}, recorded was "
                f"{recorded.topic_id}): what had been sent is gone; `tallymark topics accept {report.topic}` goes on"
            )
        if recorded is not None and recorded.partitions > report.partitions:
            return (
                None,
                f"topic {report.topic} has {report.partitions} partitions, recorded were {recorded.partitions}",
            )
        if recorded is None or recorded.max_message_bytes != report.max_message_bytes:
            self._store.record_topic(report)
        partitions = recorded.partitions if recorded else report.partitions
        return TopicRecord(
            report.topic, report.topic_id, partitions, report.max_message_bytes, report.keyed
        ), ""
