"""Certificates hold for the log that they were given for: one that was cut back, or made anew, is read from its start."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from tallymark.lifecycle import Stage, Verdict
from tallymark.pipeline.reconcilecells import Cells
from tallymark.pipeline.reconcilecertify import stated
from tallymark.pipeline.reconcilejudge import Judge
from tallymark.pipeline.reconcilemarks import Single
from tallymark.pipeline.reconcilerange import anchored, other_log, pass_certified
from tallymark.pipeline.reconcileverify import Verification, data
from tallymark.tally.chain import broken_links, chained_hash, issued, trusted
from tallymark.tally.records import Horizon
from tallymark.tally.verdicts import Marks
from tests.tally.test_accounting import said, whole
from tests.tally.test_certifying import NOW, P0, P1, ground, ledger


def passed(**changes: Any) -> Any:
    """A ground that begins behind its first two windows, at offset 20 of partition 0."""
    both = whole()
    other = whole(1)
    for name in ("outbox", "log", "inbox"):
        getattr(both, name).update(getattr(other, name))
    where = ground(**changes)
    given = [stated(ground(), both, number, resume={P0: 20, P1: 0}) for number in (0, 1)]
    pass_certified(where, given)
    assert (where.first, where.goes_on) == (20, True)
    return where


def test_the_last_message_of_what_is_passed_by_must_stand_where_it_stood() -> None:
    where = passed()
    assert anchored(where) == {P0: 19}
    assert other_log(where, {P0: 15}) is None
    # Another message, one of nobody's, none at all.
    for claim in (20, 9, None):
        assert other_log(where, {P0: claim}) == (
            "the log of t/0 was cut back, or made anew, since it was certified"
        )


def test_a_log_that_ends_before_what_is_to_be_read_was_cut_back() -> None:
    assert "t/0 was cut back" in str(other_log(passed(ends={P0: 19, P1: 0}), {}))
    assert other_log(passed(ends={P0: 20, P1: 0}), {P0: 15}) is None


def test_what_retention_has_dropped_and_what_compaction_may_have_is_not_looked_for() -> None:
    assert anchored(passed(starts={P0: 19, P1: 0})) == {P0: 19}
    gone = passed(ends={P0: 100, P1: 100})
    gone.starts = {P0: 20, P1: 0}
    assert anchored(gone) == {}
    assert anchored(passed(compacted=frozenset({"t"}))) == {}


def lost(*, age_s: float, kept_at: int | None = None, **horizon: Any) -> tuple[Verdict, Stage]:
    """The message at position 5 of a key that is in partition 1 of two today, which begins at 0 and has 40 first."""
    key = next(each for each in (b"a", b"b", b"c", b"d", b"e") if _partition(each) == 1)
    cells = Cells(10)
    cells.firsts = {("t", 0, 0): 50, ("t", 1, 0): 40}
    cells.lasts = dict(cells.firsts)
    single = Single(
        *("m1", "t", key, None if kept_at is None else 0, kept_at, 5, None, 0, age_s, False),
        Marks(rows=1, sent=1, kept_anywhere=int(kept_at is not None)),
        {},
        (Verdict.LOST_IN_RELAY, Stage.RELAY),
        5,
    )
    at = Horizon(log_starts={P0: 30, P1: 0}, expires_after_s={"t": 900.0}, **horizon)
    (found,) = Judge(ground(), cells, at, {}, []).judged([single])
    return found.verdict, found.findings[0].stage if found.findings else Stage.LOG


def _partition(key: bytes) -> int:
    from tallymark.broker.partition import partition_of

    return partition_of(key, 2)


def test_where_partitions_were_added_a_message_stood_where_a_consumer_has_it_from() -> None:
    """Hashed over today's partitions it would be looked for where it never was, and be called lost."""
    assert lost(age_s=1000, kept_at=7) == (Verdict.DELIVERED, Stage.LOG)
    # The log still reaches back to there, and has it no more.
    assert lost(age_s=1000, kept_at=30) == (Verdict.LOST_IN_LOG, Stage.LOG)
    assert lost(age_s=100, kept_at=7) == (Verdict.LOST_IN_LOG, Stage.LOG)


def test_what_may_be_older_than_its_key_s_partition_may_have_expired_in_another() -> None:
    assert lost(age_s=1000) == (Verdict.DELIVERED, Stage.LOG)
    assert lost(age_s=800) == (Verdict.LOST_IN_RELAY, Stage.RELAY)


@pytest.mark.parametrize("why", ["remade", "compacted"])
def test_what_is_gone_by_right_is_no_loss(why: str) -> None:
    horizon: dict[str, Any] = (
        {"remade_s": {"t": 50.0}} if why == "remade" else {"compacted": frozenset({"t"})}
    )
    assert lost(age_s=100, **horizon) == (Verdict.DELIVERED, Stage.LOG)


def test_one_certificate_that_was_tampered_with_leaves_the_others_sound() -> None:
    """Else every later run would read everything, for ever, and nobody could put it right."""
    first = issued(stated(ground(), whole(), 0), None)
    second = issued(stated(ground(), whole(1), 1), first)
    third = issued(stated(ground(), whole(2), 2), second)
    again = issued(stated(ground(), whole(1), 1), third)
    changed = second.statement.replace('"parked":0', '"parked":1')
    assert changed != second.statement
    touched = replace(second, statement=changed)
    assert trusted([first, touched, third, again]) == [first, third, again]
    # With its hash: the next one's link does not fit, and nobody knows which of the two was touched.
    forged = replace(touched, hash=chained_hash(touched.previous, changed))
    assert [number for number, _ in broken_links([first, forged, third, again])] == [3]
    assert trusted([first, forged, third, again]) == [first, again]


def test_a_topic_that_a_consumer_reads_no_more_counts_for_nothing() -> None:
    found = Cells(10, {"ledger": frozenset({"t"})})
    assert found.has_read("ledger", "t")
    assert not found.has_read("ledger", "x")
    assert found.has_read("other", "x")


def test_a_consumer_that_left_a_topic_is_not_held_to_what_was_certified_of_it() -> None:
    given = issued(stated(ground(), whole(), 0), None)
    today = whole()
    today.inbox["ledger"][0] = {}

    def wrong(**changes: Any) -> list[str]:
        found = Verification()
        data([given], ground(ledger(**changes)), today, found)
        return [each["what"].partition(" holds")[0] for each in found.wrong]

    assert wrong() == ["the inbox of ledger"]
    assert wrong(dropped=frozenset({"other"})) == ["the inbox of ledger"]
    assert wrong(dropped=frozenset({"t"})) == []


def test_a_window_of_a_topic_that_was_made_anew_since_is_past() -> None:
    given = issued(stated(ground(), whole(), 0), None)
    today = whole()
    today.log.clear()

    def verified(at: Any) -> tuple[list[str], int]:
        found = Verification()
        where = ground()
        where.view = replace(where.view, remade={"t": at})
        data([given], where, today, found)
        return [each["what"].partition(" holds")[0] for each in found.wrong], found.past

    assert verified(NOW - timedelta(seconds=1)) == (["the log"], 0)
    assert verified(NOW + timedelta(seconds=1)) == ([], 1)


def test_stations_that_hold_as_many_of_other_topics_or_claims_differ() -> None:
    found = whole()
    readers = {"ledger": frozenset({"t"})}
    assert found.differing(readers) == set()
    found.claims[0] += 1
    assert found.differing(readers) == {0}
    found = whole()
    found.outbox[0] = {"x": found.outbox[0]["t"]}
    assert found.differing(readers) == {0}
    assert said(ground(), whole()) is not None
