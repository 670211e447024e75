"""What operators see and do at an inbox, by the command line."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from tallymark.broker.kafka import AdminClient
from tallymark.cli.inbox import require_all
from tallymark.cli.inboxview import Ends, shown
from tallymark.cli.seekto import Target, place_of, target_of
from tallymark.errors import Problem, UsageError
from tallymark.lifecycle import Role
from tallymark.store.postgres.inboxoperators import InboxOperators
from tallymark.store.postgres.tally import TallyConsumers
from tests.children import start_child
from tests.conftest import MakeTopic
from tests.inbox.conftest import MakeInboxGround
from tests.inbox.ground import Ground
from tests.waiting import wait_for


def verb(ground: Ground, *arguments: str, code: int = 0) -> Any:
    """Run a verb with --json; what it printed."""
    with start_child(
        ["-m", "tallymark", *arguments, "--json"],
        environment={
            "TALLYMARK_DATABASE": ground.url,
            "TALLYMARK_BOOTSTRAP_SERVERS": ground.servers,
            "TALLYMARK_LOG_LEVEL": "error",
        },
    ) as child:
        assert child.wait() == code, child.output
        return json.loads(child.output.strip().splitlines()[-1])


def test_all_of_a_topic_is_moved_or_none() -> None:
    places = [("transfers", 0), ("transfers", 1)]
    require_all(places, dict.fromkeys(places, 5))
    with pytest.raises(Problem, match="Kafka says nothing of transfers/1"):
        require_all(places, {places[0]: 5})


def states(ground: Ground) -> list[str]:
    return [row[0] for row in ground.query("select state from tallymark.dead_letters")]


def test_status_shows_positions_lag_and_what_needs_attention(inbox_ground: Ground) -> None:
    inbox_ground.send(30)
    inbox_ground.apply_all(30)
    # Behind the last message of each partition stands a marker: the lag is 0 only when it was passed.
    (before,) = verb(inbox_ground, "inbox", "status")
    assert before["consumer"] == inbox_ground.name
    assert before["topics"] == [inbox_ground.topic]
    assert len(before["positions"]) == 3
    assert before["instances"] == []
    inbox_ground.send(10)
    (after,) = verb(inbox_ground, "inbox", "status", inbox_ground.name)
    assert after["lag"] >= 10
    assert any(each["lag_s"] > 0 for each in after["positions"] if each["lag"])
    assert all(each["log_end"] is not None for each in after["positions"])


def test_a_pause_holds_until_it_is_ended(inbox_ground: Ground) -> None:
    inbox_ground.send(10)
    with inbox_ground.inbox() as child:
        inbox_ground.wait_applied(10, child)
        assert verb(inbox_ground, "inbox", "pause", inbox_ground.name, "--reason", "a look")["changed"]
        child.wait_output("paused")
        inbox_ground.send(10)
        (found,) = verb(inbox_ground, "inbox", "status", inbox_ground.name)
        assert found["paused"]
        assert found["lag"] >= 10
        assert inbox_ground.applied() == 10
        verb(inbox_ground, "inbox", "resume", inbox_ground.name)
        inbox_ground.wait_applied(20, child)
    assert inbox_ground.compare().is_clean
    actions = inbox_ground.query("select action, reason from tallymark.audit order by at")
    assert actions == [("inbox.pause", "a look"), ("inbox.resume", "")]


def test_seeking_back_reads_again_and_changes_nothing_while_it_runs(inbox_ground: Ground) -> None:
    inbox_ground.send(40)
    with inbox_ground.inbox() as child:
        inbox_ground.wait_applied(40, child)
        before = inbox_ground.positions()
        assert all(before.values()), "each partition has something to read again"
        done = verb(
            inbox_ground,
            *(
                "inbox",
                "seek",
                inbox_ground.name,
                inbox_ground.topic,
                "--to",
                "beginning",
                "--reason",
                "to see",
                "--yes",
            ),
        )
        assert {each["after"] for each in done} == {0}
        inbox_ground.send(5)
        inbox_ground.wait_applied(45, child)
        wait_for(
            lambda: all(at >= before[partition] for partition, at in inbox_ground.positions().items()),
            what="all was read again",
        )
    assert inbox_ground.compare().is_clean
    details = inbox_ground.value("select details from tallymark.audit where action = 'inbox.seek'")
    assert len(details["moves"]) == 3


def test_seeking_by_time_id_and_end_names_what_is_skipped(inbox_ground: Ground) -> None:
    ids = inbox_ground.send(20, account="account-1")
    inbox_ground.apply_all(20)
    topic = inbox_ground.topic
    common = ("--reason", "to see", "--yes")
    by_id = verb(inbox_ground, "inbox", "seek", inbox_ground.name, topic, "--to", ids[7], *common)
    place = inbox_ground.query('select partition, "offset" from tallymark.inbox where id = %s', ids[7])[0]
    assert [(each["partition"], each["after"]) for each in by_id] == [place]
    long_ago = verb(inbox_ground, "inbox", "seek", inbox_ground.name, topic, "--to", "-2d", *common)
    assert {each["after"] for each in long_ago} == {0}
    verb(inbox_ground, "inbox", "seek", inbox_ground.name, topic, "--to", "end", *common)
    (found,) = verb(inbox_ground, "inbox", "status", inbox_ground.name)
    assert found["lag"] == 0


def test_a_seek_that_cannot_be_meant_is_refused(inbox_ground: Ground) -> None:
    inbox_ground.send(3)
    inbox_ground.apply_all(3)
    name, topic, surely = inbox_ground.name, inbox_ground.topic, ("--reason", "x", "--yes")
    for arguments, said in (
        ((name, f"{topic}/0", "--to", "999999", *surely), "has no offset 999999"),
        ((name, topic, "--to", "5", *surely), "of which partition"),
        ((name, f"{topic}/9", "--to", "end", *surely), "has no partition 9"),
        ((name, "elsewhere", "--to", "end", *surely), "does not read elsewhere"),
        ((name, topic, "--to", "end", "--yes"), "with a reason"),
        (("nobody", topic, "--to", "end", *surely), "there is no consumer nobody"),
    ):
        assert said in verb(inbox_ground, "inbox", "seek", *arguments, code=2)["error"]


def test_a_dead_letter_is_listed_shown_retried_and_its_key_goes_on_in_order(inbox_ground: Ground) -> None:
    bad = inbox_ground.send(1, account="account-1", do="raise-until-fixed")[0]
    behind = inbox_ground.send(3, account="account-1")
    inbox_ground.send(10, account="account-2")
    with inbox_ground.inbox() as child:
        inbox_ground.wait_applied(10, child)
        wait_for(lambda: states(inbox_ground) == ["dead"], what="the message is dead")
        (listed,) = verb(inbox_ground, "failed", "list", "--at", "inbox")
        assert listed["id"] == bad
        assert (listed["attempts"], listed["holds_key"], listed["behind"]) == (3, True, len(behind))
        shown = verb(inbox_ground, "failed", "show", bad, "--at", "inbox", "--payload")
        assert "told to fail until it is fixed" in shown["reason"]
        assert "Traceback" in shown["traceback"]
        assert json.loads(shown["value"])["account"] == "account-1"
        inbox_ground.query("update switch set fixed = true")
        assert verb(inbox_ground, "failed", "retry", bad, "--at", "inbox")["retried"] == [bad]
        inbox_ground.wait_applied(14, child)
        wait_for(lambda: states(inbox_ground) == ["applied"], what="the dead letter is applied")
    assert inbox_ground.compare().is_clean
    assert verb(inbox_ground, "failed", "list", "--at", "inbox") == []


def test_a_dead_letter_is_discarded_with_a_reason_and_its_key_goes_on(inbox_ground: Ground) -> None:
    bad = inbox_ground.send(1, account="account-1", do="permanent")[0]
    inbox_ground.send(3, account="account-1")
    with inbox_ground.inbox() as child:
        wait_for(lambda: states(inbox_ground) == ["dead"], what="the message is dead")
        refused = verb(inbox_ground, "failed", "discard", bad, "--at", "inbox", "--yes", code=2)
        assert "needs a reason" in refused["error"]
        verb(inbox_ground, "failed", "discard", bad, "--at", "inbox", "--yes", "--reason", "no such account")
        inbox_ground.wait_applied(3, child)
    assert inbox_ground.compare(without=[bad]).is_clean
    assert inbox_ground.query("select action, subject, reason from tallymark.audit") == [
        ("failed.discard", bad, "no such account")
    ]


def test_a_dead_letters_copy_leaves_for_its_topic_once(
    make_inbox_ground: MakeInboxGround, make_topic: MakeTopic
) -> None:
    ground = make_inbox_ground(role=Role.BOTH)
    graveyard = make_topic(1)
    bad = ground.send(1, account="account-1", do="permanent")[0]
    with ground.inbox(dead_letter_topic=graveyard):
        wait_for(lambda: states(ground) == ["dead"], what="the message is dead")
    ((topic, key, headers),) = ground.query("select topic, key, headers from tallymark.outbox")
    assert (topic, bytes(key)) == (graveyard, b"account-1")
    assert headers["tm_dead_id"] == bad
    assert "NoSuchAccount" in headers["tm_dead_reason"]


def test_a_dead_letter_topic_needs_an_outbox(inbox_ground: Ground) -> None:
    with inbox_ground.inbox(dead_letter_topic="graveyard") as child:
        assert child.wait() == 1
        assert "tallymark init --role producer" in child.output
        assert "Traceback" not in child.output


def test_groups_offsets_in_kafka_follow(inbox_ground: Ground, admin: AdminClient) -> None:
    from confluent_kafka import Consumer, TopicPartition

    inbox_ground.send(30)
    inbox_ground.apply_all(30)
    consumer = Consumer(
        {"bootstrap.servers": inbox_ground.servers, "group.id": inbox_ground.name, "log_level": 0}
    )
    try:
        found = consumer.committed(
            [TopicPartition(inbox_ground.topic, each) for each in range(3)], timeout=20
        )
    finally:
        consumer.close()
    positions = inbox_ground.positions()
    assert {each.partition: each.offset for each in found if each.offset >= 0} == {
        partition: offset for partition, offset in positions.items() if offset
    }


def test_what_a_seek_aims_at_is_told_from_its_form() -> None:
    now = datetime(2026, 6, 1, 12, tzinfo=UTC)
    assert target_of("17", now) == Target("offset", offset=17)
    assert target_of("beginning", now) == Target("beginning")
    assert target_of("-2h", now).moment == now - timedelta(hours=2)
    assert target_of("3d ago", now).moment == now - timedelta(days=3)
    assert target_of("2026-05-01T00:00+02:00", now).kind == "time"
    assert target_of("0190a8c0-0000-7000-8000-000000000001", now).kind == "id"
    for wrong in ("yesterday", "2026-05-01T00:00", "-5"):
        with pytest.raises(UsageError):
            target_of(wrong, now)
    assert place_of("a.b") == ("a.b", None)
    assert place_of("a/b/3") == ("a/b", 3)
    with pytest.raises(UsageError):
        place_of("a/b")


def test_a_consumer_that_was_stopped_for_good_is_waited_for_no_more(inbox_ground: Ground) -> None:
    name, tally = inbox_ground.name, TallyConsumers("ledger", inbox_ground.url)
    retire = ("inbox", "retire", name, "--reason", "moved to another service")
    inbox_ground.send(3)
    with inbox_ground.inbox() as child:
        inbox_ground.wait_applied(3, child)
        assert "still runs" in verb(inbox_ground, *retire, code=1)["error"]
        assert [each.name for each in tally.views()] == [name]
        child.terminate()
        assert child.wait() == 0, child.output
    assert "say why" in verb(inbox_ground, *retire[:3], code=2)["remedy"]
    assert verb(inbox_ground, *retire)["changed"]
    assert not verb(inbox_ground, *retire)["changed"]
    assert "nobody" in verb(inbox_ground, "inbox", "retire", "nobody", "--reason", "x", code=2)["error"]
    assert (tally.views(), tally.retired()) == ([], {name})
    assert verb(inbox_ground, "inbox", "status") == []
    assert InboxOperators(inbox_ground.url).retired() == [name]
    assert shown([], Ends({}, {}), "", [name]) == [f"retired: {name}"]
    assert len(verb(inbox_ground, "inbox", "status", name)) == 1
    assert inbox_ground.query("select action, subject from tallymark.audit") == [("inbox.retire", name)]
    inbox_ground.send(3)
    inbox_ground.apply_all(6)  # started again, it is a consumer like any other
    assert ([each.name for each in tally.views()], tally.retired()) == ([name], set())


def test_a_topic_that_a_consumer_reads_no_more_is_waited_for_no_more(inbox_ground: Ground) -> None:
    name, topic, tally = inbox_ground.name, inbox_ground.topic, TallyConsumers("ledger", inbox_ground.url)
    retire = ("inbox", "retire", name, "--topic", topic, "--reason", "another service has it now")
    inbox_ground.send(3)
    inbox_ground.apply_all(3)
    assert "reads" in verb(inbox_ground, *retire, code=1)["error"]
    with psycopg.connect(
        inbox_ground.url
    ) as connection:  # as its next start would, with another list of topics
        connection.execute("update tallymark.consumers set topics = '{others}'")
    assert topic in tally.views()[0].topics, "half of a roll-out is no reason to forget what is owed"
    assert "say why" in verb(inbox_ground, *retire[:5], code=2)["remedy"]
    held = "update tallymark.positions set owner = %s, owner_kind = %s, lease_until = %s where partition = 0"
    with psycopg.connect(
        inbox_ground.url
    ) as connection:  # as the last one that read it does, until it is gone
        connection.execute(held, ["old", "service", datetime.now(UTC) + timedelta(hours=1)])
    assert "old holds" in verb(inbox_ground, *retire, code=1)["error"]
    with psycopg.connect(inbox_ground.url) as connection:
        connection.execute(held, [None, None, None])
    assert verb(inbox_ground, *retire)["changed"]
    assert not verb(inbox_ground, *retire)["changed"]
    assert "never read" in verb(inbox_ground, *retire[:4], "nothing", "--reason", "x", code=2)["error"]
    assert tally.views()[0].topics == {"others"}
    assert verb(inbox_ground, "inbox", "status")[0]["positions"] == []
    inbox_ground.send(3)
    inbox_ground.apply_all(6)  # read again, it goes on where it stood
    assert tally.views()[0].topics == {topic}
    assert (
        len(tally.views()[0].next_offsets) == len(verb(inbox_ground, "inbox", "status")[0]["positions"]) > 0
    )


def test_a_paused_consumer_stays_paused_through_a_seek(inbox_ground: Ground) -> None:
    name, topic = inbox_ground.name, inbox_ground.topic
    inbox_ground.send(10)
    with inbox_ground.inbox() as child:
        inbox_ground.wait_applied(10, child)
        verb(inbox_ground, "inbox", "pause", name)
        child.wait_output("paused")
        inbox_ground.query("delete from tallymark.inbox")  # so that what is read again would be applied again
        verb(inbox_ground, "inbox", "seek", name, topic, "--to", "beginning", "--reason", "x", "--yes")
        wait_for(
            lambda: inbox_ground.value("select bool_and(owner is not null) from tallymark.positions"),
            what="the positions are taken again",
        )
        heard = inbox_ground.value("select max(seen_until) from tallymark.instances")
        wait_for(
            lambda: (
                inbox_ground.value("select max(seen_until) from tallymark.instances") > heard
                and inbox_ground.value("select max(seen_until) - %s > '3 s' from tallymark.instances", heard)
            ),
            what="some more heartbeats",
        )
        assert inbox_ground.applied() == 10
        verb(inbox_ground, "inbox", "resume", name)
        inbox_ground.wait_applied(20, child)


def test_positions_that_are_kafkas_are_shown_and_sought_there(inbox_ground: Ground) -> None:
    """There are none in the database: a seek there would say that it had moved something, and change nothing."""
    ground = inbox_ground
    seek = ("inbox", "seek", ground.name, ground.topic, "--to", "beginning", "--reason", "x", "--yes")
    ground.send(20)
    with ground.inbox(positions="kafka") as child:
        ground.wait_applied(20, child)
        assert "stop its processes first" in verb(ground, *seek, code=1)["remedy"]
        child.terminate()
        assert child.wait() == 0, child.output
    (shown,) = verb(ground, "inbox", "status", ground.name)
    assert len(shown["positions"]) == 3
    assert shown["lag"] <= 3, "markers alone, if anything"
    moved = verb(ground, *seek)
    assert sum(each["before"] - each["after"] for each in moved) >= 20
    (shown,) = verb(ground, "inbox", "status", ground.name)
    assert shown["lag"] >= 20
    assert ground.value("select count(*) from tallymark.audit where action = 'inbox.seek'") == 1
    assert ground.positions() == {}
