"""Topics are asked about all at once, and each has its own answer."""

from __future__ import annotations

from collections.abc import Sequence

from tallymark.broker.cluster import KafkaCluster
from tallymark.relay.ports import TopicReport
from tallymark.relay.topicbook import TopicBook
from tests.relay.conftest import MakeGround


class Counting(KafkaCluster):
    """Notes what is asked of it."""

    def __init__(self, servers: str) -> None:
        super().__init__({"bootstrap.servers": servers})
        self.asked: list[list[str]] = []

    def inspect_all(self, wanted: Sequence[str]) -> list[TopicReport]:
        self.asked.append(list(wanted))
        return super().inspect_all(wanted)


def test_topics_are_asked_about_all_at_once(make_ground: MakeGround) -> None:
    ground = make_ground(topics=3)
    kafka = Counting(ground.servers)
    book = TopicBook(ground.store(), kafka, look_again_s=3600)
    news, problems = book.look_up([*ground.topics, "absent"])
    assert [record.topic for record in news] == ground.topics
    assert problems == {"absent": "there is no topic absent"}
    assert kafka.asked == [[*ground.topics, "absent"]]
    assert book.look_up(ground.topics) == ([], {})
    assert len(kafka.asked) == 1, "what is known is not asked for again"


def test_one_that_cannot_be_asked_about_is_told_from_the_others(make_ground: MakeGround) -> None:
    ground = make_ground(topics=2)
    reports = ground.kafka().inspect_all([ground.topics[0], "no/such name", ground.topics[1]])
    assert [report.topic for report in reports] == [ground.topics[0], "no/such name", ground.topics[1]]
    assert [report.problem is None for report in reports] == [True, False, True], reports
