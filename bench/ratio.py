"""How much faster, and how sure: the ratio of medians with a bootstrap interval. Pure.

The repetitions of both sides were interleaved, so the n-th of one and the n-th of the other met the same
machine. The bootstrap therefore draws pairs, not single values: what slowed both cancels out. The seed is
fixed, so the same samples always give the same interval.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

SEED = 20_260_101
RESAMPLES = 4_000
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Ratio:
    """ours / against, and the interval in which it lies with 95 % confidence."""

    value: float
    low: float
    high: float


def ratio_of_medians(ours: Sequence[float], against: Sequence[float], *, seed: int = SEED) -> Ratio:
    """The ratio of the medians of two interleaved series of equal length."""
    if len(ours) != len(against) or not ours:
        raise ValueError("two series of equal length, with at least one repetition, are needed")
    if min(against) <= 0:
        raise ValueError("the yardstick must be positive")
    pairs = list(zip(ours, against, strict=True))
    rng = random.Random(seed)
    drawn = sorted(_ratio(rng.choices(pairs, k=len(pairs))) for _ in range(RESAMPLES))
    tail = (1 - CONFIDENCE) / 2
    return Ratio(_ratio(pairs), percentile(drawn, tail), percentile(drawn, 1 - tail))


def percentile(ordered: Sequence[float], share: float) -> float:
    """The value below which `share` of an ascending series lies, interpolated between neighbours."""
    if not ordered:
        raise ValueError("a percentile of nothing")
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def _ratio(pairs: Sequence[tuple[float, float]]) -> float:
    return median(ours for ours, _ in pairs) / median(against for _, against in pairs)
