"""The statistics, on numbers small enough to check by hand."""

from __future__ import annotations

import pytest
from bench.ratio import Ratio, percentile, ratio_of_medians


def test_equal_series_give_exactly_one() -> None:
    assert ratio_of_medians([5.0, 7.0, 9.0], [5.0, 7.0, 9.0]) == Ratio(1.0, 1.0, 1.0)


def test_ratio_is_of_medians_and_not_of_means() -> None:
    # Means would say 34 / 2: one stalled repetition must not decide.
    assert ratio_of_medians([1.0, 1.0, 100.0], [2.0, 2.0, 2.0]).value == 0.5


def test_what_slows_both_sides_of_a_pair_cancels_out() -> None:
    # The machine was ten times slower in two of the repetitions, for both: the interval stays a point.
    ours, against = [100.0, 10.0, 110.0, 9.0, 105.0], [50.0, 5.0, 55.0, 4.5, 52.5]
    ratio = ratio_of_medians(ours, against)
    assert (ratio.value, ratio.low, ratio.high) == pytest.approx((2.0, 2.0, 2.0))


def test_noise_widens_the_interval_around_the_ratio() -> None:
    ratio = ratio_of_medians([80.0, 100.0, 120.0, 95.0, 105.0], [100.0] * 5)
    assert ratio.value == 1.0
    assert 0.8 <= ratio.low < 1.0 < ratio.high <= 1.2


def test_the_same_samples_give_the_same_interval() -> None:
    ours, against = [3.0, 4.0, 6.0, 5.0], [2.0, 5.0, 3.0, 4.0]
    assert ratio_of_medians(ours, against) == ratio_of_medians(ours, against)


@pytest.mark.parametrize(
    ("ours", "against"),
    [([], []), ([1.0], [1.0, 2.0]), ([1.0], [0.0])],
    ids=["nothing", "unequal", "zero yardstick"],
)
def test_series_that_cannot_be_compared_are_refused(ours: list[float], against: list[float]) -> None:
    with pytest.raises(ValueError, match=r"needed|positive"):
        ratio_of_medians(ours, against)


@pytest.mark.parametrize(
    ("share", "value"), [(0.0, 10.0), (0.5, 30.0), (0.25, 20.0), (0.1, 14.0), (1.0, 50.0)]
)
def test_percentile_interpolates_between_neighbours(share: float, value: float) -> None:
    assert percentile([10.0, 20.0, 30.0, 40.0, 50.0], share) == pytest.approx(value)
