"""What a process that works in batches does with memory that it has freed."""

from __future__ import annotations

import subprocess
import sys

import pytest

# A batch's value is freed, and then others that stand between small ones: by itself glibc would keep all of them.
SCRIPT = """
import psutil
from tallymark.inbox.tuning import tune_for_batches

tune_for_batches()
first = bytearray(30_000_000)
del first
held = [(bytearray(1_000_000), bytearray(100)) for _ in range(100)]
full = psutil.Process().memory_info().rss
held = [small for _, small in held]
print((full - psutil.Process().memory_info().rss) // 1_000_000)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="it is glibc's way")
def test_freed_memory_goes_back_to_the_system() -> None:
    """Memory stood a tenth higher with millions of messages behind than with few."""
    # Left alone it is anything from nothing to 60, by where in the heap the last of them lies.
    given_back = int(subprocess.check_output([sys.executable, "-c", SCRIPT]))
    assert given_back > 90, "MB of a hundred"
