"""What is kept of what was found: first and last seen, and over when a later run over its window makes it no more."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from tallymark.lifecycle import Stage, Verdict
from tallymark.tally.findings import Finding, KeptFinding, Scope, merged
from tallymark.tally.report import TallyReport

MONDAY, TUESDAY, FRIDAY = (datetime(2026, 11, day, tzinfo=UTC) for day in (9, 10, 13))
ALL = Scope(0, 999, whole=True)


def finding(
    id: str = "m1",
    *,
    position: int | None = 150,
    topic: str = "t",
    consumer: str = "ledger",
    stage: Stage = Stage.INBOX,
) -> Finding:
    return Finding(id, None, topic, 0, 5, position, consumer, stage, Verdict.LATE, "")


def test_what_a_run_did_not_look_at_is_not_over() -> None:
    scope = Scope(100, 199, topics=("t",), consumers=("", "ledger"))
    assert scope.covers(finding())
    assert not scope.covers(finding(position=250))
    assert not scope.covers(finding(topic="other"))
    assert not scope.covers(finding(consumer="audit"))
    assert not scope.covers(finding(position=None, consumer=""))
    assert replace(scope, whole=True).covers(finding(position=None, consumer="", stage=Stage.LOG))


def test_what_the_outbox_has_dropped_is_over() -> None:
    scope = Scope(500, 599, topics=("other",), lowest=151)
    assert scope.covers(finding())
    assert not replace(scope, lowest=150).covers(finding())
    assert not scope.covers(finding(position=None, consumer=""))


def test_what_was_to_be_sent_later_is_looked_at_by_every_run_over_all() -> None:
    overdue = finding(position=None, consumer="", stage=Stage.RELAY)
    assert Scope(100, 199, delayed=True).covers(overdue)
    assert not Scope(100, 199).covers(overdue)
    assert not Scope(100, 199, delayed=True).covers(replace(overdue, verdict=Verdict.FOREIGN))


def test_first_and_last_seen() -> None:
    kept = merged([], [finding("a"), finding("b")], ALL, run="one", at=MONDAY)
    assert kept == [KeptFinding(finding(each), "one", MONDAY, MONDAY, None) for each in ("a", "b")]
    kept = merged(kept, [finding("b")], ALL, run="two", at=TUESDAY)
    assert kept == [
        KeptFinding(finding("a"), "one", MONDAY, MONDAY, TUESDAY),
        KeptFinding(finding("b"), "two", MONDAY, TUESDAY, None),
    ]
    # Out of sight is not over; and what comes back is open again, first seen when it was.
    kept = merged(kept, [finding("a")], Scope(0, 99), run="three", at=FRIDAY)
    assert kept == [
        KeptFinding(finding("a"), "three", MONDAY, FRIDAY, None),
        KeptFinding(finding("b"), "two", MONDAY, TUESDAY, None),
    ]


def test_who_looked_later_has_the_last_word_whoever_ends_last() -> None:
    kept = merged([], [finding("a")], ALL, run="late", at=TUESDAY)
    # It looked before that was lost, and ends behind the other.
    assert merged(kept, [], ALL, run="early", at=MONDAY) == kept
    over = merged(kept, [], ALL, run="later", at=FRIDAY)
    assert [each.over_at for each in over] == [FRIDAY]
    assert merged(over, [finding("a")], ALL, run="late too", at=TUESDAY) == over


def test_what_only_an_inbox_told_is_not_over_where_not_all_were_asked() -> None:
    scope = Scope(100, 199, consumers=("", "ledger"))
    assert not scope.covers(finding(consumer=""))
    assert scope.covers(finding(consumer="", stage=Stage.LOG))
    assert Scope(100, 199).covers(finding(consumer=""))


def test_a_report_is_in_the_order_of_the_outbox_whichever_task_ends_first() -> None:
    def told(*positions: int | None) -> dict[str, Any]:
        report = TallyReport(rows=10)
        for at in positions:
            report.add("bank", Finding(f"m{at}", b"k", "t", 0, 1, at, "", Stage.LOG, Verdict.PHANTOM, ""))
        return report.as_json()

    assert told(21, None, 3, 5) == told(5, 3, 21, None)
    assert [each["id"] for each in told(21, None, 3)["findings"]] == ["m3", "m21", "mNone"]
    assert [each["window"] for each in told(21, 3, 5)["worst_windows"]] == [[0, 10], [20, 30]]
