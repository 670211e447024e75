"""Jobs by spark-submit on a real standalone Spark: what travels with them arrives, and is used."""

from __future__ import annotations

import io
import json
import sys
import tarfile
from pathlib import Path

import pytest

from tallymark.local.cluster import LocalCluster
from tests.children import start_child
from tests.conftest import MakeTopic
from tests.inbox.ground import Ground as Consumer
from tests.pipeline.archiving import Ground
from tests.pipeline.standalone import standalone

__all__ = ["standalone"]

pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]


@pytest.fixture
def ground(make_topic: MakeTopic, bootstrap_servers: str, tmp_path: Path) -> Ground:
    return Ground(bootstrap_servers, tmp_path / "archive", [make_topic(6)])


def test_a_job_by_spark_submit(standalone: LocalCluster, ground: Ground) -> None:
    """The line that `submit --dry-run` prints is what `submit` runs."""
    ground.send(60)
    words = ["-m", "tallymark", "pipeline", "submit", "--master", standalone.spark.url]
    job = [
        *("--", "archive", "--archive", str(ground.folder), "--topic", ground.topics[0], "--available-now"),
        *("--bootstrap-servers", ground.servers, "--json"),
    ]
    with start_child([*words, "--dry-run", "--json", *job]) as child:
        assert child.wait(240) == 0, child.output
        line = json.loads(child.output.splitlines()[-1])["command"]
    assert "--jars" in line
    assert "--py-files" in line
    assert "spark.speculation=false" in line
    with start_child([*words, *job]) as child:
        assert child.wait(240) == 0, child.output
        assert '"rows": 60' in child.output
    assert ground.rows() == ground.log()


def test_a_python_environment_travels_with_the_job(
    standalone: LocalCluster, inbox_ground: Consumer, tmp_path: Path
) -> None:
    """Executors of an ingest run Python, and it is the one that was packed: it leaves a mark where it is started."""
    ids = inbox_ground.send(60)
    marks = tmp_path / "marks"
    marks.mkdir()
    words = [*("-m", "tallymark", "pipeline", "submit", "--master", standalone.spark.url)]
    words += ["--environment", str(packed_python(tmp_path / "environment.tar.gz", marks)), "--"]
    words += ["ingest", "--consumer", inbox_ground.name, "--topic", inbox_ground.topic, "--available-now"]
    words += ["--database", inbox_ground.url, "--bootstrap-servers", inbox_ground.servers, "--json"]
    with start_child(words) as child:
        assert child.wait(240) == 0, child.output
        assert '"kept": 60' in child.output
    kept = inbox_ground.query("select id::text from tallymark.inbox where consumer = %s", inbox_ground.name)
    assert {row[0] for row in kept} == set(ids)
    assert list(marks.iterdir()), "another Python has run"


def packed_python(path: Path, marks: Path) -> Path:
    """An environment as executors unpack it, whose Python is this one by another name."""
    script = f'#!/bin/sh\ntouch "{marks}/$$"\nexec "{sys.executable}" "$@"\n'.encode()
    with tarfile.open(path, "w:gz") as archive:
        member = tarfile.TarInfo("bin/python")
        member.size, member.mode = len(script), 0o755
        archive.addfile(member, io.BytesIO(script))
    return path
