"""Findings in files: what a run leaves there is what was to be merged, however little of it was in memory at a time."""

from __future__ import annotations

import tempfile
import tracemalloc
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tallymark.lifecycle import Stage, Verdict
from tallymark.pipeline import reconcilefiles
from tallymark.pipeline.reconcilefiles import FindingFiles
from tallymark.tally.findings import Finding, KeptFinding, Scope, merged

DAYS = [datetime(2026, 11, day, tzinfo=UTC) for day in range(1, 5)]
ALL = Scope(0, 999, whole=True)


def finding(id: str, position: int | None, verdict: Verdict = Verdict.LATE, consumer: str = "") -> Finding:
    return Finding(id, b"k", "t", 0, 5, position, consumer, Stage.INBOX, verdict, f"{id} is {verdict.value}")


FINDINGS = st.builds(
    finding,
    st.sampled_from(["a", "b", "c", "ä\0", "\N{GRINNING FACE}"]),
    # What had none may have one by the next run.
    st.sampled_from([None, 1, 2, 300]),
    st.sampled_from([Verdict.LATE, Verdict.ALTERED]),
    st.sampled_from(["", "ledger"]),
)
SCOPES = st.sampled_from(
    [ALL, Scope(0, 99), Scope(0, 999, consumers=("", "ledger")), Scope(0, 999, lowest=2)]
)


def in_order(rows: list[KeptFinding]) -> list[KeptFinding]:
    def place(row: KeptFinding) -> tuple[bool, int, str, str, str]:
        said = row.finding
        return said.position is None, said.position or 0, said.id, said.verdict.value, said.consumer

    return sorted(rows, key=place)


@settings(max_examples=30)
@given(st.lists(st.tuples(st.lists(FINDINGS, max_size=12), SCOPES, st.sampled_from(DAYS)), max_size=4))
def test_whatever_is_in_memory_the_file_has_what_is_merged_of_all(
    runs: list[tuple[list[Finding], Scope, datetime]],
) -> None:
    with pytest.MonkeyPatch.context() as patch, TemporaryDirectory() as folder:
        for name, count in (("_PART", 3), ("_GROUP", 2), ("_BLOCK", 2)):
            patch.setattr(reconcilefiles, name, count)
        files, expected = FindingFiles(Path(folder)), list[KeptFinding]()
        for number, (found, scope, at) in enumerate(runs):
            expected = in_order(merged(expected, found, scope, run=str(number), at=at))
            passed = files.passing(found, scope, outbox_id="one", run=str(number), at=at)
            assert list(passed) == found
            assert list(files.kept("one")) == expected


def many(count: int) -> Iterator[Finding]:
    for number in range(count):
        # In no order that would be of any help.
        yield finding(f"message {number * 7919 % count}", number * 104_729 % count)


def test_memory_does_not_grow_with_what_is_found_or_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, count in (("_PART", 200), ("_GROUP", 200), ("_BLOCK", 10)):
        monkeypatch.setattr(reconcilefiles, name, count)
    files = FindingFiles(tmp_path)
    assert not list(files.passing([], ALL, outbox_id="other", run="", at=DAYS[0])), "and all is imported"
    for run in range(2):
        tracemalloc.start()
        for _ in files.passing(many(6_000), ALL, outbox_id="one", run=str(run), at=DAYS[run]):
            pass
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        # All of one run are 2.7 MB.
        assert most < 1.5 * 2**20, f"run {run} had {most / 2**20:.1f} MB"
    kept = list(files.kept("one"))
    assert len(kept) == 6_000
    assert kept == in_order(kept)
    assert {(each.first_seen, each.last_seen) for each in kept} == {(DAYS[0], DAYS[1])}


def test_a_run_that_comes_to_no_end_leaves_the_file_and_nothing_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconcilefiles, "_PART", 3)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    files = FindingFiles(tmp_path / "findings")
    assert len(list(files.passing(many(10), ALL, outbox_id="one", run="1", at=DAYS[0]))) == 10
    before = files.path("one").read_bytes()
    passing = files.passing(many(20), ALL, outbox_id="one", run="2", at=DAYS[1])
    for _ in range(10):
        next(passing)
    assert [each.name for each in tmp_path.glob("tallymark-*/*")], "parts wait on the disk"
    passing.close()  # type: ignore[attr-defined]
    assert files.path("one").read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["findings"]
    assert [each.name for each in (tmp_path / "findings").iterdir()] == ["one.parquet"]
