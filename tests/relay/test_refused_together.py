"""One refused message takes its whole record batch with it: the others of that are not parked, nor sent for ever."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Sequence
from functools import partial

import pytest

from tallymark.broker import profiles
from tallymark.broker.flight import Flight
from tallymark.broker.judging import judge, tell_apart
from tallymark.broker.kafka import AdminClient, KafkaError, Producer
from tallymark.broker.verdicts import BESIDE
from tallymark.errors import OutcomeUnknown
from tallymark.lifecycle import Mode
from tallymark.relay.ports import Rejected, Row
from tests.conftest import MakeTopic
from tests.relay.ground import QUICK, Ground, idle_in_the_end
from tests.relay.toolarge import add_large, change, parked
from tests.waiting import wait_for

KEYS = 5


def add_without_key(ground: Ground, partition: int | None = None) -> str:
    """What no compacted topic takes."""
    id_ = str(uuid.uuid4())
    ground.query(
        "insert into tallymark.outbox (id, topic, value, partition) values (%s, %s, 'no key', %s)",
        *(id_, ground.topic, partition),
    )
    return id_


def compact(ground: Ground, admin: AdminClient) -> None:
    """The topic takes nothing without a key from now on, whatever a relay knows of it from before."""
    change(admin, ground.topic, "cleanup.policy", "compact")
    client = {"bootstrap.servers": ground.servers}
    producer = Producer(profiles.transactional_producer(client, transactional_id=f"probe-{ground.topic}"))
    producer.init_transactions(20)

    def refused(partition: int) -> bool:
        said: list[int | None] = []
        producer.begin_transaction()
        producer.produce(
            ground.topic, b"", None, partition, lambda error, _: said.append(error.code() if error else None)
        )
        wait_for(lambda: producer.poll(0.05) or said, what="Kafka says whether it takes it")
        producer.abort_transaction(20)
        return said == [KafkaError.INVALID_RECORD]

    for partition in producer.list_topics(ground.topic).topics[ground.topic].partitions:
        wait_for(partial(refused, partition), what="messages without a key are refused")


def of_its_last_copies_in_order(ground: Ground) -> bool:
    """Each key ends on its last message, and is in order where the last copy of each counts."""
    last = {record.id: record for record in ground.log()}
    for key in {record.key for record in last.values()}:
        ours = sorted((r for r in last.values() if r.key == key), key=lambda r: r.offset)
        if [r.position for r in ours] != sorted(r.position for r in ours):
            return False
    return True


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize(
    ("partitions", "batch_messages"),
    [(1, 100), pytest.param(3, 100, marks=pytest.mark.full), pytest.param(1, 20, marks=pytest.mark.full)],
)
def test_what_stood_beside_a_refused_message_goes(
    ground: Ground,
    admin: AdminClient,
    make_topic: MakeTopic,
    mode: Mode,
    partitions: int,
    batch_messages: int,
) -> None:
    """In `callback` mode the next batch is on its way by then, with later messages of the same keys.

    With three partitions each has a record batch with one bad message, for whose sake the client blames all of it.
    """
    ground.topics[:] = [make_topic(partitions)]
    config = dataclasses.replace(
        QUICK, mode=mode, batch_messages=batch_messages, accepted=("cleanup.policy",)
    )
    with ground.worker(config) as worker:
        ground.add(1)
        wait_for(lambda: idle_in_the_end(worker), what="the topic is known, and takes all")
        compact(ground, admin)
        bad = {add_without_key(ground, 0)}
        ground.add(24, keys=KEYS)
        bad.add(add_without_key(ground, partitions // 2))
        ground.add(36, keys=KEYS)
        if partitions > 1:
            bad.add(add_without_key(ground, partitions - 1))
        wait_for(lambda: idle_in_the_end(worker), what="all that can be sent is")
        ground.add(12, keys=KEYS)
        wait_for(lambda: idle_in_the_end(worker), what="and it goes on")
    assert {row[0] for row in ground.query("select id::text from tallymark.parked")} == bad
    assert parked(ground) == {"failed": len(bad)}
    found = ground.compare()
    assert (found.expected, found.missing, found.strangers) == (73 + len(bad), frozenset(bad), frozenset())
    if mode is Mode.TRANSACTIONAL:
        assert (sum(found.doubled.values()), found.reordered) == (0, ())
    assert of_its_last_copies_in_order(ground)


@pytest.mark.parametrize("mode", [Mode.TRANSACTIONAL, Mode.CALLBACK])
def test_what_a_compacted_topic_never_takes_is_not_offered_to_it(
    ground: Ground, make_topic: MakeTopic, mode: Mode
) -> None:
    """Thousands without a key would be looked for one by one, and each is parked with Kafka's reason, not with ours."""
    ground.topics[:] = [make_topic(3, cleanup_policy="compact")]
    ground.add(20)
    bad = {add_without_key(ground) for _ in range(100)}
    ground.add(20)
    config = dataclasses.replace(QUICK, mode=mode, batch_messages=200, accepted=("cleanup.policy",))
    with ground.worker(config) as worker:
        wait_for(lambda: idle_in_the_end(worker), what="all that can be sent is")
    reasons = ground.query("select distinct reason from tallymark.parked")
    assert reasons == [(f"topic {ground.topic} is compacted: it takes no message without a key",)]
    found = ground.compare()
    assert (found.missing, dict(found.doubled)) == (frozenset(bad), {})


Told = dict[int, int]


def rows_of(count: int, topic: str = "t") -> list[Row]:
    return [(position, "", topic, None, b"", "{}", None, 100) for position in range(count)]


class Reports:
    """What Kafka's client says of rows that are sent in record batches of so many, some of them bad."""

    def __init__(self, bad: Told, batch: int) -> None:
        self.bad, self.batch, self.asked = bad, batch, 0

    def of(self, rows: Sequence[Row]) -> list[tuple[Row, KafkaError]]:
        found = []
        for start in range(0, len(rows), self.batch):
            together = rows[start : start + self.batch]
            guilty = {row[0] for row in together if row[0] in self.bad}
            for row in together if guilty else []:
                code = KafkaError.INVALID_RECORD if len(together) > 1 else self.bad[row[0]]
                told = len(guilty) == 1 or row[0] in guilty
                found.append((row, KafkaError(code if told else BESIDE)))
        return found

    def fail(self, rows: Sequence[Row]) -> tuple[Row, KafkaError] | None:
        self.asked += 1
        return Flight([], failures=self.of(rows)).first_failure


INVALID, UNTIMELY = KafkaError.INVALID_RECORD, KafkaError.INVALID_TIMESTAMP


@pytest.mark.parametrize(
    "guilty", [{0}, {19}, {0, 19}, {0, 3, 14, 25, 29}, {0, 5, 14}, set(range(10)), {4, 5, 6, 7}]
)
def test_only_what_fails_alone_is_at_fault(guilty: set[int]) -> None:
    """Whatever shared a record batch with it: the client blames all of one that has a single bad message."""
    rows, reports = rows_of(30), Reports(dict.fromkeys(guilty, INVALID), 10)
    flight = Flight(rows, failures=reports.of(rows))
    tell_apart(flight, reports.fail)
    found = judge(flight, reports.fail, transactional=True)
    assert isinstance(found, Rejected)
    assert {failure.position for failure in found.failures} == guilty


def test_one_of_thousands_is_found_in_a_few_steps_and_of_many_bad_ones_some() -> None:
    rows, reports = rows_of(4_096), Reports({1_234: INVALID}, 4_096)
    flight = Flight(rows, failures=reports.of(rows))
    tell_apart(flight, reports.fail)
    assert [row[0] for row, _ in flight.causes] == [1_234]
    assert reports.asked <= 25
    reports = Reports(dict.fromkeys(range(4_096), INVALID), 100)
    flight = Flight(rows, failures=reports.of(rows))
    tell_apart(flight, reports.fail)
    assert {row[0] for row, _ in flight.causes} == set(range(32)), "the next are found when these are parked"


def test_what_is_refused_for_the_batchs_time_is_no_messages_fault() -> None:
    """Kafka says so of a single one only; another topic's invalid message beside it is at fault all the same."""
    rows = [*rows_of(20), (100, "", "other", None, b"", "{}", None, 100)]
    reports = Reports({**dict.fromkeys(range(20), UNTIMELY), 100: INVALID}, 7)
    flight = Flight(rows, failures=reports.of(rows))
    tell_apart(flight, reports.fail)
    found = judge(flight, reports.fail, transactional=True)
    assert isinstance(found, Rejected)
    assert [failure.position for failure in found.failures] == [100]


def test_a_search_that_kafka_does_not_answer_blames_nobody() -> None:
    rows = rows_of(4)
    flight = Flight(rows, failures=[(row, KafkaError(INVALID)) for row in rows])
    with pytest.raises(OutcomeUnknown):
        tell_apart(flight, lambda rows: (rows[0], KafkaError(KafkaError._MSG_TIMED_OUT)))


@pytest.mark.parametrize("mode", Mode)
def test_what_the_client_itself_does_not_take_is_parked(ground: Ground, mode: Mode) -> None:
    """Five megabytes by plain SQL, where nobody raised a limit: it is refused before anything is on its way."""
    ground.add(15)
    large = add_large(ground, "key-3", size=5_000_000)
    ground.add(25)
    with ground.worker(dataclasses.replace(QUICK, mode=mode)) as worker:
        wait_for(lambda: idle_in_the_end(worker), what="all that can be sent is")
    ((id_, reason),) = ground.query("select id::text, reason from tallymark.parked where state = 'failed'")
    assert id_ == large
    assert "too large" in reason.lower()
    waiting = {
        row[0] for row in ground.query("select id::text from tallymark.parked where state = 'waiting'")
    }
    found = ground.compare()
    assert (found.expected, found.missing) == (41, frozenset({large, *waiting}))
    # Without transactions nobody waits: the others are in the log when the one is parked.
    assert len(waiting) == (2 if mode is Mode.TRANSACTIONAL else 0)
    assert not found.doubled
