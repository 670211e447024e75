"""Measuring fairly: repetitions of all sides interleaved (A B A B …), each figure a median, its cost beside
it.

A measure is a function that does its work once and returns a Sample. Nothing here knows what is measured.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from bench.row import Goal, Row, row


@dataclass(frozen=True)
class Sample:
    """One repetition: how many things in how many seconds, and what it cost."""

    count: int
    seconds: float
    cpu_seconds: float
    peak_rss: int

    @property
    def rate(self) -> float:
        return self.count / self.seconds

    @property
    def cpu_micros(self) -> float:
        """CPU microseconds for each thing."""
        return self.cpu_seconds / self.count * 1e6


Measure = Callable[[], Sample]


def interleave(
    measures: Mapping[str, Measure],
    repetitions: int,
    *,
    warm_up: bool = True,
    progress: Callable[[str], None] = lambda _text: None,
) -> dict[str, list[Sample]]:
    """Each measure in turn, `repetitions` times over. The warm-up round is run and thrown away."""
    samples: dict[str, list[Sample]] = {name: [] for name in measures}
    for turn in range(0 if warm_up else 1, repetitions + 1):
        for name, measure in measures.items():
            progress(f"{name}: {f'{turn} of {repetitions}' if turn else 'warm-up'}")
            sample = measure()
            progress(f"{name}: {sample.seconds:.1f} s")
            if turn:
                samples[name].append(sample)
    return samples


def rows_for(
    metric: str,
    ours: Sequence[Sample],
    against: Sequence[Sample] | None = None,
    *,
    things: str = "messages",
    goal: Goal | None = None,
) -> list[Row]:
    """Rate, CPU and peak memory of one workload, beside those of its yardstick. The goal is on the rate."""

    def of(figure: Callable[[Sample], float]) -> tuple[list[float], list[float] | None]:
        return [figure(one) for one in ours], [figure(one) for one in against] if against else None

    return [
        row(metric, f"{things}/s", *of(lambda one: one.rate), goal=goal),
        row(f"{metric}: CPU", f"µs/{things.removesuffix('s')}", *of(lambda one: one.cpu_micros)),
        row(f"{metric}: peak memory", "MB", *of(lambda one: one.peak_rss / 1e6)),
    ]


def cpu_seconds() -> float:
    """CPU seconds of this process and of the children it has waited for."""
    own = resource.getrusage(resource.RUSAGE_SELF)
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def measure_here(work: Callable[[], int]) -> Sample:
    """Run `work`, which returns how many things it did, in this process.

    The peak memory is this process's since it started: where that matters, use child.py.
    """
    cpu, started = cpu_seconds(), time.perf_counter()
    count = work()
    seconds = time.perf_counter() - started
    return Sample(count, seconds, cpu_seconds() - cpu, _peak_rss())


def _peak_rss() -> int:
    unit = 1 if sys.platform == "darwin" else 1024  # macOS counts bytes, Linux KiB
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
