"""The judge itself: each fault is seen, and only that one."""

from __future__ import annotations

from tests.torture.verdict import Logged, Verdict, Written, compare

WRITTEN = [Written(f"a{n}", "a", n, b"v%d" % n) for n in (1, 2, 3)]


def _log(*ids: str, partition: int = 0) -> list[Logged]:
    return [
        Logged(id_, "a", int(id_[1:]), b"v%d" % int(id_[1:]), partition, offset)
        for offset, id_ in enumerate(ids)
    ]


def _faults(verdict: Verdict) -> dict[str, int]:
    return {name: len(found) for name, found in verdict.faults.items()}


def test_all_once_and_in_order_is_no_fault() -> None:
    assert _faults(compare(WRITTEN, _log("a1", "a2", "a3"))) == {}


def test_a_row_that_is_not_in_the_log_is_missing() -> None:
    assert _faults(compare(WRITTEN, _log("a1", "a3"))) == {"missing": 1}


def test_a_second_copy_is_doubled_and_not_reordered() -> None:
    assert _faults(compare(WRITTEN, _log("a1", "a2", "a1", "a3"))) == {"doubled": 1}


def test_a_message_behind_a_later_one_of_its_key_is_reordered() -> None:
    assert _faults(compare(WRITTEN, _log("a1", "a3", "a2"))) == {"reordered": 1}


def test_what_no_row_stands_for_is_a_phantom() -> None:
    assert _faults(compare(WRITTEN, _log("a1", "a2", "a3", "a9"))) == {"phantoms": 1}


def test_another_value_is_altered() -> None:
    log = _log("a1", "a2", "a3")
    log[1] = Logged("a2", "a", 2, b"other", 0, 1)
    assert _faults(compare(WRITTEN, log)) == {"altered": 1}


def test_a_key_in_two_partitions_is_split() -> None:
    log = [*_log("a1", "a2"), *_log("a3", partition=1)]
    assert _faults(compare(WRITTEN, log)) == {"split_keys": 1}


def test_numbers_that_do_not_rise_with_position_break_the_premise() -> None:
    rows = [WRITTEN[0], WRITTEN[2], WRITTEN[1]]
    assert set(_faults(compare(rows, _log("a1", "a2", "a3")))) == {"misplaced"}
