"""What counts as lost, doubled, reordered, late or altered: tiny histories, and generated ones with injected faults."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tallymark.lifecycle import Stage, Verdict
from tallymark.store.postgres.migrations import known
from tallymark.tally.findings import evidence
from tallymark.tally.history import judge
from tallymark.tally.records import Copy, Done, History, Horizon, Kept, Reader, Row
from tallymark.tally.verdicts import FINDINGS, INTO_CONSUMER, INTO_LOG, MENDABLE, Marks, worst
from tests.tally.cases import Case
from tests.tally.histories import CASES

V, S = Verdict, Stage
FAULTS = (
    "lose in relay",
    "lose in log",
    "lose in inbox",
    "leave unapplied",
    "double",
    "apply twice",
    "reorder",
    "alter outbox",
    "alter inbox",
    "phantom",
    "delete row",
    "apply late",
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_tiny_history_gets_its_verdict(case: Case) -> None:
    judged = judge(case.history, case.horizon)[case.id]
    assert judged.in_log == case.in_log
    assert judged.at_consumers.get("ledger") == case.at_ledger


def test_every_verdict_has_a_case_and_a_sentence() -> None:
    seen = {case.in_log[0] for case in CASES} | {case.at_ledger[0] for case in CASES if case.at_ledger}
    assert seen == set(Verdict)
    assert all(verdict.sentence for verdict in Verdict)


def test_the_database_takes_what_is_a_finding_and_nothing_else() -> None:
    sql = next(migration.sql for migration in known() if migration.name == "tally")
    said = re.search(r"check \(verdict in \(([^)]*)\)", sql)
    assert said is not None
    assert set(re.findall(r"'([a-z-]+)'", said[1])) == {verdict.value for verdict in FINDINGS}


def test_every_finding_has_its_evidence() -> None:
    for rule in (*INTO_LOG, *INTO_CONSUMER):
        if rule.verdict in FINDINGS:
            for gone in ("", "expired", "deleted"):
                assert evidence(rule.verdict, rule.stage, Marks(gone=gone), "ledger")


def test_the_gravest_verdict_is_the_message_s() -> None:
    assert worst(V.DELIVERED, V.LOST_IN_INBOX, V.PENDING) is V.LOST_IN_INBOX
    assert worst() is V.DELIVERED
    assert MENDABLE < FINDINGS


@settings(max_examples=300, deadline=None)
@example(255, 13, 1, 1, ["lose in inbox", "lose in relay", "reorder", "lose in log", "apply late"])
@given(
    seed=st.integers(0, 2**32),
    # Two for each of at most eight faults.
    messages=st.integers(17, 60),
    keys=st.integers(1, 4),
    partitions=st.integers(1, 3),
    faults=st.lists(st.sampled_from(FAULTS), max_size=8),
)
def test_what_was_injected_is_found_and_nothing_else(
    seed: int, messages: int, keys: int, partitions: int, faults: list[str]
) -> None:
    """Precision and recall are both 1."""
    history, expected = sabotaged(seed, messages, keys, partitions, faults)
    readers = {
        name: Reader(
            frozenset({"t"}), {("t", each): 10_000 for each in range(partitions)}, ordered=frozenset({"t"})
        )
        for name in ("ledger", "audit")
    }
    judged = judge(history, Horizon(readers))
    found = {(id_, *fault) for id_, each in judged.items() for fault in each.faults()}
    assert found == expected


def sabotaged(  # noqa: PLR0912 - one branch per fault
    seed: int, messages: int, keys: int, partitions: int, faults: list[str]
) -> tuple[History, set[tuple[str, str, Verdict, Stage]]]:
    """A history in which all is well but for the faults, and what must be found: id, consumer, verdict, stage."""
    chance = random.Random(seed)  # noqa: S311 - a test's own
    rows, copies, kept, done = [], [], [], []
    for n in range(1, messages + 1):
        key = f"k{chance.randrange(keys)}".encode()
        partition = key[-1] % partitions
        # Gaps, as transaction markers leave them.
        rows.append(Row(f"m{n}", n, f"d{n}", key=key, partition=partition))
        copies.append(Copy(f"m{n}", n, f"d{n}", n * 2, partition=partition, key=key))
        for consumer in ("ledger", "audit"):
            kept.append(Kept(consumer, f"m{n}", f"d{n}", n * 2, partition=partition, key=key))
            done.append(Done(consumer, f"m{n}", seq=n, turn=n, offset=n * 2, partition=partition))
    logged = list(copies)
    expected: set[tuple[str, str, Verdict, Stage]] = set()
    victims = [f"m{n}" for n in range(1, messages + 1)]
    chance.shuffle(victims)
    for fault in faults:
        if fault in ("reorder", "apply late"):
            # What the log has lost since was applied all the same: it may not stand between the two.
            pair = _neighbours(copies if fault == "reorder" else logged, victims)
            if pair is None:
                continue
            first, second = pair
            victims = [each for each in victims if each not in (first.id, second.id)]
            if fault == "apply late":
                seqs = {d.id: d.seq for d in done if d.id in (first.id, second.id)}
                turned = {first.id: seqs[second.id], second.id: seqs[first.id]}
                done = [
                    replace(d, seq=turned[d.id], turn=turned[d.id])
                    if d.id in turned and d.consumer == "ledger"
                    else d
                    for d in done
                ]
                expected.add((first.id, "ledger", V.REORDERED, S.APPLY))
                continue
            swapped = {first.id: second.offset, second.id: first.offset}
            copies = [replace(c, offset=swapped.get(c.id, c.offset)) for c in copies]
            expected.add((first.id, "", V.REORDERED, S.LOG))
            continue
        victim = victims.pop()
        if fault in ("lose in relay", "lose in log"):
            copies = [c for c in copies if c.id != victim]
        if fault in ("lose in relay", "lose in inbox"):
            gone = {"ledger"} if fault == "lose in inbox" else {"ledger", "audit"}
            kept = [k for k in kept if k.id != victim or k.consumer not in gone]
            done = [d for d in done if d.id != victim or d.consumer not in gone]
        if fault == "leave unapplied":
            done = [d for d in done if (d.id, d.consumer) != (victim, "audit")]
        if fault == "double":
            copies.append(replace(next(c for c in copies if c.id == victim), offset=5_000 + len(expected)))
        if fault == "apply twice":
            done.append(Done("ledger", victim))
        if fault == "alter outbox":
            rows = [replace(r, digest="changed") if r.id == victim else r for r in rows]
        if fault == "alter inbox":
            kept = [
                replace(k, digest="changed") if (k.id, k.consumer) == (victim, "ledger") else k for k in kept
            ]
        if fault == "phantom":
            victim = f"p{len(expected)}"
            copies.append(Copy(victim, 9_000, "dp", 7_000 + len(expected), key=b"nobody"))
            kept += [Kept(name, victim, "dp", 7_000) for name in ("ledger", "audit")]
            done += [Done(name, victim) for name in ("ledger", "audit")]
        if fault == "delete row":
            rows = [r for r in rows if r.id != victim]
        expected.add((victim, *_EXPECTED[fault]))
    return History(rows, [], copies, kept, done), expected


_EXPECTED = {
    "lose in relay": ("", V.LOST_IN_RELAY, S.RELAY),
    "lose in log": ("", V.LOST_IN_LOG, S.LOG),
    "lose in inbox": ("ledger", V.LOST_IN_INBOX, S.INBOX),
    "leave unapplied": ("audit", V.UNAPPLIED, S.APPLY),
    "double": ("", V.DOUBLED_IN_LOG, S.LOG),
    "apply twice": ("ledger", V.APPLIED_TWICE, S.APPLY),
    "alter outbox": ("", V.ALTERED, S.LOG),
    "alter inbox": ("ledger", V.ALTERED, S.INBOX),
    "phantom": ("", V.PHANTOM, S.LOG),
    "delete row": ("", V.PHANTOM, S.LOG),
}


def _neighbours(copies: list[Copy], free: list[str]) -> tuple[Copy, Copy] | None:
    """Two of one key, one after the other, that nothing was done to."""
    by_key: dict[bytes | None, list[Copy]] = {}
    for copy in sorted(copies, key=lambda each: each.offset):
        by_key.setdefault(copy.key, []).append(copy)
    for group in by_key.values():
        for first, second in pairwise(group):
            if first.id in free and second.id in free:
                return first, second
    return None
