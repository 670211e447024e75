"""The meter of a stretch of work in this process's own Spark."""

from __future__ import annotations

import subprocess
import sys

import psutil
import pytest
from bench.sparkmeter import SparkMeter

from tallymark.cli.pipelinerun import plan_of
from tallymark.pipeline.session import started
from tests.waiting import wait_for

MEGABYTE = 1 << 20


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nobody tells a process's peak since a moment")
def test_memory_is_the_peak_of_its_own_stretch() -> None:
    """What was held and given back before the end counts; what an earlier stretch held does not."""
    with SparkMeter(1) as high:
        held = bytearray(b"x") * (300 * MEGABYTE)
        del held
    now = psutil.Process().memory_info().rss
    assert high.sample.peak_rss > now + 200 * MEGABYTE
    with SparkMeter(1) as low:
        pass
    assert low.sample.peak_rss < high.sample.peak_rss - 200 * MEGABYTE


def test_a_process_that_ended_meanwhile_counts_for_nothing() -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", "", "org.apache.spark"]
    )  # it stays a zombie until waited for
    wait_for(
        lambda: psutil.Process(child.pid).status() == psutil.STATUS_ZOMBIE, within=30, what="it has ended"
    )
    try:
        with SparkMeter(1) as meter:
            pass
    finally:
        child.wait()
    assert 0 < meter.sample.peak_rss < 2 * psutil.Process().memory_info().rss


@pytest.mark.full
def test_of_the_jvm_what_is_alive_counts_and_garbage_does_not() -> None:
    with started(plan_of("meter", "local[1]", [], report=False)) as spark:
        jvm = spark.sparkContext._jvm
        assert jvm is not None
        with SparkMeter(1) as before:
            pass
        with SparkMeter(1) as littered:
            for _ in range(4):
                jvm.java.nio.ByteBuffer.allocate(100 * MEGABYTE)
        with SparkMeter(1) as holding:
            held = jvm.java.nio.ByteBuffer.allocate(100 * MEGABYTE)
        assert held.capacity() == 100 * MEGABYTE
    assert littered.sample.peak_rss < before.sample.peak_rss + 50 * MEGABYTE
    assert holding.sample.peak_rss > before.sample.peak_rss + 90 * MEGABYTE
