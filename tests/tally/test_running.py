"""What is tallied while it moves, and what was done to it since: on real stations."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition

from tallymark.broker.kafka import AdminClient
from tallymark.broker.partition import partition_of
from tallymark.message import new_id
from tallymark.pipeline.reconcile import Tally
from tallymark.pipeline.reconcileground import TallyConfig
from tallymark.pipeline.reconcileverify import Verification, data, links
from tallymark.store.postgres.findings import Findings
from tests.deleting import deleted
from tests.inbox.ground import ends
from tests.leaders import wait_for_markers
from tests.promises.test_p6_sabotage import produce
from tests.tally.ground import Journey, named
from tests.tally.test_snapshots import CONFIG, live, tallied
from tests.waiting import wait_for


def verified(spark: Any, journey: Journey) -> Verification:
    """What `tallymark tally verify` does."""
    found = Verification()
    chain = Findings(journey.bank.url).chain()
    links(chain, found)
    ground, cells = Tally(spark, live(journey), TallyConfig(everything=True, keep=False)).digests("bank")
    data(chain, ground, cells, found)
    return found


def test_an_effect_that_is_made_again_later_is_held_against_its_certificate(
    spark: Any, journey: Journey
) -> None:
    ledger = journey.ledger.name
    ids = journey.add([f"key-{n % 20}" for n in range(500)])
    journey.send()
    journey.receive()
    assert tallied(spark, live(journey), keep=True).certified == 2
    assert verified(spark, journey).holds
    # At its own place in the log, where the first one stands.
    journey.on_ledger(
        'insert into tallymark.applications (id, source, consumer, topic, partition, "offset", attempt, outcome)'
        " select id, source, consumer, topic, partition, \"offset\", 1, 'applied' from tallymark.inbox where id = %s",
        ids[250],
    )
    (wrong,) = verified(spark, journey).wrong
    assert (wrong["window"], wrong["what"]) == (
        [200, 400],
        f"{ledger} has made effects more than once: 1 too many",
    )
    whole = tallied(spark, live(journey), everything=True).as_json()
    assert named(whole["findings"]) == {(ids[250], ledger, "applied-twice", "apply")}


@pytest.mark.full
def test_nothing_is_owed_of_what_the_log_had_dropped_before_an_older_consumer_began_with_its_topic(
    spark: Any, journey: Journey, admin: AdminClient
) -> None:
    """When it began is written down with where: made long before that, it is held to nothing in between."""
    topic = journey.bank.topic
    journey.add([f"key-{n}" for n in range(100)])
    journey.send()
    deleted(admin, *(TopicPartition(topic, *place) for place in ends(journey.bank.servers, topic, 3).items()))
    journey.on_bank("update tallymark.outbox set created_at = created_at - interval '30 days'")
    journey.receive()
    journey.on_ledger("update tallymark.consumers set created_at = created_at - interval '60 days'")
    ids = journey.add([f"key-{n}" for n in range(100)])
    journey.send()
    journey.receive()
    journey.on_ledger("delete from tallymark.inbox where id = %s", ids[10])
    found = tallied(spark, live(journey)).as_json()["findings"]
    assert named(found) == {(ids[10], journey.ledger.name, "lost-in-inbox", "inbox")}


@contextmanager
def open_transaction(journey: Journey) -> Iterator[None]:
    """Somebody's, in every partition of the topic, from here on; it is aborted at the end."""
    producer = Producer(
        {"bootstrap.servers": journey.bank.servers, "transactional.id": "slow", "log_level": 0}
    )
    producer.init_transactions(30)
    producer.begin_transaction()
    for partition in range(3):
        producer.produce(journey.bank.topic, b"{}", b"slow", partition)
    assert producer.flush(30) == 0
    try:
        yield
    finally:
        producer.abort_transaction(30)


@pytest.mark.full
def test_what_was_sent_behind_an_open_transaction_is_not_lost(spark: Any, journey: Journey) -> None:
    """Nobody who reads committed records can see it, and the relay has marked it as sent."""
    journey.add([f"key-{n % 20}" for n in range(100)])
    journey.send()
    journey.receive()
    with open_transaction(journey):
        journey.add([f"key-{n % 20}" for n in range(150)])
        journey.bank.send_all()
        report = tallied(spark, live(journey), keep=True)
        assert (report.found, report.messages) == (0, 250)
        assert report.as_json()["by_verdict"] == {"delivered": 100, "pending": 150}
        assert (report.certified, report.uncertified) == (0, [])
        assert "a transaction is open in" in report.still_open[0][3]
    wait_for_markers(journey.bank.servers, journey.bank.topic)
    journey.receive()
    after = tallied(spark, live(journey), keep=True)
    assert (after.found, after.as_json()["by_verdict"]) == (0, {"delivered": 250})


@pytest.mark.full
def test_what_was_found_at_a_consumer_that_is_left_out_since_is_not_over(
    spark: Any, journey: Journey
) -> None:
    ids = journey.add(["alice"] * 10)
    journey.send()
    journey.receive()
    journey.on_ledger("delete from tallymark.inbox where id = %s", ids[5])
    assert tallied(spark, live(journey), keep=True).found == 1
    # It keeps its positions in Kafka from now on: nobody can say what it has passed.
    journey.on_ledger("update tallymark.consumers set positions = 'kafka'")
    (said,) = tallied(spark, live(journey), keep=True).remarks
    assert f"{journey.ledger.name} is left out" in said
    assert [each.finding.id for each in Findings(journey.bank.url).listed()] == [ids[5]]


@pytest.mark.full
def test_a_copy_that_names_no_source_is_a_copy_all_the_same(spark: Any, journey: Journey) -> None:
    """To the inbox it is another producer's message: it is applied again."""
    ids = journey.add([f"key-{n % 20}" for n in range(100)])
    journey.send()
    (copied,) = [record for record in journey.bank.log() if record.id == ids[30]]
    strange = [("ce_id", b"01a1e5cc-0a74-7423-9427-9b50fa70cf02"), ("tm_position", b"77")]
    for headers in (strange, [each for each in copied.headers if each[0] != "ce_source"]):
        produce(journey, copied.key, copied.value, list(headers), copied.partition)
    journey.receive()
    found = tallied(spark, live(journey), keep=True).as_json()
    assert named(found["findings"]) == {
        (ids[30], "", "doubled-in-log", "log"),
        (ids[30], journey.ledger.name, "applied-twice", "apply"),
    }
    assert found["by_verdict"]["foreign"] == 2


@pytest.mark.full
def test_what_only_an_inbox_has_is_found_whatever_its_id(spark: Any, journey: Journey) -> None:
    """Ids of a window lie close together: what lies between them is read first, and where that is not all, the rest."""
    ledger = journey.ledger.name
    ids = journey.add([f"key-{n % 20}" for n in range(300)])
    journey.send()
    journey.receive()
    journey.on_ledger("delete from tallymark.inbox where id = %s", ids[10])
    lost = (ids[10], ledger, "lost-in-inbox", "inbox")
    assert named(tallied(spark, live(journey)).as_json()["findings"]) == {lost}
    strange = str(new_id())
    for table, column, value in (
        ("inbox", "position", "20"),
        ("applications", "attempt, outcome", "1, 'applied'"),
    ):
        journey.on_ledger(
            f'insert into tallymark.{table} (id, source, consumer, topic, partition, "offset", {column})'
            f" values (%s, '/bank', %s, %s, 0, 1, {value})",
            *(strange, ledger, journey.bank.topic),
        )
    found = named(tallied(spark, live(journey)).as_json()["findings"])
    assert found == {lost, (strange, "", "phantom", "inbox")}


@pytest.mark.full
def test_a_later_run_certifies_a_window_with_an_id_of_another_kind(spark: Any, journey: Journey) -> None:
    """Inboxes keep it before all that name a time: read from the outbox's lowest id on, they lack it."""
    for count, other in ((300, None), (200, "7f2c5b0e-1d1a-4c64-9d0b-6a1f0f6f7a11")):
        ids = journey.add([f"key-{n % 20}" for n in range(count)])
        if other is not None:
            journey.on_bank("update tallymark.outbox set id = %s where id = %s", other, ids[0])
        journey.send()
        journey.receive()
        report = tallied(spark, live(journey), keep=True)
        assert (report.found, report.certified, report.uncertified) == (0, 1, [])


@pytest.mark.full
def test_beyond_so_many_windows_those_read_along_are_judged_by_all_that_was_recorded(
    spark: Any, journey: Journey
) -> None:
    """Their messages were read from outbox and inbox, and of the log only where those of other windows stand."""
    keys = ["often"] * 420
    # The only one in its partition of the log, in a window that nothing is wrong with.
    keys[15] = next(
        f"rare-{n}" for n in range(100) if partition_of(f"rare-{n}".encode(), 3) != partition_of(b"often", 3)
    )
    ids = journey.add(keys)
    journey.send()
    journey.receive()
    gone = [ids[at] for at in range(5, 420, 20)]
    journey.on_ledger("delete from tallymark.inbox where id = any(%s::uuid[])", gone)
    report = tallied(spark, live(journey), window_rows=10)
    said = report.as_json()
    assert named(said["findings"]) == {(each, journey.ledger.name, "lost-in-inbox", "inbox") for each in gone}
    assert said["messages"] == len(ids)


@pytest.mark.full
def test_nothing_is_owed_to_a_consumer_of_what_was_logged_before_it_began_at_the_log_s_end(
    spark: Any, journey: Journey
) -> None:
    """However long it has been known: it may have taken up the topic since. A resend would have it apply all of it."""
    journey.add([f"key-{n}" for n in range(100)])
    journey.send()
    journey.start = "end"
    journey.receive()
    journey.on_ledger("update tallymark.consumers set created_at = created_at - interval '30 days'")
    ids = journey.add([f"key-{n}" for n in range(100)])
    journey.send()
    journey.receive()
    journey.on_ledger("delete from tallymark.inbox where id = %s", ids[10])
    lost = {(ids[10], journey.ledger.name, "lost-in-inbox", "inbox")}
    assert named(tallied(spark, live(journey)).as_json()["findings"]) == lost
    # Where it began, whatever the time: the clock by which those were logged may be ahead.
    journey.on_ledger("update tallymark.positions set begun_at = begun_at - interval '30 days'")
    assert named(tallied(spark, live(journey)).as_json()["findings"]) == lost


def test_what_was_to_be_sent_later_and_no_relay_has_moved_is_late(spark: Any, journey: Journey) -> None:
    # So many that a window is certified: the second run begins behind it, and looks at a part alone.
    journey.add(["alice", "bob"] * 150)
    journey.send()
    journey.receive()
    # Overdue for an hour; due for a moment; due in an hour.
    overdue, due, later = (str(new_id()) for _ in range(3))
    for id_, due_at in ((overdue, "- interval '1 hour'"), (due, ""), (later, "+ interval '1 hour'")):
        journey.on_bank(
            "insert into tallymark.delayed (id, due_at, topic, key)"
            f" values (%s, clock_timestamp() {due_at}, %s, 'alice')",
            *(id_, journey.bank.topic),
        )
    report = tallied(spark, live(journey), keep=True)
    assert report.certified == 1
    (found,) = report.as_json()["findings"]
    assert (found["id"], found["stage"], found["verdict"]) == (overdue, "relay", "late")
    assert "no relay has moved it" in found["evidence"]
    with journey.bank.relay():
        wait_for(
            lambda: journey.on_bank("select count(*) from tallymark.delayed") == [(1,)],
            what="what is due is in the outbox",
        )
    journey.send()
    journey.receive()
    assert not tallied(spark, live(journey), keep=True).as_json()["findings"]
    assert not Findings(journey.bank.url).listed()


def test_what_retention_takes_while_a_run_reads_is_no_loss(spark: Any, journey: Journey) -> None:
    """Of a window that differs, so that single messages are looked at; and of a certified one."""
    ids = journey.add([f"key-{n % 20}" for n in range(500)])
    journey.send()
    journey.receive()
    assert tallied(spark, live(journey), keep=True).certified == 2
    journey.on_bank("update tallymark.outbox set key = 'x' where id = %s", ids[450])

    def passing(moment: str, row: str) -> Callable[[str], None]:
        """Inbox retention as it comes by: it says how far it goes, then it takes."""

        def at(said: str) -> None:
            if moment in said:
                journey.on_ledger("update tallymark.inbox_identity set kept_from = clock_timestamp()")
                journey.on_ledger("delete from tallymark.inbox where id = %s", row)

        return at

    run = Tally(spark, live(journey), CONFIG, progress=passing("single messages", ids[460])).run()
    assert named(run.as_json()["findings"]) == {(ids[450], "", "altered", "log")}
    journey.on_ledger(
        "update tallymark.inbox_identity set kept_from = timestamptz 'epoch' + interval '4294967.296 s'"
    )
    config = TallyConfig(everything=True, keep=False)
    looking = Tally(spark, live(journey), config, progress=passing("digests", ids[250]))
    data(Findings(journey.bank.url).chain(), *looking.digests("bank"), found := Verification())
    assert (found.wrong, found.past) == ([], 2)
