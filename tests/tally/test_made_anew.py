"""What certificates and windows do not show: another log under the same name, and rows that swapped places."""

from __future__ import annotations

from typing import Any

import pytest

from tallymark.broker import peek
from tallymark.broker.kafka import AdminClient
from tallymark.errors import Problem
from tests.promises.test_c5_c7_b4_s6_positions import make_anew
from tests.tally.ground import Journey, named
from tests.tally.test_running import verified
from tests.tally.test_snapshots import live, tallied


def test_a_topic_that_was_made_anew_is_tallied_from_its_new_beginning(
    spark: Any, journey: Journey, admin: AdminClient
) -> None:
    """Everybody had what the old log held: nothing of it is lost, late, out of order or to be sent again."""
    topic, ledger = journey.bank.topic, journey.ledger.name
    bank = ["--database", journey.bank.url, "--bootstrap-servers", journey.bank.servers]
    unread = unread_at_the_end(journey)
    assert tallied(spark, live(journey), keep=True).certified == 2
    make_anew(admin, topic, 3)
    with pytest.raises(Problem, match="was deleted and made anew"):
        tallied(spark, live(journey))
    assert journey.tallymark("topics", "accept", topic, "--reason", "we made it anew", *bank)[0] == 0
    journey.add([f"key-{n % 20}" for n in range(30)])
    journey.send()
    # The consumer stands at an offset of a log that is no more: of the new one it has read nothing.
    report = tallied(spark, live(journey), keep=True)
    assert any(f"{ledger} stands in the log of {topic}/0 that was deleted" in each for each in report.remarks)
    assert any("was cut back, or made anew" in each for each in report.remarks)
    assert report.as_json()["by_verdict"] == {"delivered": 490, "lost-in-log": 10, "pending": 30}
    lost = {(id_, ledger, "lost-in-log", "log") for id_ in unread}
    assert named(report.as_json()["findings"]) == lost
    seek = [ledger, topic, "--to", "beginning", "--reason", "made anew", "--yes"]
    at_ledger = ["--database", journey.ledger.url, "--bootstrap-servers", journey.ledger.servers]
    assert journey.tallymark("inbox", "seek", *seek, *at_ledger)[0] == 0
    journey.receive()
    # All is read, whatever was asked for: certificates speak of the old one.
    report = tallied(spark, live(journey), keep=True)
    assert named(report.as_json()["findings"]) == lost
    assert report.as_json()["by_verdict"] == {"delivered": 520, "lost-in-log": 10}
    found = verified(spark, journey)
    assert (found.wrong, found.past) == ([], 2)
    # What was not read before is there to be sent again, into the new one.
    assert {
        row["id"] for row in journey.tallymark("tally", "resend", *journey.databases)[1]["resent"]
    } == unread
    journey.send()
    journey.receive()
    assert tallied(spark, live(journey), keep=True).found == 0


def unread_at_the_end(journey: Journey) -> set[str]:
    """Five hundred messages, of which the consumer has not read the last ones; gives back which."""
    journey.add([f"key-{n % 20}" for n in range(490)])
    journey.send()
    journey.receive()
    last = set(journey.add([f"last-{n}" for n in range(10)]))
    journey.send()
    return last


def test_rows_that_swapped_positions_or_went_to_another_topic_are_altered(
    spark: Any, journey: Journey
) -> None:
    """All digests of their windows are as they were: contents and ids are the same."""
    ids = journey.add([f"key-{n}" for n in range(500)])
    journey.send()
    journey.receive()
    swap = "update tallymark.outbox set position = position + %s where id = %s"
    for step, id_ in ((100_000, ids[20]), (-1, ids[21]), (1 - 100_000, ids[20])):
        journey.on_bank(swap, step, id_)
    journey.on_bank("update tallymark.outbox set topic = 'elsewhere' where id = %s", ids[250])
    report = tallied(spark, live(journey)).as_json()
    assert named(report["findings"]) == {(ids[n], "", "altered", "log") for n in (20, 21, 250)}
    assert report["differing"] == 2


def test_kafka_tells_which_position_lies_at_an_offset(journey: Journey) -> None:
    journey.add(["alice"] * 3)
    journey.send()
    log = journey.bank.log()
    place, at = (log[0].topic, log[0].partition), log[2].offset
    client = {"bootstrap.servers": journey.bank.servers}
    assert peek.claims(client, {place: at}) == {place: log[2].position}
    # Behind it lies the transaction's marker, and then nothing.
    assert peek.claims(client, {place: at + 1}) == {place: None}
    assert peek.claims(client, {place: at + 100}) == {place: None}
    assert peek.claims(client, {}) == {}
