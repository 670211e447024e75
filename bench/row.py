"""One measured figure beside its yardstick and its goal: the rows of every report.

The keys of `Row.as_json()` are a contract with whoever reads `--json`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from bench.ratio import Ratio, ratio_of_medians


@dataclass(frozen=True)
class Goal:
    """What we promised: a bound on the ratio, or (`of_ratio=False`) on our own figure."""

    bound: float
    at_least: bool
    of_ratio: bool = True

    def met(self, ours: float, ratio: float | None) -> bool:
        """Whether the measured median keeps the promise."""
        figure = ratio if self.of_ratio else ours
        if figure is None:
            return False
        return figure >= self.bound if self.at_least else figure <= self.bound

    def __str__(self) -> str:
        return f"{'ratio ' if self.of_ratio else ''}{'>=' if self.at_least else '<='} {self.bound:g}"


def at_least(bound: float, *, of_ratio: bool = True) -> Goal:
    return Goal(bound, at_least=True, of_ratio=of_ratio)


def at_most(bound: float, *, of_ratio: bool = True) -> Goal:
    return Goal(bound, at_least=False, of_ratio=of_ratio)


@dataclass(frozen=True)
class Row:
    """A metric of ours, beside that of the yardstick and the goal, where there are such."""

    metric: str
    unit: str
    ours: float
    against: float | None = None
    ratio: Ratio | None = None
    goal: Goal | None = None

    @property
    def met(self) -> bool | None:
        if self.goal is None:
            return None
        return self.goal.met(self.ours, self.ratio.value if self.ratio else None)

    def as_json(self) -> dict[str, Any]:
        return {
            "metric": self.metric,
            "unit": self.unit,
            "ours": _short(self.ours),
            "against": _short(self.against),
            "ratio": _short(self.ratio.value if self.ratio else None),
            "ratio_low": _short(self.ratio.low if self.ratio else None),
            "ratio_high": _short(self.ratio.high if self.ratio else None),
            "goal": str(self.goal) if self.goal else None,
            "met": self.met,
        }


def row(
    metric: str,
    unit: str,
    ours: Sequence[float],
    against: Sequence[float] | None = None,
    goal: Goal | None = None,
) -> Row:
    """The row of a series of repetitions, and of the yardstick's series that was interleaved with it."""
    if against is None:
        return Row(metric, unit, median(ours), goal=goal)
    return Row(metric, unit, median(ours), median(against), ratio_of_medians(ours, against), goal)


def _short(figure: float | None) -> float | None:
    """Five significant digits: more would claim a precision that no benchmark has."""
    return None if figure is None else float(f"{figure:.5g}")
