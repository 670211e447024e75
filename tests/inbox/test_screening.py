"""Ids that cannot be trusted: pure."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta

from tallymark.inbox.identity import id_floor, is_named, named_id
from tallymark.inbox.ports import Received
from tallymark.inbox.screening import Screen

NOW = datetime(2026, 6, 1, tzinfo=UTC)
KEPT_FROM = NOW - timedelta(days=7)


def at(moment: datetime, topic: str = "saved") -> Received:
    return with_id(uuid.UUID(int=id_floor(moment) + 5), topic)


def with_id(id: uuid.UUID, topic: str = "saved") -> Received:
    return Received(id, "/bank", None, topic, 0, 1, 1, b"k", b"v", "{}", NOW)


SCREEN = Screen(lambda topic: topic == "saved", KEPT_FROM, NOW)


def test_ids_of_our_time_pass_untouched() -> None:
    messages = [at(NOW), at(KEPT_FROM), at(NOW + timedelta(hours=23)), with_id(named_id(b"order-7"))]
    good, odd = SCREEN.sort(messages)
    assert good is messages
    assert odd == []


def test_an_id_older_than_what_was_saved_cannot_be_known() -> None:
    old, fine = at(KEPT_FROM - timedelta(seconds=1)), at(NOW)
    good, odd = SCREEN.sort([old, fine])
    assert list(good) == [fine]
    assert odd[0][0] is old
    assert "cannot know" in odd[0][1]


def test_an_old_id_is_kept_under_its_name_where_the_handler_has_a_scheme_of_its_own() -> None:
    old = at(KEPT_FROM - timedelta(days=30), topic="by-constraint")
    good, odd = SCREEN.sort([old])
    assert odd == []
    assert good[0].named == str(old.id)
    assert is_named(good[0].id)


def test_an_id_from_the_future_is_set_apart() -> None:
    good, odd = SCREEN.sort([at(NOW + timedelta(days=2), topic="by-constraint")])
    assert not good
    assert "from the future" in odd[0][1]


def test_time_goes_on() -> None:
    screen = Screen(lambda _topic: True, KEPT_FROM, NOW)
    late = at(NOW + timedelta(days=2))
    assert screen.sort([late])[1]
    screen.look(KEPT_FROM, NOW + timedelta(days=2))
    assert not screen.sort([late])[1]
