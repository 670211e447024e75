"""The judge of effects, with tiny histories."""

from __future__ import annotations

from collections import Counter

from tests.torture.effects import Effect, judge
from tests.torture.verdict import Logged

LOG = [Logged("a", "k", 1, b"", 0, 0), Logged("b", "k", 2, b"", 0, 1), Logged("c", None, 0, b"", 1, 0)]
FINE = [Effect("a", "k", 1), Effect("c", None, 0), Effect("b", "k", 2)]
SUMS = {"k": (2, 3)}
MARKS = Counter("abc")


def test_each_once_and_in_order_is_clean() -> None:
    assert judge(LOG, FINE, SUMS, MARKS).faults == {}


def test_each_fault_is_named() -> None:
    assert judge(LOG, FINE[:2], {"k": (1, 1)}, Counter("ac")).faults.keys() == {"missing", "wrong_sums"}
    assert "doubled" in judge(LOG, [*FINE, FINE[0]], SUMS, MARKS).faults
    assert judge(LOG, FINE[::-1], SUMS, MARKS).faults.keys() == {"reordered"}
    assert "phantoms" in judge(LOG, [*FINE, Effect("x", None, 0)], SUMS, Counter("abcx")).faults
    assert judge(LOG, FINE, SUMS, Counter("ab")).faults.keys() == {"marks_differ"}
