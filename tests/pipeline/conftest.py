"""One Spark session for all tests of the pipeline: starting it takes longer than most of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tallymark.cli.pipelinerun import plan_of
from tallymark.pipeline.session import started
from tests.inbox.conftest import inbox_ground, make_inbox_ground

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["inbox_ground", "make_inbox_ground"]


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    plan = plan_of("tests", "local[2]", ["spark.sql.shuffle.partitions=2"], report=False)
    with started(plan) as session:
        yield session
