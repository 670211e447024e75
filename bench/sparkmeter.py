"""A stretch of work in this process's own Spark: seconds, and what the driver, its JVM and its tasks spent meanwhile."""

from __future__ import annotations

import gc
import time
from pathlib import Path

import psutil
from pyspark.sql import SparkSession

from bench.harness import Sample

_LOOKS = 3
_BETWEEN_LOOKS_S = 0.7


class SparkMeter:
    """`with SparkMeter(count) as meter: …`, then `meter.sample`.

    It watches this process, the JVM that it has started for Spark and that one's tasks. Not the cluster beside them,
    which is ours to start as well: a database's sessions count the memory that they share once each.

    Memory is the sum of two: of each Python process its own peak in that time, where Linux tells it (elsewhere what is
    held at the end), and what is alive in the JVM when the work is done, garbage collected. A JVM's own peak says only
    how far garbage had come to its heap's limit; a run that needs more than that limit at once ends with an error.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._jvms = [each for each in psutil.Process().children() if _is_spark(each)]
        tasks = [task for each in self._jvms for task in each.children(recursive=True)]
        self._python = [psutil.Process(), *tasks]

    def __enter__(self) -> SparkMeter:
        for each in self._python:
            _forget_peak(each.pid)
        self._cpu, self._began = self._spent(), time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        seconds, cpu = time.perf_counter() - self._began, self._spent() - self._cpu
        memory = sum(_peak(each) for each in self._python) + _alive()
        self.sample = Sample(self._count, seconds, cpu, memory)

    def _spent(self) -> float:
        return sum(_cpu(each) for each in [*self._python, *self._jvms])


def _is_spark(process: psutil.Process) -> bool:
    try:
        return any("org.apache.spark" in each for each in process.cmdline())
    except psutil.Error:  # it has ended meanwhile
        return False


def _alive() -> int:
    """Bytes that Spark's JVM cannot do without, where one runs."""
    session = SparkSession.getActiveSession()
    if session is None:
        return 0
    gc.collect()
    jvm = session.sparkContext._jvm
    assert jvm is not None
    memory = jvm.java.lang.management.ManagementFactory.getMemoryMXBean()
    alive = []
    for _ in range(_LOOKS):
        # What Python has dropped is dropped there a moment later, by a thread of its own.
        time.sleep(_BETWEEN_LOOKS_S)
        memory.gc()
        alive.append(
            int(memory.getHeapMemoryUsage().getUsed()) + int(memory.getNonHeapMemoryUsage().getUsed())
        )
    return min(alive)


def _cpu(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.Error:  # it has ended meanwhile
        return 0.0
    return float(times.user + times.system)


def _forget_peak(pid: int) -> None:
    """From now on VmHWM is the peak since now: a process lives for many measurements."""
    try:
        Path(f"/proc/{pid}/clear_refs").write_text("5")
    except OSError:  # not Linux, or ended meanwhile
        return


def _peak(process: psutil.Process) -> int:
    try:
        lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
    except (OSError, StopIteration):  # not Linux, or ended meanwhile
        try:
            return int(process.memory_info().rss)
        except psutil.Error:
            return 0
