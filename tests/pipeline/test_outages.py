"""PostgreSQL and brokers die under the archive, a snapshot and a replay. (Under ingest: tests/promises.)"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tallymark.broker.kafka import AdminClient
from tallymark.errors import EXIT_UNREACHABLE
from tallymark.lifecycle import Role
from tallymark.local.cluster import LocalCluster
from tallymark.store.postgres.migrations import migrate
from tests.children import Child, start_child
from tests.conftest import MakeTopic
from tests.inbox.ground import Ground
from tests.leaders import leader_of
from tests.pipeline.archiving import Ground as Archiving
from tests.pipeline.test_snapshot import add, ids_in

PARTITIONS = 6

pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]


def test_a_leader_dies_under_the_archive(
    make_topic: MakeTopic, bootstrap_servers: str, tmp_path: Path, cluster: LocalCluster, admin: AdminClient
) -> None:
    ground = Archiving(bootstrap_servers, tmp_path / "archive", [make_topic()])
    ground.send(90, aborted=2)
    with ground.child(
        "--available-now", "--max-offsets", "60", crash_point="archive.planned:2:stop"
    ) as child:
        child.wait_stopped(120)
        broker = cluster.broker(leader_of(admin, ground.topics[0], 0))
        broker.kill()
        try:
            child.cont()
            assert child.wait(150) == 0, child.output
        finally:
            broker.start()
    assert ground.rows() == ground.log()
    assert not ground.strays()


@pytest.mark.parametrize("moment", ["archive.opened:1:stop", "archive.written:2:stop"])
def test_the_archive_waits_for_a_kafka_that_is_away(
    make_topic: MakeTopic, bootstrap_servers: str, tmp_path: Path, cluster: LocalCluster, moment: str
) -> None:
    """All of it, before the first look and before a batch is committed. Its time-outs are a Kafka that is away, too."""
    ground = Archiving(bootstrap_servers, tmp_path / "archive", [make_topic()])
    ground.send(90)
    with ground.child("--available-now", "--max-offsets", "60", crash_point=moment) as child:
        child.wait_stopped(120)
        for broker in cluster.brokers:
            broker.kill()
        try:
            child.cont()
            child.wait_output("tries again", within=150)
        finally:
            cluster.up()
        assert child.wait(240) == 0, child.output
    assert ground.rows() == ground.log()
    assert not ground.strays()


def test_postgresql_dies_under_a_snapshot(database: str, tmp_path: Path, cluster: LocalCluster) -> None:
    """The point is gone with the session that held it: nothing stays, and the next one is whole."""
    migrate(database, role=Role.BOTH)
    sent = sorted(add(database, 40))
    folder = tmp_path / "snapshot"
    words = ["-m", "tallymark", "pipeline", "snapshot", str(folder), "--database", database]
    words += ["--master", "local[2]", "--json"]
    with start_child(words, crash_point="snapshot.table:1:stop") as child:
        child.wait_stopped(120)
        cluster.postgres.kill()
        cluster.postgres.start()
        child.cont()
        assert child.wait(240) == EXIT_UNREACHABLE, child.output
        assert "the point that was read is gone" in json.loads(child.output.splitlines()[-1])["error"]
    assert not list(tmp_path.iterdir())
    with start_child(words) as child:
        assert child.wait(240) == 0, child.output
    assert ids_in(folder, "outbox") == sent


@pytest.mark.parametrize("victim", ["postgresql", "broker"])
def test_a_replay_goes_on_or_is_run_again(
    inbox_ground: Ground, make_topic: MakeTopic, cluster: LocalCluster, admin: AdminClient, victim: str
) -> None:
    """After its first chunk. Whatever it comes to, run again it keeps each message once."""
    ground = inbox_ground
    ground.topic = make_topic(PARTITIONS)
    sent = ground.send(5000)
    with replay(ground, crash_point="replay.chunk:1:stop") as child:
        child.wait_stopped(120)
        server = (
            cluster.postgres
            if victim == "postgresql"
            else cluster.broker(leader_of(admin, ground.topic, PARTITIONS - 1))
        )
        server.kill()
        try:
            if victim == "postgresql":
                server.start()
            child.cont()
            code = child.wait(150)
        finally:
            server.start()
        said = json.loads(child.output.splitlines()[-1])
        assert code == 0 or said["error"], child.output
        assert "Traceback" not in child.output
    with replay(ground) as child:
        assert child.wait(240) == 0, child.output
        done = json.loads(child.output.splitlines()[-1])
    assert done["read"] == 5000
    kept = ground.query("select id::text from tallymark.inbox where consumer = %s", ground.name)
    assert sorted(row[0] for row in kept) == sorted(sent)
    assert ground.value("select count(*) from tallymark.queue") == 5000
    ground.apply_all(5000)
    found = ground.compare()
    assert found.is_clean, found


def replay(ground: Ground, *, crash_point: str | None = None) -> Child:
    return start_child(
        [
            *("-m", "tallymark", "pipeline", "replay", "--consumer", ground.name, "--topic", ground.topic),
            *("--since", "-1h", "--database", ground.url, "--bootstrap-servers", ground.servers),
            *("--master", "local[2]", "--json"),
        ],
        crash_point=crash_point,
    )
