"""A real standalone Spark, a master and two workers, for the tests of a module."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tallymark.local.cluster import LocalCluster


@pytest.fixture(scope="module")
def standalone() -> Iterator[LocalCluster]:
    home = Path(tempfile.mkdtemp(prefix="tallymark-spark-"))
    made = LocalCluster(home, brokers=0, postgres=0, spark=True)
    made.up()
    yield made
    made.down(wipe=True)
    shutil.rmtree(home)
