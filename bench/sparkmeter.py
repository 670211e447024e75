"""A stretch of work in this process's own Spark: seconds, and what the driver, its JVM and its tasks spent meanwhile."""

from __future__ import annotations

import time

import psutil

from bench.harness import Sample


class SparkMeter:
    """`with SparkMeter(count) as meter: …`, then `meter.sample`. Memory is what is held at the end."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._family = [psutil.Process(), *psutil.Process().children(recursive=True)]

    def __enter__(self) -> SparkMeter:
        self._cpu, self._began = self._spent(), time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        seconds = time.perf_counter() - self._began
        memory = sum(each.memory_info().rss for each in self._family if each.is_running())
        self.sample = Sample(self._count, seconds, self._spent() - self._cpu, memory)

    def _spent(self) -> float:
        times = [each.cpu_times() for each in self._family if each.is_running()]
        return sum(each.user + each.system for each in times)
