"""What is sent again comes in its order, and never behind a later message of its key: the stores alone."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from tallymark.store.postgres.migrations import migrate
from tallymark.store.postgres.resend import Resending, wanted_of
from tests.journal import query

FILL = """
insert into tallymark.outbox (id, topic, key, value)
select tallymark.new_id(), 'transfers', convert_to(k, 'utf8'), 'x' from unnest(%s::text[]) with ordinality u(k, n)
 order by n;
insert into tallymark.consumers (name, topics, mode) values ('ledger', '{transfers}', 'inline');
"""
SEND = """
insert into tallymark.batches (covered, lane, number, token, kind, after_position, upto, messages, mode, state, owner,
                               epoch, receipt_offset, claimed_at, sent_at)
select 100, lane, 1, gen_random_uuid(), 'range', 0, 100, 1, 'transactional', 'sent', 'relay-1', 1, 1, now(), now()
  from tallymark.lanes
"""
KEEP = """
insert into tallymark.inbox (id, source, topic, partition, "offset", position, key, value, consumer)
select id, '/bank', topic, 0, position, position, key, value, 'ledger' from tallymark.outbox where position = %s
"""


class Ground:
    """An outbox and a consumer in one database; nothing runs."""

    def __init__(self, url: str, keys: list[str]) -> None:
        self.url = url
        migrate(url)
        with psycopg.connect(url) as connection:
            for statement in FILL.split(";\n")[:2]:
                connection.execute(statement, [keys] if "%s" in statement else None)
            connection.execute(SEND)
        self.ids = [row[0] for row in self.query("select id::text from tallymark.outbox order by position")]

    def query(self, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
        return query(self.url, sql, parameters)

    def keep(self, number: int, *, queued: bool = False) -> None:
        self.query(KEEP, number + 1)
        if queued:
            self.query(
                'insert into tallymark.queue (consumer, key_hash, source, id, topic, partition, "offset")'
                " values ('ledger', 1, '/bank', %s, 'transfers', 0, %s)",
                self.ids[number],
                number + 1,
            )

    def missed(self, number: int) -> None:
        """A tally has found that the consumer lacks it."""
        self.query(
            "insert into tallymark.findings (id, verdict, consumer, stage, topic, position, evidence, run)"
            " values (%s, 'lost-in-inbox', 'ledger', 'inbox', 'transfers', %s, '', gen_random_uuid())",
            self.ids[number],
            number + 1,
        )

    def resend(self, *numbers: int, any_order: bool = False) -> tuple[list[str], dict[str, str]]:
        found = [{"id": self.ids[n], "verdict": "lost-in-inbox", "position": n + 1} for n in numbers]
        done = Resending(self.url, {"main": self.url}).resend(
            wanted_of(found), who="ann", reason="", any_order=any_order, dry_run=False
        )
        return [str(each["id"]) for each in done.resent], done.refused


@pytest.fixture
def one_key(database: str) -> Ground:
    return Ground(database, ["alice", "bob", "alice"])


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


def test_many_of_one_key_are_sent_again_together(database: str) -> None:
    ground = Ground(database, ["alice"] * 30)
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
