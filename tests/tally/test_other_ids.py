"""Messages whose ids are no UUIDv7 are judged like any other when they are sent again or taken: stores alone."""

from __future__ import annotations

import uuid

import pytest

from tests.tally.resends import Ground, tables
from tests.tally.test_repair_order import queue, repaired

__all__ = ["tables"]


@pytest.fixture
def one_key(tables: str) -> Ground:
    """Two of alice's, 1 and 3, and neither of an id that we would give."""
    ground = Ground(tables, ["alice", "bob", "alice"])
    ground.named(0)
    ground.named(2)
    return ground


def test_repair_refuses_what_a_later_one_of_its_key_was_applied_behind(one_key: Ground) -> None:
    one_key.keep(1)
    one_key.keep_named(2)
    done = repaired(one_key)
    assert (done.kept, done.missing, list(done.refused)) == (0, [], [one_key.ids[0]])
    assert "a later message of its key" in done.refused[one_key.ids[0]]
    assert queue(one_key) == []


def test_repair_refuses_what_has_its_effect_though_the_inbox_lacks_it(one_key: Ground) -> None:
    one_key.keep_named(0, row=False)
    done = repaired(one_key)
    assert list(done.refused) == [one_key.ids[0]]
    assert "would be applied twice" in done.refused[one_key.ids[0]]


def test_repair_takes_it_once(one_key: Ground) -> None:
    """What it takes has the name that it came with, and the same from Kafka changes nothing."""
    assert repaired(one_key).missing == one_key.ids
    named = one_key.query("select named from tallymark.inbox where named is not null order by position")
    assert [name for (name,) in named] == [one_key.ids[0], one_key.ids[2]]
    assert repaired(one_key).lacking == 0


def test_a_resend_is_refused_behind_a_later_one_of_its_key(one_key: Ground) -> None:
    one_key.keep_named(2)
    resent, refused = one_key.resend(0)
    assert resent == []
    assert "has applied a later message" in refused[one_key.ids[0]]


def test_a_resend_is_refused_where_its_effect_was_made_though_the_inbox_lacks_it(one_key: Ground) -> None:
    one_key.keep_named(0, row=False)
    assert "would be applied twice" in one_key.resend(0, any_order=True)[1][one_key.ids[0]]


def test_a_consumer_that_has_it_is_not_harmed_by_a_resend(one_key: Ground) -> None:
    one_key.keep_named(0)
    one_key.keep_named(2)
    assert one_key.resend(0)[0] == [one_key.ids[0]]


def test_an_id_that_says_seven_and_is_of_no_variant_is_saved_as_it_is(one_key: Ground) -> None:
    """Whoever asks an inbox for it must ask as it was saved."""
    one_key.ids[0] = str(uuid.UUID(int=uuid.UUID(one_key.ids[1]).int & ~(0b11 << 62)))
    one_key.query("update tallymark.outbox set id = %s where position = 1", one_key.ids[0])
    assert repaired(one_key).kept == 3
    assert repaired(one_key).lacking == 0
