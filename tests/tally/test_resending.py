"""Whether a message may be sent again: pure."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from tallymark.errors import UsageError
from tallymark.lifecycle import MessageState
from tallymark.store.postgres.resend import as_resend, wanted_of
from tallymark.tally.resending import Standing, Wanted, refusal

T0 = datetime(2026, 11, 1, tzinfo=UTC)
LOST = Wanted("m1", "lost-in-inbox", "ledger", T0)
HAS_IT = Standing("ledger", has_it=True, applied_it=True, applied_later=True, by_version=False)
LACKS_IT = Standing("ledger", has_it=False, applied_it=False, applied_later=False, by_version=False)
BEHIND = Standing("ledger", has_it=False, applied_it=False, applied_later=True, by_version=False)
VERSIONED = Standing("ledger", has_it=False, applied_it=False, applied_later=True, by_version=True)
UNORDERED = replace(BEHIND, unordered=True)
ROW_TAKEN = Standing("ledger", has_it=False, applied_it=True, applied_later=False, by_version=False)


@pytest.mark.parametrize(
    ("state", "standings", "any_order", "why"),
    [
        (MessageState.SENT, [LACKS_IT], False, None),
        (MessageState.SENT, [HAS_IT], False, None),
        (MessageState.SENT, [HAS_IT, BEHIND], False, "has applied a later message of its key"),
        (MessageState.SENT, [BEHIND], True, None),
        (MessageState.SENT, [VERSIONED], False, None),
        (MessageState.SENT, [UNORDERED], False, None),
        (MessageState.SENT, [UNORDERED, BEHIND], False, "has applied a later message of its key"),
        (MessageState.SENT, [ROW_TAKEN], True, "it would be applied twice"),
        (MessageState.SENT, [], False, None),
        (MessageState.SENT, None, False, "no consumer's database was given"),
        (MessageState.SENT, None, True, None),
        (MessageState.PENDING, [LACKS_IT], True, "it is pending: it will be sent anyway"),
        (MessageState.SENDING, [LACKS_IT], True, "it is sending: it will be sent anyway"),
        (MessageState.FAILED, [LACKS_IT], True, "parked"),
        (MessageState.DISCARDED, [LACKS_IT], True, "given up"),
        (None, [LACKS_IT], True, "not in this outbox"),
    ],
)
def test_it_is_refused_where_it_would_do_harm(
    state: MessageState | None, standings: list[Standing] | None, any_order: bool, why: str | None
) -> None:
    said = refusal(LOST, state, None, standings, any_order=any_order)
    assert (said is None) if why is None else (said is not None and why in said)


@pytest.mark.parametrize(
    ("missed_by", "why"),
    [
        (["ledger", ""], None),
        (["books/ledger"], None),
        (["ledger", "audit"], "audit lacks it, and its database was not asked"),
        (["other/ledger"], "other/ledger lacks it"),
    ],
)
@pytest.mark.parametrize("any_order", [False, True])
def test_whoever_lacks_it_must_have_been_asked_in_any_order_too(
    missed_by: list[str], why: str | None, any_order: bool
) -> None:
    """What its handler can take says nothing of whether its effect was made."""
    asked = [replace(LACKS_IT, database="books")]
    said = refusal(LOST, MessageState.SENT, None, asked, any_order=any_order, missed_by=missed_by)
    assert (said is None) if why is None else (said is not None and why in said)


@pytest.mark.parametrize(
    ("missed_by", "read_by", "why"),
    [
        (["ledger"], [], "ledger lacks it, and its database was not asked whether its effect was made"),
        (["", "books/ledger"], ["audit"], "books/ledger lacks it"),
        ([""], ["ledger", "audit"], "audit reads its topic: nobody can say whether its effect was made"),
        # Its consumers are not ours: whoever sends it again answers for them.
        ([""], [], None),
        ([], [], None),
    ],
)
def test_where_nobody_was_asked_any_order_is_enough_only_where_nobody_is_known(
    missed_by: list[str], read_by: list[str], why: str | None
) -> None:
    said = refusal(LOST, MessageState.SENT, None, None, any_order=True, missed_by=missed_by, read_by=read_by)
    assert (said is None) if why is None else (said is not None and why in said)
    assert refusal(LOST, MessageState.SENT, None, None, any_order=False, missed_by=missed_by, read_by=read_by)


def test_who_reads_its_topic_need_not_be_asked_where_others_lack_it() -> None:
    """It has the message, or gets it from the log: the tally would have said so otherwise."""
    said = refusal(
        LOST, MessageState.SENT, None, [LACKS_IT], any_order=False, missed_by=["ledger"], read_by=["audit"]
    )
    assert said is None


@pytest.mark.parametrize(
    ("seen", "wrong"),
    [
        ("yesterday", "last_seen of finding m2 is no time: 'yesterday'"),
        ("", "last_seen of finding m2 is no time: ''"),
        (1793491200, "last_seen of finding m2 is no time: 1793491200"),
        ("2026-11-01T00:00:00", "last_seen of finding m2 has no time zone: 2026-11-01T00:00:00"),
        ("2026-11-01", "last_seen of finding m2 has no time zone: 2026-11-01"),
    ],
)
def test_a_finding_that_was_seen_at_no_time_is_named(seen: object, wrong: str) -> None:
    said = {"verdict": "lost-in-inbox", "consumer": "ledger"}
    with pytest.raises(UsageError) as refused:
        wanted_of(
            [{"id": "m1", **said, "last_seen": T0.isoformat()}, {"id": "m2", **said, "last_seen": seen}]
        )
    assert str(refused.value) == wrong
    assert "2026-11-15T08:00:00+00:00" in refused.value.remedy


@pytest.mark.parametrize(
    ("seen", "at"), [("2026-11-01T00:00:00Z", T0), ("2026-11-01T01:00:00+01:00", T0), (None, None)]
)
def test_a_finding_is_as_old_as_it_says(seen: str | None, at: datetime | None) -> None:
    rows = [{"id": "m1", "verdict": "lost-in-inbox", "last_seen": seen}]
    assert [each.seen_at for each in wanted_of(rows)] == [at]


def test_it_is_sent_again_once_for_each_time_that_it_was_found_missing() -> None:
    later = T0 + timedelta(seconds=1)
    assert "resent since" in (refusal(LOST, MessageState.SENT, later, [LACKS_IT], any_order=False) or "")
    earlier = T0 - timedelta(seconds=1)
    assert refusal(LOST, MessageState.SENT, earlier, [LACKS_IT], any_order=False) is None


def test_number_and_origin_go_before_the_headers_as_they_are() -> None:
    assert as_resend("{}", 1, 10) == '{"tm_resend":"1","tm_origin":"10"}'
    assert as_resend(' { "a":"b", "a":"c"}', 2, 7) == '{"tm_resend":"2","tm_origin":"7","a":"b", "a":"c"}'


def test_an_inbox_that_no_longer_remembers_it_would_hold_its_key_for_a_dead_letter() -> None:
    timed = replace(LOST, id="019a3d5e-1c00-7000-8000-000000000001")
    forgetful = replace(LACKS_IT, consumer="mailer", forgets=True)
    said = refusal(timed, MessageState.SENT, None, [LACKS_IT, forgetful], any_order=True)
    assert "mailer no longer remembers that time" in (said or "")
    assert refusal(timed, MessageState.SENT, None, [forgetful], any_order=False, forgotten=True) is None
    has_it = replace(HAS_IT, forgets=True)
    assert refusal(timed, MessageState.SENT, None, [LACKS_IT, has_it], any_order=False) is None


def test_what_has_an_id_without_a_time_would_be_applied_again_and_nobody_can_answer_for_that() -> None:
    forgetful = replace(LACKS_IT, forgets=True)
    said = refusal(LOST, MessageState.SENT, None, [forgetful], any_order=True, forgotten=True)
    assert "would be applied twice" in (said or "")
