"""A copy of the log may end before what was sent: what it has not come to is on its way, what it has passed is lost."""

from __future__ import annotations

from tallymark.lifecycle import Stage, Verdict
from tallymark.pipeline.reconcilecells import Cells
from tallymark.pipeline.reconcilejudge import Judge
from tallymark.pipeline.reconcilemarks import Single
from tallymark.tally.records import Horizon
from tallymark.tally.verdicts import Marks
from tests.tally.test_certifying import ground


def judged(position: int, *, key: bytes | None, partition: int | None = None) -> Verdict:
    """A message that was sent, and that the copy lacks: of its lane partition 0 ends at 50, partition 1 at 60."""
    cells = Cells(10)
    cells.lasts = {("t", 0, 0): 50, ("t", 1, 0): 60}
    single = Single(
        *("m1", "t", key, None, None, position, partition, 0, 0.0, False),
        Marks(rows=1, sent=1),
        {},
        (Verdict.LOST_IN_RELAY, Stage.RELAY),
    )
    (found,) = Judge(ground(), cells, Horizon(), {}, [], copied=True).judged([single])
    return found.verdict


def test_what_the_copy_has_passed_in_its_partition_is_lost() -> None:
    assert judged(55, key=None, partition=0) is Verdict.PENDING
    assert judged(55, key=None, partition=1) is Verdict.LOST_IN_RELAY


def test_without_a_key_it_is_on_its_way_while_some_partition_has_not_passed_it() -> None:
    assert judged(55, key=None) is Verdict.PENDING
    assert judged(49, key=None) is Verdict.LOST_IN_RELAY
