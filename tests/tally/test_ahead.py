"""The log that is read may end before what was sent: what it has not come to is on its way, what it has passed is lost.

A copy of it ends where it was made; the log itself, for who reads what is committed, where a transaction is open.
"""

from __future__ import annotations

from tallymark.lifecycle import Stage, Verdict
from tallymark.pipeline.reconcilecells import Cells
from tallymark.pipeline.reconcilejudge import Judge
from tallymark.pipeline.reconcilemarks import Single
from tallymark.tally.records import Horizon
from tallymark.tally.verdicts import Marks
from tests.tally.test_certifying import P0, P1, ground


def judged(
    position: int,
    *,
    key: bytes | None = None,
    partition: int | None = None,
    unstable: set[int] | None = None,
    parked: bool = False,
    resent_at: int | None = None,
    kept_at: int | None = None,
) -> Verdict:
    """A message that was sent, and that the log lacks: of its lane partition 0 ends at 50, partition 1 at 60.

    In a copy of the log; or, where partitions are `unstable`, in the log itself, which is written further there.
    """
    cells = Cells(10)
    cells.lasts = {("t", 0, 0): 50, ("t", 1, 0): 60}
    single = Single(
        *(
            "m1",
            "t",
            key,
            None if kept_at is None else partition,
            kept_at,
            position,
            partition,
            0,
            0.0,
            parked,
        ),
        Marks(rows=1, sent=1, kept_anywhere=int(kept_at is not None)),
        {},
        (Verdict.LOST_IN_RELAY, Stage.RELAY),
        resent_at or position,
    )
    at = ground(unstable=frozenset(("t", each) for each in unstable or ()), ends={P0: 100, P1: 100})
    (found,) = Judge(at, cells, Horizon(), {}, [], copied=unstable is None).judged([single])
    return found.verdict


def test_what_the_copy_has_passed_in_its_partition_is_lost() -> None:
    assert judged(55, key=None, partition=0) is Verdict.PENDING
    assert judged(55, key=None, partition=1) is Verdict.LOST_IN_RELAY


def test_without_a_key_it_is_on_its_way_while_some_partition_has_not_passed_it() -> None:
    assert judged(55, key=None) is Verdict.PENDING
    assert judged(49, key=None) is Verdict.LOST_IN_RELAY


def test_behind_an_open_transaction_may_stand_what_its_lane_has_not_passed() -> None:
    assert judged(55, partition=0, unstable={0}) is Verdict.PENDING
    assert judged(49, partition=0, unstable={0}) is Verdict.LOST_IN_RELAY
    assert judged(55, partition=0, unstable={1}) is Verdict.LOST_IN_RELAY
    assert judged(55, unstable={0}) is Verdict.PENDING
    assert judged(55, unstable=set()) is Verdict.LOST_IN_RELAY
    # Out of turn: parked and sent later, or sent again.
    assert judged(49, partition=0, unstable={0}, parked=True) is Verdict.PENDING
    assert judged(49, partition=0, unstable={0}, resent_at=80) is Verdict.PENDING


def test_what_a_consumer_has_from_where_the_log_can_be_read_is_gone() -> None:
    assert judged(55, partition=0, unstable={0}, kept_at=99) is Verdict.LOST_IN_LOG
    assert judged(55, partition=0, unstable={0}, kept_at=100) is Verdict.DELIVERED
