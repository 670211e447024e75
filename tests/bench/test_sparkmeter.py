"""The meter of a stretch of work in this process's own Spark."""

from __future__ import annotations

import sys

import psutil
import pytest
from bench.sparkmeter import SparkMeter

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
