"""Whether cost grows with what is done and no faster: seconds per message and memory, a large run against a small one."""

from __future__ import annotations

from collections.abc import Sequence

from bench.harness import Sample
from bench.row import Row, at_most, row

# Within this of linear: what is done for one message may cost so many times more among many.
LINEAR = 1.15
FLAT = 1.1


def typical(samples: Sequence[Sample]) -> list[Sample]:
    """The median of several by their time. Not counting the first, which pays for what a session learns."""
    warm = sorted(samples[1:], key=lambda one: one.seconds)
    return [warm[len(warm) // 2]]


def growth_rows(large: Sequence[Sample], small: Sequence[Sample]) -> list[Row]:
    """Runs of one size each. Where one has fewer repetitions, its own are used again."""
    beside = [small[n % len(small)] for n in range(len(large))]
    sizes = f"{large[0].count:,} against {small[0].count:,}"
    return [
        row(
            f"seconds per message, {sizes}",
            "µs",
            [one.seconds / one.count * 1e6 for one in large],
            [one.seconds / one.count * 1e6 for one in beside],
            at_most(LINEAR),
        ),
        row(
            f"the driver's memory, {sizes}",
            "MB",
            [one.peak_rss / 1e6 for one in large],
            [one.peak_rss / 1e6 for one in beside],
            at_most(FLAT),
        ),
    ]
