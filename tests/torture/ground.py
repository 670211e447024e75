"""The cluster that a torture from the command line runs on."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tallymark.local.cluster import LocalCluster


@contextmanager
def open_cluster(home: Path | None = None) -> Iterator[LocalCluster]:
    """The named one, or the warm one of the tests (tests/conftest.py), or one that is wiped at the end."""
    major = int(os.environ.get("TALLYMARK_TEST_POSTGRES", "18"))
    warm = os.environ.get("TALLYMARK_TEST_HOME")
    kept = home or (Path(warm) / f"postgres-{major}" if warm else None)
    folder = kept or Path(tempfile.mkdtemp(prefix="tallymark-torture-home-"))
    cluster = LocalCluster(folder, brokers=3, postgres=major, brief=True)
    cluster.up()
    try:
        yield cluster
    finally:
        if kept is None:
            cluster.down(wipe=True)
            shutil.rmtree(folder, ignore_errors=True)
