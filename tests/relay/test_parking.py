"""What fails on its own, and what fails for its topic's sake (pitfalls 6 and 7): nobody innocent is harmed."""

from __future__ import annotations

import dataclasses
import signal
import uuid

import psycopg
import pytest

from tallymark.broker.cluster import KafkaCluster
from tallymark.broker.flight import Flight
from tallymark.broker.judging import judge
from tallymark.broker.kafka import AdminClient, KafkaError
from tallymark.errors import OutcomeUnknown
from tallymark.lifecycle import Mode
from tallymark.local.cluster import LocalCluster
from tallymark.relay.ports import Rejected, Row, Unknown
from tests import journal
from tests.cli.conftest import Run
from tests.conftest import MakeTopic
from tests.leaders import leader_of
from tests.relay.conftest import MakeGround
from tests.relay.ground import QUICK, Ground, idle_in_the_end, until_idle
from tests.relay.toolarge import SMALL, add_large, parked, set_limit
from tests.waiting import wait_for


def test_a_limit_lowered_under_a_running_relay_parks_no_innocent_message(
    ground: Ground, admin: AdminClient
) -> None:
    """Record batches were too large, their messages are not: none is parked, all are sent in smaller ones."""
    with ground.relay(batch_messages=2000) as relay:
        ground.add(100, size=200)
        ground.wait_sent()
        set_limit(admin, ground.topic, SMALL)
        ground.add(1000, size=200)
        ground.wait_sent(90)
        assert parked(ground) == {}, relay.output
    found = ground.compare()
    assert found.expected == 1100
    assert found.is_clean, found


@pytest.fixture
def with_one_too_large(ground: Ground, admin: AdminClient) -> tuple[Ground, str]:
    """Messages of twelve keys in many batches, and near the front one that is truly too large."""
    set_limit(admin, ground.topic, SMALL)
    ground.add(15)
    large = add_large(ground, "key-3")
    ground.add(120)
    return ground, large


def wait_sent_retrying(ground: Ground, run: Run) -> None:
    """A leader may learn of a topic's new limit after the answer: what it refused meanwhile is asked for once more."""

    def sent() -> bool:
        if "failed" in parked(ground):
            run("failed", "retry", "--all", "--database", ground.url)
        return journal.all_sent(ground.url)

    wait_for(sent, what="everything is sent")


def test_a_message_too_large_is_parked_and_only_its_key_waits(
    with_one_too_large: tuple[Ground, str], admin: AdminClient, run: Run
) -> None:
    ground, large = with_one_too_large
    with ground.relay(batch_messages=20) as relay:
        wait_for(lambda: parked(ground) == {"failed": 1, "waiting": 10}, what="it is parked, its key waits")
        wait_for(
            lambda: ground.value("select min(covered) from tallymark.lanes") >= ground.last_position(),
            what="the others went on",
        )
        listed = run("failed", "list", "--database", ground.url, "--json").json
        assert [(each["id"], each["behind"], each["state"]) for each in listed] == [(large, 10, "failed")]
        assert "too large" in listed[0]["reason"].lower()
        set_limit(admin, ground.topic, 1_048_588)
        assert run("failed", "retry", large, "--database", ground.url).code == 0
        wait_sent_retrying(ground, run)
        assert relay.is_alive()
    found = ground.compare()
    assert found.expected == 136
    assert found.is_clean, "the key's queue came in another order than it was added"


def test_nothing_of_a_parked_key_overtakes_it(with_one_too_large: tuple[Ground, str]) -> None:
    """The next batch was read ahead before the key was parked: it is filtered when it is produced (pitfall 6)."""
    ground, _ = with_one_too_large
    with ground.relay(batch_messages=20):
        wait_for(lambda: parked(ground) == {"failed": 1, "waiting": 10}, what="it is parked, its key waits")
        wait_for(
            lambda: (
                ground.value(
                    "select count(*) from tallymark.batches where state = 'sending'"
                    " or (select min(covered) from tallymark.lanes) < %s",
                    ground.last_position(),
                )
                == 0
            ),
            what="all batches are marked",
        )
    position = ground.value("select position from tallymark.parked where state = 'failed'")
    behind = [record for record in ground.log() if record.key == b"key-3" and record.position > position]
    assert behind == []


def test_discarding_releases_the_queue_and_leaves_an_audit_row(
    with_one_too_large: tuple[Ground, str], run: Run
) -> None:
    ground, large = with_one_too_large
    with ground.relay(batch_messages=20):
        wait_for(lambda: parked(ground) == {"failed": 1, "waiting": 10}, what="it is parked, its key waits")
        refused = run("failed", "discard", large, "--yes", "--database", ground.url)
        assert (refused.code, "needs a reason" in refused.err) == (2, True)
        done = run("failed", "discard", large, "--yes", "--reason", "a scan", "--database", ground.url)
        assert done.code == 0, done.err
        ground.wait_sent()
    assert ground.compare().is_clean
    assert large not in {record.id for record in ground.log()}
    audit = ground.query("select action, subject, reason, who <> '' from tallymark.audit")
    assert audit == [("failed.discard", large, "a scan", True)]
    shown = run("outbox", "show", large, "--json", "--database", ground.url)
    assert shown.json["state"] == "discarded"


@pytest.mark.parametrize(
    "point",
    ["relay.after_kafka_commit:2", pytest.param("relay.before_kafka_commit:3", marks=pytest.mark.full)],
)
def test_an_exclusion_is_written_before_kafka_commits(
    with_one_too_large: tuple[Ground, str], admin: AdminClient, run: Run, point: str
) -> None:
    """A crash around the commit of a batch that lost a message: the message is parked, not taken for sent."""
    ground, large = with_one_too_large
    with ground.relay(crash_point=point) as relay:
        assert relay.wait() == -signal.SIGKILL, relay.output
        relay_wrote = relay.output
    failed = ground.query("select id::text from tallymark.parked where state = 'failed'")
    assert failed == [(large,)], relay_wrote
    with ground.relay():
        wait_for(
            lambda: ground.value("select min(covered) from tallymark.lanes") >= ground.last_position(),
            what="the others are sent",
        )
        assert parked(ground) == {"failed": 1, "waiting": 10}
        set_limit(admin, ground.topic, 1_048_588)
        assert run("failed", "retry", "--all", "--database", ground.url).code == 0
        wait_sent_retrying(ground, run)
    assert ground.compare().is_clean


def test_with_skip_later_messages_of_a_parked_key_go_on(with_one_too_large: tuple[Ground, str]) -> None:
    ground, large = with_one_too_large
    with ground.relay(on_park="skip"):
        wait_for(
            lambda: (
                ground.value("select min(covered) from tallymark.lanes") >= ground.last_position()
                and not ground.value("select count(*) from tallymark.batches where state = 'sending'")
            ),
            what="the others are sent",
        )
    assert parked(ground) == {"failed": 1}
    found = ground.compare()
    assert (found.missing, len(found.doubled), found.reordered) == (frozenset({large}), 0, ())


@pytest.mark.parametrize("mode", ["callback", pytest.param("sync", marks=pytest.mark.full)])
def test_without_transactions_too_the_rest_of_the_batch_goes(
    with_one_too_large: tuple[Ground, str], mode: str
) -> None:
    ground, large = with_one_too_large
    with ground.relay(mode=mode, on_park="skip"):
        wait_for(lambda: parked(ground) == {"failed": 1}, what="it is parked")
        wait_for(
            lambda: (
                ground.value("select min(covered) from tallymark.lanes") >= ground.last_position()
                and not ground.value("select count(*) from tallymark.batches where state = 'sending'")
            ),
            what="the others are sent",
        )
    found = ground.compare()
    assert found.missing == frozenset({large})


def test_a_time_out_beside_a_refusal_leaves_a_batch_without_a_transaction_in_doubt(ground: Ground) -> None:
    """In a transaction nothing is in the log, and the refused ones can leave; without one the other may be lost."""
    failures: list[tuple[Row, KafkaError]] = [
        ((1, "a", ground.topic, b"k", b"", "{}", None, 100), KafkaError(KafkaError.INVALID_MSG)),
        ((2, "b", ground.topic, b"k", b"", "{}", None, 100), KafkaError(KafkaError._MSG_TIMED_OUT)),
    ]
    found = {}
    for mode in Mode:
        flight = Flight([], failures=failures)
        found[mode] = type(judge(flight, lambda _: failures[0], transactional=mode is Mode.TRANSACTIONAL))
    assert found == {Mode.TRANSACTIONAL: Rejected, Mode.CALLBACK: Unknown, Mode.SYNC: Unknown}


@pytest.mark.full
@pytest.mark.parametrize("mode", [Mode.CALLBACK, Mode.SYNC])
def test_without_transactions_what_timed_out_beside_a_refused_one_is_not_taken_for_sent(
    ground: Ground, cluster: LocalCluster, admin: AdminClient, make_topic: MakeTopic, mode: Mode
) -> None:
    """One message can never be published, another could not be now: the batch is not done with."""
    alone = make_topic(1, replication_factor=1, min_insync_replicas="1")
    ground.topics.append(alone)
    risks = ("replication.factor", "min.insync.replicas")
    config = dataclasses.replace(QUICK, mode=mode, accepted=risks, hold_key=False)
    kafka = KafkaCluster({"bootstrap.servers": ground.servers}, accepted=risks, transaction_timeout_s=3)
    leader = cluster.broker(leader_of(admin, alone))
    with ground.worker(config, kafka=kafka) as worker:
        ground.add(1)
        ground.add(1, topic=alone)
        until_idle(worker)  # the topics are known now
        ground.query(
            "insert into tallymark.outbox (id, topic, key, partition) values (gen_random_uuid(), %s, 'k', 99)",
            ground.topic,
        )
        (timed_out,) = ground.add(1, topic=alone)
        leader.kill()
        try:
            # Never one by one: where an earlier message of a key expired, a later one could still be delivered.
            with pytest.raises(OutcomeUnknown, match="1 messages are not acknowledged"):
                until_idle(worker)
            assert parked(ground) == {}
            assert ground.value("select count(*) from tallymark.batches where state = 'sending'") == 1
        finally:
            leader.start()
        worker.reset()
        wait_for(lambda: idle_in_the_end(worker), what="the batch is done with")
        assert parked(ground) == {"failed": 1}
    assert timed_out in {record.id for record in ground.log()}


def test_a_partition_that_is_gone_is_its_topics_matter_unless_the_message_names_it(ground: Ground) -> None:
    """A topic made anew with fewer partitions must not park its messages one by one."""
    gone = KafkaError(KafkaError._UNKNOWN_PARTITION)

    def no_answer(_rows: object) -> None:
        raise AssertionError("nobody has to be asked")

    for named, whole_topic in ((None, True), (5, False)):
        row: Row = (1, "a", ground.topic, b"k", b"", "{}", named, 100)
        found = judge(Flight([], failures=[(row, gone)]), no_answer, transactional=True)
        assert isinstance(found, Rejected)
        assert [each.whole_topic for each in found.failures] == [whole_topic]


def test_a_lanes_owner_looks_at_parked_messages_when_somebody_asked_for_it(
    with_one_too_large: tuple[Ground, str], run: Run
) -> None:
    """Not every second: there may be a million behind one that failed."""
    ground, large = with_one_too_large
    attempts = "select attempts from tallymark.parked where id = %s"
    with ground.worker() as worker:
        until_idle(worker)
        assert parked(ground) == {"failed": 1, "waiting": 10}
        # Behind everybody's back: nobody has asked.
        ground.query("update tallymark.parked set state = 'retrying' where id = %s", large)
        until_idle(worker)
        assert ground.value(attempts, large) == 1
        ground.query("update tallymark.parked set state = 'failed' where id = %s", large)
        assert run("failed", "retry", large, "--database", ground.url).code == 0
        until_idle(worker)
        assert ground.value(attempts, large) == 2
        asked = ("failed", "discard", large, "--yes", "--reason", "a scan", "--database", ground.url)
        assert run(*asked).code == 0
        until_idle(worker)
        assert parked(ground) == {"discarded": 1, "sent": 10}


def test_an_unknown_topic_is_held_in_one_row_and_caught_up_in_order(
    make_ground: MakeGround, admin: AdminClient, run: Run
) -> None:
    ground = make_ground()
    missing = f"not-yet-{uuid.uuid4().hex[:8]}"
    try:
        with ground.worker() as worker:
            for _ in range(4):  # in several batches, between those of a topic that is there
                ground.add(30)
                ground.add(30, topic=missing)
            until_idle(worker)
            assert ground.query("select lane, topic, state from tallymark.topic_holds") == [
                (0, missing, "held")
            ]
            assert parked(ground) == {}
            assert len(ground.log()) == 120
            assert ground.value("select sum(sent) from tallymark.lanes") == 120, "what is held was not sent"
            held = ground.operators.status().held_topics[0]
            assert (held.topic, held.reason) == (missing, f"there is no topic {missing}")
            assert held.messages == 120
            told = run("relay", "status", "--database", ground.url).out
            assert f"topic {missing} is held, 120 of its messages wait" in told
            waits = ground.value("select id::text from tallymark.outbox where topic = %s limit 1", missing)
            told = run("trace", waits, "--database", ground.url).out
            assert "waits to be sent" in told
            assert f"topic {missing} is held: there is no topic {missing}" in told
            create = ("topics", "create", missing, "--bootstrap-servers", ground.servers, "--partitions", "3")
            assert run(*create).code == 0
            ground.add(30, topic=missing)
            wait_for(lambda: until_idle(worker) or ground.query("select 1 from tallymark.topic_holds") == [])
            until_idle(worker)
            assert ground.query("select 1 from tallymark.topic_holds") == []
            assert parked(ground) == {}
            assert ground.value("select sum(sent) from tallymark.lanes") == 270
        ground.topics.append(missing)
        found = ground.compare()
        assert found.expected == 270
        assert found.is_clean, found
    finally:
        admin.delete_topics([missing])[missing].exception(30)


def test_a_risky_topic_is_held_unless_the_risk_is_accepted(
    make_ground: MakeGround, make_topic: MakeTopic, run: Run
) -> None:
    ground = make_ground()
    risky = make_topic(min_insync_replicas="1")
    ground.add(20, topic=risky)
    with ground.worker(QUICK) as worker:
        until_idle(worker)
    held = ground.operators.status().held_topics
    assert [each.topic for each in held] == [risky]
    assert "--accept-risk min.insync.replicas" in held[0].reason
    ground.topics.append(risky)
    assert ground.log() == []
    ground.query("update tallymark.lanes set owner = null")
    with ground.relay("--accept-risk", "min.insync.replicas") as relay:
        ground.wait_sent()
        told = run("relay", "status", "--database", ground.url)
        assert "accepted risks: min.insync.replicas" in " ".join(told.out.split())
        assert "accepted risk: min.insync.replicas" in relay.output
    assert ground.compare().is_clean


@pytest.mark.parametrize("headers", ['{"a": null}', '{"a": [""]}', '{"\\ud800": "x"}'])
def test_headers_that_cannot_be_sent_park_their_message(ground: Ground, headers: str) -> None:
    """Half a surrogate pair in a name would end the process, and with it every relay after it."""
    bad = str(uuid.uuid4())
    ground.add(5)
    ground.query(
        "insert into tallymark.outbox (id, topic, key, headers) values (%s, %s, 'odd', %s)",
        *(bad, ground.topic, headers),
    )
    ground.add(5)
    with ground.worker() as worker:
        until_idle(worker)
    reasons = ground.query("select id::text, reason from tallymark.parked")
    assert [(id_, "headers cannot be sent" in why) for id_, why in reasons] == [(bad, True)]
    assert ground.compare().missing == frozenset({bad})


@pytest.mark.parametrize("name", ["bad name", ".."])
def test_a_topic_that_cannot_be_called_so_is_held_and_the_others_go_on(ground: Ground, name: str) -> None:
    with pytest.raises(psycopg.errors.CheckViolation, match="is not a topic's name"):
        ground.query("select tallymark.outbox_add(%s, 'x'::bytea)", name)
    # Past the function, by a plain INSERT:
    ground.query("insert into tallymark.outbox (id, topic) values (gen_random_uuid(), %s)", name)
    ground.add(5)
    with ground.worker() as worker:
        until_idle(worker)
    assert ground.query("select topic from tallymark.topic_holds") == [(name,)]
    assert len(ground.log()) == 5
