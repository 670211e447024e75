"""What is sent again comes in its order, and never behind a later message of its key: the stores alone."""

from __future__ import annotations

import pytest

from tallymark.store.postgres.resend import Resending, wanted_of
from tests.tally.resends import KEEP, Ground, tables

__all__ = ["tables"]


@pytest.fixture
def one_key(tables: str) -> Ground:
    return Ground(tables, ["alice", "bob", "alice"])


def test_findings_are_taken_in_the_order_of_positions() -> None:
    rows = [{"id": f"m{n}", "verdict": "lost-in-inbox", "position": n} for n in (3, 1, 2)]
    assert [each.id for each in wanted_of(rows)] == ["m1", "m2", "m3"]


def test_those_of_a_key_are_sent_again_in_their_order(one_key: Ground) -> None:
    first, _, second = one_key.ids
    done = Resending(one_key.url, {"main": one_key.url}).resend(
        list(reversed(wanted_of([{"id": each, "verdict": "lost-in-inbox"} for each in (first, second)]))),
        who="ann",
        reason="",
        any_order=False,
        dry_run=False,
    )
    assert ([each["id"] for each in done.resent], done.refused) == ([first, second], {})
    rows = one_key.query("select id::text from tallymark.outbox where position > 3 order by position")
    assert [id_ for (id_,) in rows] == [first, second]


@pytest.mark.parametrize("state", ["pending or unread", "queued", "applied"])
def test_it_is_refused_behind_a_later_one_of_its_key(one_key: Ground, state: str) -> None:
    if state != "pending or unread":
        one_key.keep(2, queued=state == "queued")
    resent, refused = one_key.resend(0, 1)
    assert resent == [one_key.ids[1]]
    said = "has applied a later message" if state == "applied" else "is on its way to ledger"
    assert said in refused[one_key.ids[0]]
    assert one_key.resend(0, any_order=True)[0] == [one_key.ids[0]]


def test_a_later_one_that_is_missed_too_is_no_hindrance(one_key: Ground) -> None:
    one_key.missed(2)
    assert one_key.resend(0)[0] == [one_key.ids[0]]
    # Kept at a position of its own by now: of the two it is still the earlier one.
    one_key.query(KEEP, 4)
    assert one_key.resend(2)[0] == [one_key.ids[2]]


def test_a_consumer_that_has_yet_to_read_it_is_no_hindrance(one_key: Ground) -> None:
    """It will find the original in the log, before the later one; what comes again then changes nothing."""
    one_key.query(
        "insert into tallymark.consumers (name, topics, mode) values ('audit', '{transfers}', 'inline')"
    )
    one_key.missed(0)
    one_key.missed(2)
    assert one_key.resend(0)[0] == [one_key.ids[0]]
    # Gone from the log, it is missed everywhere.
    one_key.query(
        "update tallymark.findings set consumer = '', last_seen = clock_timestamp() where position = 1"
    )
    assert "is on its way to audit" in one_key.resend(0)[1][one_key.ids[0]]


def test_a_later_one_that_only_others_lack_is_in_the_way(one_key: Ground) -> None:
    """Both are to be sent again, and the consumer that lacks the first has applied the second."""
    one_key.keep(2)
    resent, refused = one_key.resend(0, 2)
    assert resent == [one_key.ids[2]]
    assert "has applied a later message" in refused[one_key.ids[0]]


def test_many_of_one_key_are_sent_again_together(tables: str) -> None:
    ground = Ground(tables, ["alice"] * 30)
    assert ground.resend(*range(30)) == (ground.ids, {})


def test_a_later_one_that_was_sent_again_meanwhile_is_on_its_way(one_key: Ground) -> None:
    one_key.missed(2)
    assert one_key.resend(2)[0] == [one_key.ids[2]]
    assert "is on its way" in one_key.resend(0)[1][one_key.ids[0]]


def test_what_is_missed_again_can_be_sent_again_by_its_id(one_key: Ground) -> None:
    one_key.missed(1)
    assert one_key.resend(1)[0] == [one_key.ids[1]]
    assert "resent since" in one_key.resend(1)[1][one_key.ids[1]]
    one_key.query("update tallymark.findings set last_seen = clock_timestamp()")
    assert one_key.resend(1)[0] == [one_key.ids[1]]


def test_what_stays_away_keeps_the_earlier_ones_of_its_key_back(one_key: Ground) -> None:
    one_key.query(
        "insert into tallymark.applications (id, source, consumer, topic, partition, attempt, outcome)"
        " values (%s, '/bank', 'ledger', 'transfers', 0, 1, 'applied')",
        one_key.ids[2],
    )
    resent, refused = one_key.resend(0, 2)
    assert (resent, set(refused)) == ([], {one_key.ids[0], one_key.ids[2]})
    assert "is not sent again" in refused[one_key.ids[0]]
