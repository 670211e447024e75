"""Whether a message may be sent again: pure."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from tallymark.lifecycle import MessageState
from tallymark.store.postgres.resend import with_number
from tallymark.tally.resending import Standing, Wanted, refusal

T0 = datetime(2026, 11, 1, tzinfo=UTC)
LOST = Wanted("m1", "lost-in-inbox", "ledger", T0)
HAS_IT = Standing("ledger", has_it=True, applied_it=True, applied_later=True, by_version=False)
LACKS_IT = Standing("ledger", has_it=False, applied_it=False, applied_later=False, by_version=False)
BEHIND = Standing("ledger", has_it=False, applied_it=False, applied_later=True, by_version=False)
VERSIONED = Standing("ledger", has_it=False, applied_it=False, applied_later=True, by_version=True)
ROW_TAKEN = Standing("ledger", has_it=False, applied_it=True, applied_later=False, by_version=False)


@pytest.mark.parametrize(
    ("state", "standings", "any_order", "why"),
    [
        (MessageState.SENT, [LACKS_IT], False, None),
        (MessageState.SENT, [HAS_IT], False, None),
        (MessageState.SENT, [HAS_IT, BEHIND], False, "has applied a later message of its key"),
        (MessageState.SENT, [BEHIND], True, None),
        (MessageState.SENT, [VERSIONED], False, None),
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


def test_it_is_sent_again_once_for_each_time_that_it_was_found_missing() -> None:
    later = T0 + timedelta(seconds=1)
    assert "resent since" in (refusal(LOST, MessageState.SENT, later, [LACKS_IT], any_order=False) or "")
    earlier = T0 - timedelta(seconds=1)
    assert refusal(LOST, MessageState.SENT, earlier, [LACKS_IT], any_order=False) is None


def test_the_number_goes_before_the_headers_as_they_are() -> None:
    assert with_number("{}", 1) == '{"tm_resend":"1"}'
    assert with_number(' { "a":"b", "a":"c"}', 2) == '{"tm_resend":"2","a":"b", "a":"c"}'
