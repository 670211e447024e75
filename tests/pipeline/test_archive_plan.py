"""What is archived next, what stops a run, and how long retention leaves. Tiny literal inputs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tallymark.errors import Problem
from tallymark.inbox.gaps import Bounds
from tallymark.pipeline.archiveplan import (
    Retention,
    caught_up,
    founding,
    left_ms,
    lost,
    next_moves,
    refuse_trouble,
    standing,
)
from tallymark.pipeline.manifest import Archive, Extent, Move

HOUR = 3_600_000


def archive(**upto: int) -> Archive:
    return Archive(1, topics={"t": "T"}, extents={("t", int(p[1:])): Extent(0, n) for p, n in upto.items()})


def log(*ends: tuple[int, int], topic_id: str = "T") -> dict[tuple[str, int], Bounds]:
    return {("t", partition): Bounds(*each, topic_id) for partition, each in enumerate(ends)}


def test_a_topic_begins_where_its_log_begins() -> None:
    assert founding(log((5, 9), (0, 0))) == (Move("t", 0, 5, 5), Move("t", 1, 0, 0))


def test_an_archive_has_caught_up_where_nothing_of_any_of_its_logs_is_left() -> None:
    state, bounds = archive(p0=10, p1=0), log((0, 110), (0, 300))
    assert not caught_up(state, bounds)
    assert caught_up(state, bounds, next_moves(state, bounds, 1000))
    assert not caught_up(state, bounds, next_moves(state, bounds, 40))
    assert caught_up(archive(p0=110, p1=300), bounds)
    # A partition was added, and holds something; a run that was given some of its topics only says nothing of the others.
    assert not caught_up(archive(p0=110), bounds)
    assert not caught_up(replace(archive(p0=110, p1=300), topics={"t": "T", "other": "O"}), bounds)


def test_a_batch_takes_what_is_there_or_each_partition_its_share() -> None:
    state, bounds = archive(p0=10, p1=0), log((0, 110), (0, 300))
    assert next_moves(state, bounds, 1000) == (Move("t", 0, 10, 110), Move("t", 1, 0, 300))
    assert next_moves(state, bounds, 40) == (Move("t", 0, 10, 20), Move("t", 1, 0, 30))
    assert next_moves(archive(p0=110, p1=300), bounds, 1000) == ()


def test_a_partition_that_is_nearly_done_is_not_forgotten() -> None:
    assert next_moves(archive(p0=9, p1=0), log((0, 10), (0, 10**9)), 10)[0] == Move("t", 0, 9, 10)


def test_a_partition_that_was_added_begins_at_its_first_offset() -> None:
    assert next_moves(archive(p0=10), log((0, 10), (0, 5)), 100) == (Move("t", 1, 0, 5),)
    with pytest.raises(Problem, match="t/1: offsets 0 to 2 were deleted"):
        refuse_trouble(archive(p0=10), log((0, 10), (3, 5)))


@pytest.mark.parametrize(
    ("bounds", "said"),
    [
        (log((15, 20)), "t/0: offsets 10 to 14 were deleted from the log before they were archived"),
        (log((0, 9)), "t/0: archived up to 10, but the log ends at 9"),
        (log((0, 10), topic_id="U"), r"made anew \(its id was T, now U\)"),
    ],
)
def test_loss_is_never_silent(bounds: dict[tuple[str, int], Bounds], said: str) -> None:
    with pytest.raises(Problem, match=said) as caught:
        refuse_trouble(archive(p0=10), bounds)
    assert caught.value.remedy
    refuse_trouble(archive(p0=10), log((10, 10)))


def test_only_what_was_deleted_is_passed_over() -> None:
    assert lost(archive(p0=10, p1=7), log((12, 20), (7, 9), (3, 4))) == (
        Move("t", 0, 10, 12),
        Move("t", 2, 0, 3),
    )


@pytest.mark.parametrize(
    ("oldest", "retention", "left"),
    [
        (100 * HOUR, Retention(24 * HOUR, -1), 4 * HOUR),
        (90 * HOUR, Retention(24 * HOUR, -1), 0),
        (None, Retention(24 * HOUR, -1), None),
        (100 * HOUR, Retention(-1, -1), None),
        (100 * HOUR, Retention(24 * HOUR, -1, "compact"), None),
        (100 * HOUR, Retention(24 * HOUR, -1, "compact,delete"), 4 * HOUR),
    ],
)
def test_how_long_retention_leaves(oldest: int | None, retention: Retention, left: int | None) -> None:
    assert left_ms(oldest, retention, 120 * HOUR) == left


def test_a_partition_for_status() -> None:
    found = standing(
        ("t", 0),
        Extent(3, 10),
        "T",
        Bounds(5, 25, "T"),
        Retention(24 * HOUR, 10**9),
        oldest_ms=100 * HOUR,
        now_ms=120 * HOUR,
    )
    assert (found.archived_from, found.archived_upto, found.behind, found.left_ms) == (3, 10, 15, 4 * HOUR)
    assert found.by_size
    assert not found.compacted
    assert found.trouble is None
