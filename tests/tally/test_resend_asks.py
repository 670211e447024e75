"""Whom a resend asks, and what it takes from their answers: versions, any order, other copies, times of looking."""

from __future__ import annotations

import uuid
from typing import Any

import psycopg
import pytest

from tallymark import Inbox, Message, Version
from tallymark.lifecycle import Stage, Verdict
from tallymark.store.postgres.findings import Findings
from tallymark.store.postgres.resend import Resending, wanted_of
from tallymark.tally.findings import Finding, Scope
from tallymark.testing import Delivered, deliver
from tests.tally.resends import APPLY, DIE, Ground, in_log, tables

__all__ = ["tables"]


@pytest.fixture
def one_key(tables: str) -> Ground:
    return Ground(tables, ["alice", "bob", "alice"])


def test_under_versions_it_is_sent_again_and_overwrites_nothing(one_key: Ground) -> None:
    """Pitfall 18: m1 lost, m2 applied, m1 resent, at a position behind m2's."""
    one_key.keep(2)
    one_key.enlisted(versioned=("transfers",))
    assert one_key.resend(0)[0] == [one_key.ids[0]]
    inbox = Inbox("newest")
    seen = []

    @inbox.handler("transfers", once=Version(), decode=bytes.decode)
    def apply(message: Message, _tx: Any) -> None:
        seen.append(message.position)

    with psycopg.connect(one_key.url) as tx:
        assert deliver(inbox, in_log(one_key, 3), tx, times=1) == [Delivered.APPLIED]
        assert deliver(inbox, in_log(one_key, 4), tx, times=1) == [Delivered.OLDER]
    assert seen == [3]


def test_a_resend_whose_original_is_gone_stands_where_that_stood(one_key: Ground) -> None:
    one_key.missed(0)
    one_key.missed(2)
    assert one_key.resend(0)[0] == [one_key.ids[0]]
    one_key.query("delete from tallymark.outbox where position = 1")
    one_key.query("update tallymark.findings set last_seen = clock_timestamp()")
    assert one_key.resend(0)[0] == [one_key.ids[0]]
    assert one_key.query("select of_position from tallymark.resends order by position") == [(1,), (1,)]
    assert '"tm_origin":"1"' in in_log(one_key, 5).headers


def test_versions_of_a_scheme_that_was_left_count_for_nothing(one_key: Ground) -> None:
    one_key.query("insert into tallymark.versions values ('ledger', 'transfers', 'alice', 3)")
    one_key.keep(2)
    one_key.enlisted(versioned=())
    assert "has applied a later message" in one_key.resend(0)[1][one_key.ids[0]]


def test_who_takes_any_order_is_no_hindrance_and_others_still_are(one_key: Ground) -> None:
    one_key.keep(2)
    one_key.enlisted(unordered=("transfers",))
    assert one_key.resend(0)[0] == [one_key.ids[0]]
    one_key.query(
        "insert into tallymark.consumers (name, topics, mode) values ('audit', '{transfers}', 'inline')"
    )
    one_key.query("update tallymark.inbox set consumer = 'audit'")
    one_key.query("delete from tallymark.resends")
    assert "audit has applied a later message" in one_key.resend(0)[1][one_key.ids[0]]


def test_one_that_stays_away_holds_nobody_back_who_takes_any_order(one_key: Ground) -> None:
    one_key.enlisted(unordered=("transfers",))
    one_key.query(
        "insert into tallymark.applications (id, source, consumer, topic, partition, attempt, outcome)"
        " values (%s, '/bank', 'ledger', 'transfers', 0, 1, 'applied')",
        one_key.ids[2],
    )
    assert one_key.resend(0, 2)[0] == [one_key.ids[0]]


def test_a_consumer_that_lacks_it_must_be_asked(one_key: Ground) -> None:
    one_key.missed(1)
    one_key.missed(1, "audit")
    assert "audit lacks it" in one_key.resend(1)[1][one_key.ids[1]]
    one_key.query("delete from tallymark.findings where consumer = 'audit'")
    # As a file of findings says, which may be another run's.
    found = [{"id": one_key.ids[1], "verdict": "lost-in-inbox", "consumer": each} for each in ("ledger", "x")]
    options = {"who": "ann", "reason": "", "any_order": False, "dry_run": False}
    done = Resending(one_key.url, {"main": one_key.url}).resend(wanted_of(found), **options)  # type: ignore[arg-type]
    assert "x lacks it" in done.refused[one_key.ids[1]]
    done = Resending(one_key.url, {"main": one_key.url}).resend(wanted_of(found[:1]), **options)  # type: ignore[arg-type]
    assert [each["id"] for each in done.resent] == [one_key.ids[1]]


def test_in_any_order_too_whoever_lacks_it_must_be_asked(one_key: Ground) -> None:
    """Its effect was made, and its inbox row is gone: sent again, it would be applied twice (P5)."""
    one_key.query(APPLY, one_key.ids[1])
    one_key.missed(1)
    resent, refused = one_key.resend(1, any_order=True, asked=False)
    assert (resent, "ledger lacks it, and its database was not asked" in refused[one_key.ids[1]]) == (
        [],
        True,
    )
    assert "it would be applied twice" in one_key.resend(1, any_order=True)[1][one_key.ids[1]]
    one_key.missed(0, "audit")
    assert "audit lacks it" in one_key.resend(0, any_order=True)[1][one_key.ids[0]]
    assert one_key.query("select count(*) from tallymark.outbox") == [(3,)]


def test_where_nobody_is_asked_whom_the_last_tally_knew_may_have_made_its_effect(one_key: Ground) -> None:
    """Asked for by its id alone, when the tally had nothing against it: the inbox may have lost it since."""
    assert "no consumer's database was given" in one_key.resend(1, asked=False)[1][one_key.ids[1]]
    one_key.knew(news=["papers"], ledger=["papers", "transfers"])
    refused = one_key.resend(1, any_order=True, asked=False)[1]
    assert "no consumer's database was given, and ledger reads its topic" in refused[one_key.ids[1]]
    # It is no more, or reads something else: the last run says so.
    one_key.knew(news=["papers"])
    assert one_key.resend(1, any_order=True, asked=False) == ([one_key.ids[1]], {})


def test_another_message_under_its_id_that_died_does_not_undo_that_it_was_applied(one_key: Ground) -> None:
    one_key.keep(2)
    one_key.query(DIE, 77, one_key.ids[2])
    assert "has applied a later message" in one_key.resend(0)[1][one_key.ids[0]]
    # It is itself that died, where that stands in its place.
    one_key.query(DIE, None, one_key.ids[2])
    assert one_key.resend(0)[0] == [one_key.ids[0]]


def test_what_waits_to_be_sent_again_is_not_missed(one_key: Ground) -> None:
    one_key.missed(2)
    assert one_key.resend(2)[0] == [one_key.ids[2]]
    one_key.query("update tallymark.batches set covered = 3, upto = 3")
    one_key.query("update tallymark.findings set last_seen = clock_timestamp()")
    assert "is on its way" in one_key.resend(0)[1][one_key.ids[0]]


def test_a_finding_is_as_old_as_the_look_at_the_stations(one_key: Ground) -> None:
    """A run that looked before the resend, and is done after it, has not missed what was sent again."""
    looked = one_key.query("select clock_timestamp()")[0][0]
    one_key.missed(1)
    one_key.query("update tallymark.findings set last_seen = last_seen - interval '1 hour'")
    assert one_key.resend(1)[0] == [one_key.ids[1]]
    findings, run, scope = Findings(one_key.url), uuid.uuid4(), Scope(0, 10)
    lost = Finding(
        one_key.ids[1], None, "transfers", 0, 2, 2, "ledger", Stage.INBOX, Verdict.LOST_IN_INBOX, ""
    )
    findings.begin(run, scope, who="ann")
    findings.keep(run, scope, [lost], at=looked)
    assert [each.last_seen for each in findings.listed()] == [looked]
    assert "resent since" in one_key.resend(1)[1][one_key.ids[1]]
    # What was seen later is not made older by a run over yesterday's snapshot.
    now = one_key.query("select clock_timestamp()")[0][0]
    findings.keep(run, scope, [lost], at=now)
    findings.keep(run, scope, [lost], at=looked)
    assert [each.last_seen for each in findings.listed()] == [now]


def test_what_was_sent_again_is_dated_when_all_of_it_was_written(one_key: Ground) -> None:
    """Nobody who looks before the commit may have looked after that time."""
    assert len(one_key.resend(0, 1, 2)[0]) == 3
    first = one_key.query("select min(resent_at) from tallymark.resends")
    last = one_key.query("select max(at) from tallymark.audit")
    assert first >= last


def test_it_tells_what_it_is_at(one_key: Ground) -> None:
    told: list[str] = []
    Resending(one_key.url, {"main": one_key.url}, progress=told.append).resend(
        wanted_of([{"id": one_key.ids[1], "verdict": "lost-in-inbox"}]),
        who="ann",
        reason="",
        any_order=False,
        dry_run=True,
    )
    assert told == [
        "where they stand",
        "later messages of their keys, in the outbox",
        "what main has applied of their keys",
        "0 of 1 written again",
    ]


def test_an_inbox_forgets_ids_without_a_time_by_their_place(one_key: Ground) -> None:
    one_key.named(1)
    one_key.missed(1)
    one_key.query("insert into tallymark.named_pruned values ('ledger', 'transfers', 0, 8)")

    def refused(partition: int | None, offset: int | None, topic: str = "transfers") -> bool:
        one_key.query(
            'update tallymark.findings set topic = %s, partition = %s, "offset" = %s, last_seen = clock_timestamp()',
            *(topic, partition, offset),
        )
        resent, why = one_key.resend(1)
        assert bool(resent) is not ("no longer remembers" in why.get(one_key.ids[1], "")), why
        return not resent

    try:
        assert refused(None, None)
        assert refused(0, 7)
        # It stood elsewhere in what a finding of another topic speaks of.
        assert refused(0, 8, topic="other")
        assert not refused(0, 8)
        # Now it stands in two places, and it is known of one.
        assert refused(0, 8)
        one_key.query("delete from tallymark.resends")
        assert not refused(1, 7)
    finally:
        one_key.query("delete from tallymark.named_pruned")


def test_an_inbox_is_asked_whether_it_remembers_that_time(one_key: Ground) -> None:
    one_key.query("update tallymark.inbox_identity set kept_from = clock_timestamp() + interval '1 minute'")
    try:
        resent, refused = one_key.resend(0)
        assert resent == []
        assert "no longer remembers" in refused[one_key.ids[0]]
        one_key.named(1)
        assert one_key.resend(1)[0] == [one_key.ids[1]]
        one_key.query("insert into tallymark.named_pruned values ('ledger', 'transfers', 0, 1)")
        one_key.query("delete from tallymark.resends")
        assert "no longer remembers" in one_key.resend(1)[1][one_key.ids[1]]
    finally:
        one_key.query("delete from tallymark.named_pruned")
        one_key.query(
            "update tallymark.inbox_identity set kept_from = timestamptz 'epoch' + interval '4294967.296 s'"
        )
