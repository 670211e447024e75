"""How long a message has waited, by what its id says."""

from __future__ import annotations

import time

import pytest

from tallymark.message import new_id
from tallymark.observe.waiting import since_id


def test_a_uuid7_says_when_it_was_made() -> None:
    made = new_id()
    waited = since_id(made, time.time() + 5)
    assert waited == pytest.approx(5.0, abs=0.5)
    assert since_id(str(made), time.time() + 5) == pytest.approx(5.0, abs=0.5)


def test_a_clock_a_little_ahead_is_no_negative_wait() -> None:
    assert since_id(new_id(), time.time() - 10) == 0.0


@pytest.mark.parametrize(
    "id_", ["", "order-7", "861db1a3-a6a3-4d82-aa4b-30443d4ad645", "00000000-0000-0000-0000-000000000000"]
)
def test_other_ids_say_nothing(id_: str) -> None:
    assert since_id(id_, time.time()) is None


def test_a_moment_that_cannot_be_says_nothing() -> None:
    assert since_id(new_id(), time.time() + 365 * 86400) is None
    assert since_id(new_id(), time.time() - 3600) is None
