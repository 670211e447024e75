"""B5: two of three brokers run out of disk. Sends are refused, kept in the outbox, and sent when there is room again."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tallymark.broker.kafka import AdminClient
from tallymark.broker.topics import TopicSpec, create
from tallymark.lifecycle import Role
from tallymark.local.cluster import LocalCluster
from tallymark.store.postgres.migrations import migrate
from tests.relay.ground import Ground
from tests.waiting import wait_for

SMALL = (2, 3)
DISK = "96m"


@pytest.fixture
def small_disks() -> Iterator[LocalCluster]:
    """A cluster of which two brokers have a disk of their own, and a small one."""
    home = Path(tempfile.mkdtemp(prefix="tallymark-test-full-"))
    home.chmod(0o755)
    folders = [home / f"broker-{number}" for number in SMALL]
    for folder in folders:
        folder.mkdir()
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={DISK},mode=755", "tmpfs", str(folder)], check=True
        )
    cluster = LocalCluster(home, brokers=3)
    try:
        cluster.up()
        yield cluster
    finally:
        cluster.down()
        for folder in folders:
            subprocess.run(["umount", str(folder)], check=True)
        shutil.rmtree(home, ignore_errors=True)


def fill(folder: Path) -> Path:
    """Take all the room that is left."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(64 * 1024))
        except OSError as full:
            if full.errno != errno.ENOSPC:
                raise
    return filler


@pytest.mark.full
@pytest.mark.timeout(400)
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
def test_full_disks_refuse_and_nothing_is_lost(small_disks: LocalCluster) -> None:
    cluster = small_disks
    create(
        AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0}),
        TopicSpec("transfers", 3),
    )
    url = cluster.database_url("bank")
    made = migrate(url, role=Role.PRODUCER, partitions_ahead=2)
    ground = Ground(url, cluster.bootstrap_servers, made.outbox_id or "", ["transfers"])
    ground.add(200)
    with ground.relay() as relay:
        ground.wait_sent()
        fillers = [fill(cluster.broker(number).folder) for number in SMALL]
        ground.add(3_000, size=2_000)
        wait_for(
            lambda: not any(cluster.broker(number).is_alive() for number in SMALL),
            within=120,
            what="brokers without a disk stop",
        )
        ground.add(200)
        assert relay.is_alive(), relay.output
        assert ground.value("select count(*) from tallymark.parked") == 0
        for filler in fillers:
            filler.unlink()
        cluster.up()
        ground.wait_sent(within=120)
        relay.terminate()
        assert relay.wait(60) == 0, relay.output
    found = ground.compare()
    assert found.expected == 3_400
    assert found.is_clean, found
