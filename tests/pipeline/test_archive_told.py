"""What `tallymark pipeline status` and /metrics tell of an archive."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from tallymark.cli.main import main
from tallymark.observe.metrics import Metrics
from tallymark.pipeline.archivegauges import ArchiveGauges
from tallymark.pipeline.archivestatus import look
from tests.conftest import MakeTopic
from tests.pipeline.archiving import Ground
from tests.waiting import wait_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HOUR_S = 3600


@pytest.fixture
def ground(make_topic: MakeTopic, bootstrap_servers: str, tmp_path: Path) -> Ground:
    return Ground(bootstrap_servers, tmp_path / "archive", [make_topic(3, retention_ms=str(HOUR_S * 1000))])


def test_the_archive_in_status_and_in_metrics(
    spark: SparkSession, ground: Ground, database: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Up to where each partition is archived, and how long retention leaves what is not."""
    main(["init", "--role", "consumer", "--database", database])
    gauges = ArchiveGauges(Metrics(), ground.folder)
    ground.send(30)
    for each in ground.archive(spark):
        gauges.note(each)
    capsys.readouterr()

    def status(*more: str) -> tuple[int, Any]:
        where = ("--database", database, "--bootstrap-servers", ground.servers, "--json")
        code = main(["pipeline", "status", *where, *more])
        return code, json.loads(capsys.readouterr().out)

    code, without = status()
    assert (code, without) == (0, {"runs": [], "archive": None, "archive_troubles": []})
    code, said = status("--archive", str(ground.folder))
    upto = {(each["partition"], each["archived_upto"]) for each in said["archive"]["partitions"]}
    assert code == 0
    assert upto == {(place[1], extent.next) for place, extent in ground.manifests.load().extents.items()}
    assert (said["archive"]["rows"], said["archive"]["behind"], said["archive"]["left_ms"]) == (30, 0, None)

    with gauges.served(0, lambda: look(ground.manifests, ground.client), every_s=0.2) as server:

        def told(name: str) -> float | None:
            for line in httpx.get(f"http://{server.address}/metrics", timeout=30).text.splitlines():
                if line.startswith(f'tallymark_archive_{name}{{archive="{ground.folder}"}} '):
                    return float(line.rpartition(" ")[2])
            return None

        wait_for(lambda: told("lag_messages") == 0, what="it was looked at")
        assert (told("messages_total"), told("retention_left_seconds")) == (30, None)
        assert (told("batch_seconds_count"), told("partitions_in_trouble")) == (1, 0)
        ground.send(30, start=30)
        wait_for(lambda: (told("lag_messages") or 0) >= 30, what="lag is seen while no batch runs")
        left = told("retention_left_seconds")
        assert left is not None
        assert 0 < left <= HOUR_S
        ground.archive(spark)
        wait_for(lambda: told("lag_messages") == 0, what="it has caught up")
        assert told("retention_left_seconds") is None

    code, said = status("--archive", str(ground.folder / "nowhere"))
    assert (code, said["archive"]) == (1, None)
    assert "nowhere" in said["archive_troubles"][0]
