"""An archive's manifests: what follows from what, what is refused, and what stays readable. Tiny literal inputs."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tallymark.errors import Inconsistent, Problem, Stale, UsageError
from tallymark.pipeline.archivefiles import adopt
from tallymark.pipeline.compact import Compaction, groups, refuse_other_rows
from tallymark.pipeline.manifest import (
    Archive,
    Change,
    Extent,
    Kind,
    Move,
    Stored,
    change_of,
    change_text,
    state_of,
    state_text,
    summed,
)
from tallymark.pipeline.manifestlog import ManifestLog, is_held


def stored(name: str, first: int = 0, last: int = 9, *, size: int = 100, date: str = "2026-11-15") -> Stored:
    path = f"data/topic=t/date={date}/{name}.parquet"
    return Stored(path, "t", date, last - first + 1, size, (0, 0), (first, last), (1, 2))


def opening(number: int = 1, run: str = "a") -> Change:
    return Change(
        number, Kind.OPENED, run, 1, "id", "cluster", {"t": "T"} if number == 1 else {}, (Move("t", 0, 0, 0),)
    )


def batch(number: int, start: int, end: int, *files: Stored, run: str = "a") -> Change:
    return Change(number, Kind.BATCH, run, number, moves=(Move("t", 0, start, end),), add=files)


def test_changes_add_up_to_what_is_archived() -> None:
    state = summed([opening(), batch(2, 0, 10, stored("x")), batch(3, 10, 20, stored("y", 10, 19))])
    assert (state.number, state.rows, state.bytes) == (3, 20, 200)
    assert state.extents == {("t", 0): Extent(0, 20)}
    assert (state.archive_id, state.cluster_id, dict(state.topics)) == ("id", "cluster", {"t": "T"})


def test_an_archive_is_a_copy_as_of_when_it_had_caught_up_last() -> None:
    old = summed([opening(), batch(2, 0, 10, replace(stored("x"), logged_ms=(50, 70)))])
    # It never said so: an earlier version's, or one that was never at the end of its logs.
    assert (Archive().copied_ms, old.copied_ms) == (0, 70)
    caught_up = old.after(replace(batch(3, 10, 20, stored("y")), caught_up_ms=60))
    assert caught_up.copied_ms == 60
    more = caught_up.after(replace(batch(4, 20, 30, stored("z")), at_ms=90))
    assert more.after(Change(5, Kind.COMPACTED, "a", 99)).copied_ms == 60
    assert more.after(replace(opening(5), moves=(), caught_up_ms=99)).copied_ms == 99


def test_a_replaced_file_stays_known_until_it_is_gone() -> None:
    state = summed([opening(), batch(2, 0, 10, stored("x"))])
    old = stored("x").path
    after = state.after(
        Change(3, Kind.COMPACTED, "a", 30, add=(stored("z"),), remove=(old,)),
    )
    assert set(after.files) == {stored("z").path}
    assert after.retired == {old: 30}
    assert after.after(Change(4, Kind.SWEPT, "a", 40, gone=(old,))).retired == {}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (batch(4, 10, 20), "does not follow"),
        (batch(3, 5, 20), "stands at 10"),
        (batch(3, 20, 30), "stands at 10"),
        (batch(3, 10, 9), "stands at 10"),
        (batch(3, 10, 20, stored("x")), "a second time"),
        (Change(3, Kind.COMPACTED, "a", 1, remove=("data/none",)), "does not have"),
        (replace(batch(3, 10, 20), archive_id="other"), "another archive"),
    ],
)
def test_a_change_that_does_not_follow_is_refused(change: Change, said: str) -> None:
    state = summed([opening(), batch(2, 0, 10, stored("x"))])
    with pytest.raises(Inconsistent, match=said):
        state.after(change)


def test_what_is_written_is_read() -> None:
    changes = [
        opening(),
        batch(2, 0, 10, stored("x")),
        Change(3, Kind.SKIPPED, "b", 3, moves=(Move("t", 0, 10, 15),)),
        Change(4, Kind.COMPACTED, "b", 4, add=(stored("y"),), remove=(stored("x").path,)),
    ]
    assert [change_of(change_text(each)) for each in changes] == changes
    state = summed(changes)
    assert state.gaps == (Move("t", 0, 10, 15),)
    assert state_of(state_text(state)) == state


def test_of_two_runs_one_gets_the_number(tmp_path: Path) -> None:
    """The one that lost has changed nothing, whatever it believed about the lock."""
    log = ManifestLog(tmp_path)
    log.prepare()
    state = log.commit(log.load(), opening())
    zombie = state
    state = log.commit(state, opening(2, run="b"))
    with pytest.raises(Stale, match="another run has written manifest 2"):
        log.commit(zombie, batch(2, 0, 10, stored("x")))
    assert log.load() == state
    assert not [path for path in (tmp_path / "manifests").iterdir() if path.name.startswith(".")]


def test_reading_stays_quick_and_a_zombie_finds_no_old_number_free(tmp_path: Path) -> None:
    log = ManifestLog(tmp_path, sum_every=5)
    log.prepare()
    state = log.commit(log.load(), opening())
    zombie = state
    for number in range(2, 24):
        state = log.commit(state, batch(number, number - 2, number - 1, stored(f"f{number}", number, number)))
    assert log.load() == state
    names = sorted(path.name for path in (tmp_path / "manifests").iterdir())
    assert len([name for name in names if name.endswith(".sum")]) == 2
    assert len(names) < 12, names
    with pytest.raises(Stale):
        log.commit(zombie, batch(2, 0, 10, stored("late")))
    assert log.load() == state


def test_a_damaged_sum_is_made_up_for_by_the_changes(tmp_path: Path) -> None:
    log = ManifestLog(tmp_path, sum_every=5)
    log.prepare()
    state = log.commit(log.load(), opening())
    for number in range(2, 13):
        state = log.commit(state, batch(number, number - 2, number - 1))
    max((tmp_path / "manifests").glob("*.sum")).write_text("{")
    assert log.load() == state


def test_a_missing_or_damaged_manifest_is_not_passed_over(tmp_path: Path) -> None:
    log = ManifestLog(tmp_path)
    log.prepare()
    state = log.commit(log.load(), opening())
    state = log.commit(state, batch(2, 0, 10))
    log.commit(state, batch(3, 10, 20))
    second = tmp_path / "manifests" / f"{2:020}.json"
    text = second.read_text()
    second.unlink()
    with pytest.raises(Inconsistent, match=r"manifest 2 of .* is missing, and 3 is there"):
        log.load()
    second.write_text(text[: len(text) // 2])
    with pytest.raises(Inconsistent, match="is damaged"):
        log.load()


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_disk_that_fails_behind_a_manifest_is_one_clear_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """The manifest counts; the sum of all is made anew another time, and nothing half-written stays."""
    log = ManifestLog(tmp_path, sum_every=2)
    log.prepare()
    state = log.commit(log.load(), opening())

    def fails(number: int | Path, *_rest: Path) -> None:
        if call == "replace" or os.path.isdir(number):
            raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, call, fails)
    with pytest.raises(Problem, match=r"manifest 2 is written, and the folder .* fails: Input/output error"):
        log.commit(state, batch(2, 0, 10, stored("x")))
    monkeypatch.undo()
    assert log.load().number == 2
    assert sorted(path.suffix for path in (tmp_path / "manifests").iterdir()) == [".json", ".json"]
    assert log.commit(log.load(), batch(3, 10, 20, stored("y", 10, 19))).number == 3


def test_the_second_run_is_told_who_holds_the_archive(tmp_path: Path) -> None:
    log = ManifestLog(tmp_path)
    log.prepare()
    assert is_held(tmp_path) is None
    said = f"held by run first .process {os.getpid()} on"
    with log.held("first"), pytest.raises(Problem, match=said), log.held("second"):
        pytest.fail("two at once")
    with log.held("second"):
        assert "run second" in (is_held(tmp_path) or "")


def test_a_folder_with_other_things_is_no_archive(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("x")
    with pytest.raises(UsageError, match=r"is no archive: it holds thesis\.txt"):
        ManifestLog(tmp_path).prepare()
    with pytest.raises(UsageError, match="there is no archive"):
        ManifestLog(tmp_path / "none").require()


def of(*files: Stored) -> Archive:
    return Archive(1, files={each.path: each for each in files})


def test_small_files_of_one_day_are_put_together_when_they_are_many() -> None:
    rule = Compaction(many=3, target=1000)
    small = [stored(f"s{n}", n * 10, n * 10 + 9) for n in range(3)]
    assert groups(of(*small[:2]), rule) == []
    assert groups(of(*small[:2]), rule, at_least=2) == [tuple(small[:2])]
    assert groups(of(*reversed(small)), rule) == [tuple(small)]
    other_day = [replace(each, path=f"{each.path}-", date="2026-11-16") for each in small]
    assert groups(of(*small, *other_day), rule) == [tuple(small), tuple(other_day)]


def test_large_files_are_left_and_one_job_has_a_bound() -> None:
    rule = Compaction(many=2, target=1000)
    for size, asked in ((500, 2), (125, None)):
        large = stored("large", 0, 9, size=size)
        assert groups(of(large, replace(large, path="other")), rule, at_least=asked) == []
    medium = stored("medium", 0, 9, size=124)
    assert len(groups(of(medium, replace(medium, path="other")), rule)) == 1
    many = [stored(f"s{n:03}", n * 10, n * 10 + 9, size=400) for n in range(50)]
    found = groups(of(*many), rule, at_least=2)
    assert sum(len(group) for group in found) == 50
    assert all(sum(each.bytes for each in group) <= 8000 for group in found)


def test_nothing_is_replaced_by_other_rows() -> None:
    old = [stored("a"), stored("b", 10, 19)]
    refuse_other_rows(old, [stored("c", 0, 19)])
    for wrong in ([], [stored("c", 0, 18)], [stored("c", 1, 20)], [stored("c", 0, 19, date="2026-11-16")]):
        with pytest.raises(Inconsistent, match="nothing was replaced"):
            refuse_other_rows(old, wrong)


def test_a_file_with_a_moment_that_no_calendar_has(tmp_path: Path) -> None:
    """A producer that counts in microseconds: its record is archived like any other."""
    staged = tmp_path / "staged" / "topic=t" / "date=2026-11-15"
    staged.mkdir(parents=True)
    far = 1_700_000_000_000_000_000
    columns = {
        "partition": pa.array([0, 0], pa.int32()),
        "offset": pa.array([5, 6], pa.int64()),
        "timestamp": pa.array([1_700_000_000_000_000, far], pa.timestamp("us", tz="UTC")),
    }
    pq.write_table(pa.table(columns), staged / "a.parquet")
    seen: list[int] = []
    (found,) = adopt(tmp_path / "staged", tmp_path, "x", lambda rows, _folder: seen.append(rows))
    assert seen == [2]
    assert found.offsets == (5, 6)
    assert found.logged_ms == (1_700_000_000_000, far // 1000)
