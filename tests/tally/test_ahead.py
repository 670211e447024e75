"""The log that is read may end before what was sent: what it has not come to is on its way, what it has passed is lost.

A copy of it ends where it was made, and begins where it was begun; the log itself ends, for who reads what is committed,
where a transaction is open. And retention may pass while all is read.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tallymark.lifecycle import Stage, Verdict
from tallymark.pipeline.manifest import Change, Kind, Move
from tallymark.pipeline.manifestlog import ManifestLog
from tallymark.pipeline.reconcilecells import Cells
from tallymark.pipeline.reconcilejudge import Judge
from tallymark.pipeline.reconcilelater import Taken
from tallymark.pipeline.reconcilemarks import Single
from tallymark.pipeline.reconcilesnapshot import ArchivedLog
from tallymark.tally.findings import evidence
from tallymark.tally.records import Horizon
from tallymark.tally.verdicts import Marks, into_consumer, into_log
from tests.tally.test_certifying import P0, P1, ground

# An id that names a moment.
MADE = "019a3d5e-1c00-7000-8000-000000000001"


def judged(
    position: int,
    *,
    key: bytes | None = None,
    partition: int | None = None,
    unstable: set[int] | None = None,
    parked: bool = False,
    resent_at: int | None = None,
    kept_at: int | None = None,
    old: bool = False,
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
        Marks(rows=1, sent=1, kept_anywhere=int(kept_at is not None), old=old),
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


def test_what_nobody_can_read_for_too_long_is_late_and_says_why() -> None:
    """Else a transaction that hangs would hide for ever what is behind it, and what was lost there."""
    assert judged(55, partition=0, unstable={0}, old=True) is Verdict.LATE
    hidden = Marks(rows=1, waiting=1, old=True, gone="hidden")
    assert into_log(hidden) == (Verdict.LATE, Stage.RELAY)
    assert "behind a transaction that is open" in evidence(*into_log(hidden), hidden)
    # An archive ends where it was made, however old that is.
    assert judged(55, partition=0, old=True) is Verdict.PENDING


def test_what_a_consumer_has_from_where_the_log_can_be_read_is_gone() -> None:
    assert judged(55, partition=0, unstable={0}, kept_at=99) is Verdict.LOST_IN_LOG
    assert judged(55, partition=0, unstable={0}, kept_at=100) is Verdict.DELIVERED


def sent(common: Marks, at_ledger: Marks | None = None) -> Single:
    """The message at position 5, of partition 0."""
    at_consumers = {} if at_ledger is None else {"ledger": at_ledger}
    lost = Verdict.LOST_IN_RELAY, Stage.RELAY
    return Single(MADE, "t", b"k", None, None, 5, 0, 0, 0.0, False, common, at_consumers, lost, 5)


@pytest.mark.parametrize(("copied", "verdict"), [(True, Verdict.DELIVERED), (False, Verdict.LOST_IN_LOG)])
def test_an_archive_that_was_begun_later_has_lost_nothing(copied: bool, verdict: Verdict) -> None:
    """The log itself has dropped it before its time: somebody deleted it."""
    cells = Cells(10)
    cells.lasts = {("t", 0, 0): 90}
    cells.firsts = {("t", 0, 0): 50}
    single = sent(Marks(rows=1, sent=1, kept_anywhere=1))
    horizon = Horizon(log_starts={P0: 40})
    (found,) = Judge(ground(), cells, horizon, {}, [], copied=copied).judged([single])
    assert found.verdict is verdict


def test_what_an_archive_has_passed_over_is_before_its_beginning(tmp_path: Path) -> None:
    manifests = ManifestLog(tmp_path)
    manifests.prepare()
    state = manifests.load()
    for change in (
        Change(1, Kind.OPENED, "a", 1, "id", "cluster", {"t": "T"}, (Move("t", 0, 0, 0), Move("t", 1, 0, 0))),
        Change(2, Kind.BATCH, "a", 2, moves=(Move("t", 0, 0, 10), Move("t", 1, 0, 30))),
        Change(3, Kind.SKIPPED, "a", 3, moves=(Move("t", 0, 10, 25),)),
        Change(4, Kind.BATCH, "a", 4, moves=(Move("t", 0, 25, 40),)),
    ):
        state = manifests.commit(state, change)
    log = ArchivedLog(tmp_path)
    assert log.bounds({"t"}) == {P0: (25, 40), P1: (0, 30)}
    assert log.at_time([P0, P1], 0) == {P0: 25, P1: 0}


def test_what_retention_took_while_all_was_read_is_no_loss() -> None:
    at = int(MADE.replace("-", "")[:12], 16)
    before, behind = Taken(kept_from_ms={"ledger": at}), Taken(kept_from_ms={"ledger": at + 1})

    def log_verdict(taken: Taken) -> Verdict:
        """The outbox's row was gone when it was read."""
        return into_log(taken.passed_by(sent(Marks(copies=1, kept_anywhere=1))).common)[0]

    assert log_verdict(Taken(outbox_from=5)) is Verdict.PHANTOM
    assert log_verdict(Taken(outbox_from=6)) is Verdict.CANNOT_KNOW

    def inbox_verdict(taken: Taken, at_ledger: Marks) -> Verdict:
        return into_consumer(taken.passed_by(sent(Marks(), at_ledger)).at_consumers["ledger"])[0]

    lost = Marks(copies=1, owed=True, passed=True)
    assert inbox_verdict(before, lost) is Verdict.LOST_IN_INBOX
    assert inbox_verdict(behind, lost) is Verdict.CANNOT_KNOW
    # Its effect was gone when effects were read.
    unapplied = replace(lost, kept=1)
    assert inbox_verdict(before, unapplied) is Verdict.UNAPPLIED
    assert inbox_verdict(behind, unapplied) is Verdict.CANNOT_KNOW
    assert inbox_verdict(behind, replace(unapplied, effects=2, finished=2)) is Verdict.APPLIED_TWICE


def test_the_first_row_of_a_resend_that_retention_took_meanwhile_is_no_fault_of_its_copy() -> None:
    """One row was left to be read for two copies: the next run knows that the other one was dropped."""
    again = replace(
        sent(Marks(rows=1, sent=1, copies=2, repeats=1, altered_in_log=True)), last_position=9, first_claim=5
    )
    for taken, verdict in (
        (Taken(outbox_from=6, was_from=1), Verdict.DELIVERED),
        (Taken(outbox_from=5, was_from=1), Verdict.ALTERED),
        (Taken(outbox_from=6, was_from=6), Verdict.ALTERED),
    ):
        assert into_log(taken.passed_by(again).common)[0] is verdict


def test_a_copy_that_claims_what_the_outbox_still_has_is_known_whatever_another_claims() -> None:
    """As the definition has it: what it has dropped is told by the highest position that is claimed."""
    twice = replace(sent(Marks(copies=2)), last_position=9)
    assert into_log(Taken(outbox_from=9).passed_by(twice).common)[0] is Verdict.PHANTOM
    assert into_log(Taken(outbox_from=10).passed_by(twice).common)[0] is Verdict.CANNOT_KNOW


def test_what_has_an_id_without_a_time_is_known_for_as_long_as_the_log_has_it() -> None:
    lost = replace(sent(Marks(), Marks(copies=1, owed=True, passed=True)), id="order-17")
    pruned = Taken(pruned={"ledger": frozenset({"t"})})
    assert into_consumer(pruned.passed_by(lost).at_consumers["ledger"])[0] is Verdict.LOST_IN_INBOX
    expired = replace(lost, at_consumers={"ledger": Marks(gone="expired", owed=True, passed=True)})
    assert into_consumer(pruned.passed_by(expired).at_consumers["ledger"])[0] is Verdict.CANNOT_KNOW
