"""A stretch of work in this process's own Spark: seconds, and what the driver, its JVM and its tasks spent meanwhile."""

from __future__ import annotations

import gc
import time
from contextlib import suppress
from pathlib import Path

import psutil
from pyspark.sql import SparkSession

from bench.harness import Sample

_LOOKS = 3
_BETWEEN_LOOKS_S = 0.7


class SparkMeter:
    """`with SparkMeter(count) as meter: …`, then `meter.sample`.

    CPU is that of this process, of the JVM that it has started for Spark and of that one's tasks. Not of the cluster
    beside them, which is ours to start as well.

    Memory is the driver's: this process's own peak in that time, where Linux tells it (elsewhere what is held at the
    end), and what is alive in its JVM when the work is done, garbage collected. A JVM's own peak says only how far
    garbage had come to its heap's limit; a run that needs more than that limit at once ends with an error. Classes and
    compiled code do not count: a session gathers them however little it is given to do.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        jvms = [each for each in psutil.Process().children() if _is_spark(each)]
        tasks = [task for each in jvms for task in each.children(recursive=True)]
        self._family = [psutil.Process(), *jvms, *tasks]

    def __enter__(self) -> SparkMeter:
        _forget_peak()
        self._cpu, self._began = self._spent(), time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        seconds, cpu = time.perf_counter() - self._began, self._spent() - self._cpu
        self.sample = Sample(self._count, seconds, cpu, _peak() + _alive())

    def _spent(self) -> float:
        return sum(_cpu(each) for each in self._family)


def _is_spark(process: psutil.Process) -> bool:
    try:
        return any("org.apache.spark" in each for each in process.cmdline())
    except psutil.Error:  # it has ended meanwhile
        return False


def _alive() -> int:
    """Bytes that Spark's JVM cannot do without, where one runs: on its heap, and in the buffers beside it."""
    session = SparkSession.getActiveSession()
    if session is None:
        return 0
    gc.collect()
    jvm = session.sparkContext._jvm
    assert jvm is not None
    factory = jvm.java.lang.management.ManagementFactory
    buffers = factory.getPlatformMXBeans(jvm.java.lang.Class.forName("java.lang.management.BufferPoolMXBean"))
    memory = factory.getMemoryMXBean()
    alive = []
    for _ in range(_LOOKS):
        # What Python has dropped is dropped there a moment later, by a thread of its own.
        time.sleep(_BETWEEN_LOOKS_S)
        memory.gc()
        beside = sum(int(each.getMemoryUsed()) for each in buffers)
        alive.append(int(memory.getHeapMemoryUsage().getUsed()) + beside)
    return min(alive)


def _cpu(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.Error:  # it has ended meanwhile
        return 0.0
    return float(times.user + times.system)


def _forget_peak() -> None:
    """From now on VmHWM is the peak since now: a process lives for many measurements."""
    with suppress(OSError):  # not Linux
        Path("/proc/self/clear_refs").write_text("5")


def _peak() -> int:
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
    except (OSError, StopIteration):  # not Linux
        return int(psutil.Process().memory_info().rss)
