"""Whether a position fits its log: pure, each verdict with a literal position."""

from __future__ import annotations

import dataclasses

from tallymark.inbox.gaps import Bounds, gap, start_of
from tallymark.inbox.ports import Position
from tallymark.lifecycle import OwnerKind

POSITION = Position("transfers", 1, 10, 3, "me", OwnerKind.SERVICE, None, "id-1")


def test_a_position_within_its_log_fits() -> None:
    for first, end in ((0, 10), (10, 10), (10, 11), (3, 99)):
        assert gap(POSITION, Bounds(first, end, "id-1")) is None


def test_what_retention_took_is_named_to_the_offset() -> None:
    found = gap(POSITION, Bounds(50, 80, "id-1"))
    assert found is not None
    assert "transfers/1: offsets 10 to 49 were deleted" in found


def test_a_log_that_was_cut_back_is_named() -> None:
    found = gap(POSITION, Bounds(0, 9, "id-1"))
    assert found is not None
    assert "past the log's end 9" in found


def test_a_topic_made_anew_is_named_first() -> None:
    found = gap(dataclasses.replace(POSITION, next_offset=500), Bounds(0, 9, "id-2"))
    assert found is not None
    assert "deleted and made anew" in found


def test_a_new_consumer_starts_where_the_log_starts_or_ends() -> None:
    assert start_of(Bounds(5, 9, ""), known_topic=False, at_end=False) == 5
    assert start_of(Bounds(5, 9, ""), known_topic=False, at_end=True) == 9


def test_an_added_partition_starts_at_zero_so_that_a_gap_shows() -> None:
    assert start_of(Bounds(5, 9, ""), known_topic=True, at_end=True) == 0
