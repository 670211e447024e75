"""Which stretches the second look reads: no position and no id twice, none left out."""

from __future__ import annotations

import uuid

import pytest

from tallymark.pipeline.reconcilecells import Cells
from tallymark.pipeline.reconcilefirst import begun_unsaid, first_id
from tallymark.pipeline.reconcileframes import ids_of, read_along, shares, spans_of
from tallymark.store.postgres.tallycells import ALL_IDS
from tests.tally.cases import uuid7
from tests.tally.test_certifying import P0, P1, ledger


def hours(count: int, n: int = 0) -> str:
    """An id of so many hours after some day."""
    return uuid7(1_790_000_000_000 + count * 3_600_000, n)


def test_neighbouring_windows_are_read_together_and_far_ones_apart() -> None:
    assert spans_of([3, 1, 2, 9], 10) == [(10, 40), (90, 100)]


def test_beyond_so_many_ranges_the_smallest_gaps_are_read_along() -> None:
    spans = spans_of([*range(0, 60, 2), 1000], 10)
    assert len(spans) == 16
    assert spans[-1] == (10_000, 10_010)


def test_whatever_is_read_along_is_looked_at_as_a_whole() -> None:
    assert read_along({1, 9}, range(12), 10) == [1, 9]
    evens = set(range(0, 60, 2))
    found = read_along(evens, range(60), 10)
    # Thirty ranges are sixteen: fourteen windows between them are read too.
    assert evens < set(found)
    assert len(found) == 44
    # Of windows that nobody knows, nothing is to be looked at.
    assert read_along(evens, evens, 10) == sorted(evens)
    assert read_along(set(), range(60), 10) == []


def test_shares_are_of_the_same_width_and_hold_every_position_once() -> None:
    spans = [(0, 100), (400, 410), (500, 690)]
    found = shares(spans, 4)
    assert len(found) == 4
    positions = [at for share in found for low, high in share for at in range(low, high)]
    assert sorted(positions) == [at for low, high in spans for at in range(low, high)]
    assert max(sum(high - low for low, high in share) for share in found) <= 2 * 300 / 4


def test_a_narrow_reading_has_no_more_shares_than_positions() -> None:
    assert shares([(7, 8)], 4) == [[(7, 8)]]
    assert shares([], 4) == []


def test_ids_are_cut_where_they_lie_with_a_day_around_them() -> None:
    day = 86_400_000
    cells = Cells(100)
    cells.ids[0] = (uuid7(2 * day, 1), uuid7(2 * day + 999, 1))
    ranges = ids_of(cells, [0], 4)
    assert len(ranges) == 4
    assert [one[1] for one in ranges[:-1]] == [other[0] for other in ranges[1:]]
    assert ranges[0][0] <= uuid.UUID(uuid7(day, 0))
    assert ranges[-1][1].int >> 80 == 3 * day + 999
    # The parts within hold what was written, not the room around it.
    assert all(2 * day <= low.int >> 80 <= 2 * day + 999 for low, _ in ranges[1:])


def test_without_room_they_are_those_that_were_written() -> None:
    cells = Cells(100)
    low, high = uuid7(1000, 1), uuid7(2000, 1)
    cells.ids[0] = (low, high)
    ranges = ids_of(cells, [0], 4, room_ms=0)
    assert (len(ranges), ranges[0][0], ranges[-1][1].int) == (4, uuid.UUID(low), uuid.UUID(high).int + 1)
    cells.ids[0] = (low, low)
    assert ids_of(cells, [0], 4, room_ms=0) == [(uuid.UUID(low), uuid.UUID(int=uuid.UUID(low).int + 1))]


def test_where_ids_say_nothing_of_their_time_all_are_read() -> None:
    cells = Cells(100)
    assert ids_of(cells, [0], 4) == [ALL_IDS]
    cells.ids[0] = (str(uuid.UUID(int=5)), str(uuid.UUID(int=9)))
    assert ids_of(cells, [0], 4) == [ALL_IDS]


def test_inboxes_are_read_from_an_hour_before_the_lowest_id_of_all_windows() -> None:
    cells = Cells(100)
    assert first_id(cells) is None
    cells.ids = {7: (hours(9), hours(9)), 8: (hours(5, 3), hours(11))}
    assert first_id(cells) == uuid.UUID(int=uuid.UUID(hours(4)).int >> 80 << 80)


@pytest.mark.parametrize(
    "other", ["00007c5b-1d1a-4c64-9d0b-6a1f0f6f7a11", "ff2c5b0e-1d1a-4c64-9d0b-6a1f0f6f7a11"]
)
def test_where_some_ids_are_no_uuid7_inboxes_are_read_from_their_beginning(other: str) -> None:
    """They are kept there, under ids of their own; unread, their windows would differ in every run."""
    cells = Cells(100)
    for low, high in (sorted((other, hours(5))), (other, other)):
        cells.ids = {7: (hours(9), hours(9)), 8: (low, high)}
        assert first_id(cells) is None


def test_where_a_consumer_began_is_asked_for_only_where_it_is_not_written_down() -> None:
    assert begun_unsaid(ledger())
    assert begun_unsaid(ledger(starts={P0: 0}))
    assert not begun_unsaid(ledger(starts={P0: 0, P1: 5}))
