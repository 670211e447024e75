"""Java's archives of classes: made once, made anew when their jars change, and never in the way."""

from __future__ import annotations

import os
from pathlib import Path

from tallymark.cli.pipelinerun import plan_of
from tallymark.errors import Problem
from tallymark.local.classarchive import ClassArchive
from tests.cli.conftest import Run, run

__all__ = ["run"]


def test_made_once_and_again_when_the_jars_have_changed(tmp_path: Path) -> None:
    jars = tmp_path / "jars"
    jars.mkdir()
    made: list[Path] = []

    def train(path: Path) -> None:
        made.append(path)
        path.write_text("classes")

    archive = ClassArchive("Spark", tmp_path / "spark.jsa", jars, train)
    assert archive.options() == ()
    said: list[str] = []
    archive.ensure(said.append)
    archive.ensure(said.append)
    assert made == [archive.path]
    assert said == ["preparing Java's archive of Spark's classes (once)"]
    assert f"-XX:SharedArchiveFile={archive.path}" in archive.options()
    later = archive.path.stat().st_mtime + 10
    os.utime(jars, (later, later))
    assert archive.options() == ()


def test_what_cannot_be_made_is_told_and_done_without(tmp_path: Path) -> None:
    def train(path: Path) -> None:
        raise Problem("no room")

    said: list[str] = []
    archive = ClassArchive("Spark", tmp_path / "spark.jsa", tmp_path, train)
    archive.ensure(said.append)
    assert said[-1] == "Spark will start a little slower: no room"
    assert archive.options() == ()


def test_fetched_once_every_spark_of_ours_starts_with_it(run: Run) -> None:
    fetched = run("local", "fetch", "--json")
    assert fetched.code == 0, fetched.err
    assert all(Path(each).exists() for each in fetched.json["there"])
    (archive,) = [each for each in fetched.json["there"] if "spark-classes" in each]
    plan = plan_of("tests", "local[2]", [], report=False)
    assert f"-XX:SharedArchiveFile={archive}" in plan.jvm_options
