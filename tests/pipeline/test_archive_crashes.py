"""kill -9 of the archive's driver at each boundary: afterwards the archive is the log, once and whole.

There is no checkpoint to delete, copy or restore: the manifests are all there is, and a run begins from them.
"""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.conftest import MakeTopic
from tests.pipeline.archiving import Ground

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUICK = ["archive.written:2", "archive.before_manifest:2", "archive.committed:2"]
MORE = [
    "archive.opened",
    "archive.planned",
    "archive.planned:2",
    "archive.written",
    "archive.before_manifest",
]
COMPACTING = ["archive.rewritten", "archive.replaced", "archive.deleted"]


@pytest.fixture
def ground(make_topic: MakeTopic, bootstrap_servers: str, tmp_path: Path) -> Ground:
    return Ground(bootstrap_servers, tmp_path / "archive", [make_topic()])


@pytest.mark.parametrize(
    "point",
    [*QUICK[1:2], *(pytest.param(each, marks=pytest.mark.full) for each in (*QUICK[:1], QUICK[2], *MORE))],
)
def test_p7_killed_and_run_again(spark: SparkSession, ground: Ground, point: str) -> None:
    ground.send(90, aborted=2)
    with ground.child("--available-now", "--max-offsets", "60", crash_point=point) as child:
        assert child.wait(240) == -signal.SIGKILL, child.output
    before = ground.rows()
    assert set(before) <= set(ground.log())
    assert len(before) == len(set(before))
    ground.send(30, start=90)
    ground.archive(spark, max_offsets=60)
    assert ground.rows() == ground.log()
    assert not ground.strays()
    assert not list((ground.folder / "staging").iterdir())


@pytest.mark.full
@pytest.mark.parametrize("point", COMPACTING)
def test_killed_while_files_are_put_together(spark: SparkSession, ground: Ground, point: str) -> None:
    ground.send(60)
    ground.archive(spark, max_offsets=20)
    many = len(ground.files())
    with ground.child("--available-now", "--compact", "--grace", "0", crash_point=point) as child:
        assert child.wait(240) == -signal.SIGKILL, child.output
    assert ground.rows() == ground.log()
    ground.archive(spark, compact_now=True, grace_s=0)
    assert ground.rows() == ground.log()
    assert len(ground.files()) < many
    assert not ground.strays()


@pytest.mark.full
def test_a_stopped_run_holds_the_lock_and_a_restored_copy_loses_nothing(
    spark: SparkSession, ground: Ground, tmp_path: Path
) -> None:
    ground.send(60)
    ground.archive(spark)
    shutil.copytree(ground.folder, tmp_path / "copy")
    ground.send(60, start=60)
    with ground.child("--available-now", crash_point="archive.before_manifest:1:stop") as child:
        child.wait_stopped(120)
        with ground.child("--available-now") as second:
            assert second.wait(240) == 1
            assert f"process {child.pid} on" in json.loads(second.output.splitlines()[-1])["error"]
        child.cont()
        assert child.wait(240) == 0, child.output
        done = json.loads(child.output.splitlines()[-1])
    assert (done["rows"], done["archive_rows"]) == (60, 120)
    assert ground.rows() == ground.log()
    # From a copy that is older than what Kafka has: what came since is archived again, once.
    restored = Ground(ground.servers, tmp_path / "copy", ground.topics)
    restored.archive(spark)
    assert restored.rows() == restored.log()
