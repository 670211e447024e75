"""P4, P5, S1: the Spark driver killed at each of its crash points, then another; log and effects are compared by id."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.inbox.conftest import MakeInboxGround
from tests.inbox.ground import Ground
from tests.pipeline.grounds import pipeline

POINTS = [
    "pipeline.offsets_written:1",
    "pipeline.loaded:2",
    "pipeline.before_commit:2",
    "pipeline.after_commit:1",
]
BATCH = ("--max-offsets", "60")


@pytest.mark.timeout(1500)
@pytest.mark.parametrize("mode", ["set", pytest.param("handlers", marks=pytest.mark.full)])
def test_each_effect_is_there_once_wherever_the_driver_is_killed(
    make_inbox_ground: MakeInboxGround, tmp_path: Path, mode: str
) -> None:
    """One after the other, while messages keep coming; each begins where the one before it was killed."""
    ground = make_inbox_ground()
    inbox: dict[str, object] | None = None if mode == "set" else {}
    sent = 0
    for point in POINTS:
        ground.send(200)
        sent += 200
        with pipeline(ground, tmp_path, *BATCH, crash_point=point, inbox=inbox) as child:
            assert child.wait(240) == -signal.SIGKILL, f"{point}: {child.output}"
        assert ground.applied() < sent, f"{point}: the crash came too late to show anything"
    with pipeline(ground, tmp_path, inbox=inbox) as child:
        assert child.wait(240) == 0, child.output
    same(ground, sent)


def same(ground: Ground, sent: int) -> None:
    """Log, inbox, effects and applications are the same, by id."""
    found = ground.compare()
    assert found.expected == sent
    assert found.is_clean, found
    assert ground.value("select count(*) from tallymark.inbox") == sent
    assert ground.value("select count(*) from tallymark.applications where outcome = 'applied'") == sent
    assert ground.value("select count(*) from tallymark.queue") == 0
    assert ground.value("select count(*) from tallymark.dead_letters") == 0
    assert ground.value("select sum(kept) from tallymark.positions") == sent
    assert ground.value("select sum(kept) from tallymark.ingested") == sent
    assert ground.value("select count(*) from pg_class where relname like 'staging!_%' escape '!'") == 0
