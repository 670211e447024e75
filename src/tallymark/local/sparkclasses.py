"""Spark's classes, archived by a session that does a little of everything: half the CPU of a start, for every job."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tallymark.errors import Problem
from tallymark.local.classarchive import ClassArchive, archive_path
from tallymark.local.jars import JarStore, spark_connector
from tallymark.local.java import Java
from tallymark.local.spark import spark_home

_WITHIN_S = 300.0
# Each is large, and belongs to one environment; environments come and go.
_KEPT = 3


def spark_classes(java: Java, store: JarStore) -> ClassArchive:
    jars = spark_home() / "jars"
    cache = store.folder(spark_connector()).parent

    def train(path: Path) -> None:
        scratch = path.with_suffix(".new")
        scratch.unlink(missing_ok=True)
        environment = {**os.environ, "JAVA_HOME": str(java.executable.resolve().parent.parent)}
        try:
            ran = subprocess.run(
                [sys.executable, "-m", "tallymark.pipeline.training", str(scratch)],
                env=environment,
                capture_output=True,
                stdin=subprocess.DEVNULL,
                text=True,
                timeout=_WITHIN_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise Problem(f"Spark took longer than {_WITHIN_S:g} s") from None
        if ran.returncode != 0 or not scratch.exists():
            said = ran.stderr.strip().splitlines() or ["no archive was written"]
            raise Problem(said[-1][:300])
        scratch.replace(path)
        others = sorted(cache.glob("spark-classes-*.jsa"), key=lambda each: each.stat().st_mtime)
        for old in others[:-_KEPT]:
            old.unlink(missing_ok=True)

    return ClassArchive("Spark", archive_path(cache, "spark-classes", java, jars), jars, train)
