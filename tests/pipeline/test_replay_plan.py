"""What a replay reads from where, and what it refuses: pure."""

from __future__ import annotations

import uuid

import pytest

from tallymark.errors import Problem
from tallymark.inbox.gaps import Bounds
from tallymark.pipeline.manifest import Archive, Extent, Move, Stored
from tallymark.pipeline.replayids import since_of
from tallymark.pipeline.replayplan import Source, planned

PLACE = ("t", 0)
FILE = Stored("f", "t", "2026-11-15", 5, 1, (0, 0), (0, 4), (100, 200))


def plan(
    *,
    first: int,
    end: int,
    start: int,
    archived: tuple[int, int] | None = None,
    gaps: tuple[Move, ...] = (),
    strict: bool = True,
    since: int = 0,
    older_upto: int = 0,
) -> Source:
    """`older_upto`: what is archived up to, and without, this offset is older than the moment."""
    archive = None
    if archived:
        archive = Archive(
            1, topics={"t": "T"}, extents={PLACE: Extent(*archived)}, files={"f": FILE}, gaps=gaps
        )
    return planned(
        {PLACE: end},
        {PLACE: start},
        {PLACE: Bounds(first, 100, "T")},
        archive=archive,
        since_ms=since,
        strict=strict,
        older=lambda missing: missing.end < older_upto,
    )


def test_all_from_kafka_where_kafka_has_it() -> None:
    assert plan(first=0, end=50, start=0) == Source((Move("t", 0, 0, 50),))
    assert plan(first=10, end=50, start=20) == Source((Move("t", 0, 20, 50),))
    assert plan(first=10, end=50, start=20, archived=(0, 15)) == Source((Move("t", 0, 20, 50),))
    assert plan(first=0, end=50, start=60) == Source()


def test_the_older_part_from_the_archive() -> None:
    found = plan(first=10, end=50, start=10, archived=(0, 60))
    assert found == Source((Move("t", 0, 10, 50),), (FILE,), (Move("t", 0, 0, 10),))
    assert plan(first=10, end=50, start=10, archived=(0, 60), since=201).files == ()
    assert plan(first=40, end=30, start=40, archived=(0, 60)).archived == (Move("t", 0, 0, 30),)


def test_a_part_that_is_nowhere_is_named() -> None:
    with pytest.raises(Problem, match="t/0: offsets 8 to 9 are neither in Kafka nor in the archive"):
        plan(first=10, end=50, start=10, archived=(0, 8))
    with pytest.raises(Problem, match="t/0: offsets 0 to 9 are no longer in Kafka"):
        plan(first=10, end=50, start=10)
    assert plan(first=10, end=50, start=10, strict=False).kafka == (Move("t", 0, 10, 50),)
    assert plan(first=10, end=50, start=10, archived=(0, 8), strict=False).archived == (Move("t", 0, 0, 8),)


def test_what_was_gone_before_the_archive_began_is_named() -> None:
    with pytest.raises(Problem, match="t/0: offsets 0 to 2 are neither in Kafka nor in the archive"):
        plan(first=10, end=50, start=10, archived=(3, 60))
    found = plan(first=10, end=50, start=10, archived=(3, 60), older_upto=4)
    assert found.archived == (Move("t", 0, 3, 10),), "the first one archived is older than the moment"
    assert plan(first=10, end=50, start=10, archived=(3, 60), strict=False) == found
    with pytest.raises(Problem, match="t/0: offsets 0 to 1 are neither"):
        plan(first=10, end=2, start=10, archived=(3, 60))
    assert plan(first=10, end=2, start=10, archived=(3, 60), strict=False) == Source()


def test_gaps_are_named() -> None:
    gaps = (Move("t", 0, 4, 6), Move("t", 0, 8, 9), Move("t", 0, 20, 30), Move("u", 0, 1, 2))
    with pytest.raises(Problem, match="t/0: offsets 4 to 5; t/0: offsets 8 to 8 are neither"):
        plan(first=10, end=50, start=10, archived=(0, 60), gaps=gaps)
    with pytest.raises(Problem, match=r"^t/0: offsets 8 to 8 are neither"):
        plan(first=10, end=50, start=10, archived=(0, 60), gaps=gaps, older_upto=7)
    found = plan(first=10, end=50, start=10, archived=(0, 60), gaps=gaps, strict=False)
    assert found.archived == (Move("t", 0, 0, 10),)


def test_how_far_back_ids_can_lie() -> None:
    one = "0197e5a0-0000-7000-8000-000000000000"
    moment = int(one.replace("-", "")[:12], 16)
    assert since_of([one]) == moment - 86_400_000
    assert since_of([one, str(uuid.uuid4())]) == 0
    assert since_of([one, "order-17"]) == 0
