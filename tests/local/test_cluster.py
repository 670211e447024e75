"""The three-broker cluster that all tests share: what it promises, and how it is taken apart and put back."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import psutil
import psycopg
import pytest

from tallymark.broker.kafka import AdminClient, ConfigResource, Consumer, Producer, ResourceType
from tallymark.broker.probe import look
from tallymark.errors import UsageError
from tallymark.local.cluster import LocalCluster
from tallymark.local.process import State
from tests.conftest import MakeTopic
from tests.waiting import wait_for


def send(cluster: LocalCluster, topic: str, value: bytes) -> None:
    producer = Producer(
        {"bootstrap.servers": cluster.bootstrap_servers, "enable.idempotence": True, "log_level": 0}
    )
    producer.produce(topic, value=value, partition=0)
    assert producer.flush(30) == 0


def values(cluster: LocalCluster, topic: str, count: int) -> list[bytes]:
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "group.id": topic,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
    consumer.subscribe([topic])
    try:
        messages = consumer.consume(count, 30)
        return [message.value() or b"" for message in messages if message.error() is None]
    finally:
        consumer.close()


def whole(cluster: LocalCluster) -> bool:
    return cluster.status().healthy


def test_status_lists_all_and_they_are_small(cluster: LocalCluster) -> None:
    status = wait_for(lambda: (seen := cluster.status()).healthy and seen, what="a healthy cluster")
    assert status
    assert [process.name for process in status.processes] == ["broker-1", "broker-2", "broker-3", "postgres"]
    assert all(process.state is State.RUNNING and process.pid for process in status.processes)
    assert (status.brokers_seen, status.under_replicated) == (3, 0)
    brokers = [process.rss_bytes for process in status.processes if process.kind == "broker"]
    assert sum(brokers) < 1.5e9
    assert status.to_dict()["healthy"] is True


def test_brokers_run_with_the_safe_settings(cluster: LocalCluster, admin: AdminClient) -> None:
    resource = ConfigResource(ResourceType.BROKER, "1")
    found = admin.describe_configs([resource])[resource].result(30)
    wanted = {
        "default.replication.factor": "3",
        "min.insync.replicas": "2",
        "unclean.leader.election.enable": "false",
        "auto.create.topics.enable": "false",
        "transaction.state.log.min.isr": "2",
    }
    assert {name: found[name].value for name in wanted} == wanted
    topics = admin.list_topics(timeout=30).topics
    for internal in ("__consumer_offsets", "__transaction_state"):
        assert all(len(partition.replicas) == 3 for partition in topics[internal].partitions.values())
    resource = ConfigResource(ResourceType.TOPIC, "__consumer_offsets")
    assert admin.describe_configs([resource])[resource].result(30)["min.insync.replicas"].value == "2"


def test_everything_listens_on_loopback_only(cluster: LocalCluster) -> None:
    for server in cluster.processes:
        process = server.find()
        assert process is not None
        listening = [c.laddr.ip for c in process.net_connections("tcp") if c.status == psutil.CONN_LISTEN]
        assert listening, server.name
        assert {address.removeprefix("::ffff:") for address in listening} == {"127.0.0.1"}


def test_postgres_is_durable_and_trusts_nobody(cluster: LocalCluster, database: str) -> None:
    wanted = {
        "fsync": "on",
        "synchronous_commit": "on",
        "full_page_writes": "on",
        "track_commit_timestamp": "on",
        "max_prepared_transactions": "20",
        "max_connections": "200",
        "listen_addresses": "127.0.0.1",
        "unix_socket_directories": "",
        "data_checksums": "on",
    }
    with psycopg.connect(database) as connection:
        rows = connection.execute(
            "select name, setting from pg_settings where name = any(%s)", [list(wanted)]
        )
        assert dict(rows.fetchall()) == wanted
        methods = connection.execute("select distinct auth_method from pg_hba_file_rules").fetchall()
        assert methods == [("scram-sha-256",)]
        assert connection.info.server_version // 10_000 == cluster.postgres.major
    password = cluster.home.postgres / "password"
    assert stat.S_IMODE(password.stat().st_mode) == 0o600
    assert password.read_text().strip() not in cluster.postgres.log()
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(database.replace(password.read_text().strip(), "guess"))
    with pytest.raises(psycopg.OperationalError, match="no password supplied"):
        psycopg.connect(database.replace(":" + password.read_text().strip(), ""))


def test_a_killed_broker_is_seen_and_up_brings_it_back(cluster: LocalCluster, make_topic: MakeTopic) -> None:
    topic = make_topic(1)
    send(cluster, topic, b"before")
    victim = cluster.broker(2)
    pid = victim.pid
    assert pid is not None
    os.kill(pid, 9)  # as someone in a shell would
    wait_for(lambda: victim.state() is State.CRASHED)
    status = cluster.status()
    assert not status.healthy
    assert [p.name for p in status.processes if p.state is State.CRASHED] == ["broker-2"]
    assert status.brokers_seen == 2
    send(cluster, topic, b"between")  # two of three are enough
    LocalCluster(cluster.home.path).up()  # by another handle, as the command line would
    assert victim.is_alive()
    assert victim.pid != pid
    wait_for(lambda: whole(cluster), what="all replicas in sync")
    assert values(cluster, topic, 2) == [b"before", b"between"]


@pytest.mark.full
def test_a_wiped_disk_is_filled_again_from_the_others(cluster: LocalCluster, make_topic: MakeTopic) -> None:
    topic = make_topic(1)
    send(cluster, topic, b"kept")
    broker = cluster.broker(3)
    with pytest.raises(Exception, match="is running"):
        broker.wipe_disk()
    broker.stop()
    assert broker.state() is State.STOPPED
    broker.wipe_disk()
    broker.start()
    wait_for(lambda: whole(cluster), what="all replicas in sync")
    assert any(path.name == f"{topic}-0" for path in broker.data.iterdir())
    assert values(cluster, topic, 1) == [b"kept"]


@pytest.mark.full
def test_reconfigure_restarts_with_other_settings_and_back(cluster: LocalCluster) -> None:
    broker = cluster.broker(1)
    resource = ConfigResource(ResourceType.BROKER, "1")

    def limit() -> object:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
        return admin.describe_configs([resource])[resource].result(30)["message.max.bytes"].value

    try:
        broker.reconfigure({"message.max.bytes": "20000"})
        assert limit() == "20000"
    finally:
        broker.reconfigure({})  # also when the test fails: a warm cluster keeps what it was left with
    assert limit() == "1048588"  # Kafka's default, not what was found: an earlier run may have left its own
    assert "started" in broker.log()
    wait_for(lambda: whole(cluster), what="all replicas in sync")


def test_a_paused_broker_is_seen_and_up_resumes_it(cluster: LocalCluster) -> None:
    broker = cluster.broker(1)
    broker.pause()
    wait_for(lambda: broker.state() is State.PAUSED)
    cluster.up()
    assert broker.state() is State.RUNNING


def test_postgres_killed_under_load_keeps_what_it_acknowledged(cluster: LocalCluster, database: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("create table kept (n int)")
        connection.execute("insert into kept values (1)")
        cluster.postgres.kill()
        with pytest.raises(psycopg.OperationalError):
            connection.execute("select 1")
    assert cluster.postgres.state() is State.CRASHED
    cluster.postgres.start()
    with psycopg.connect(database) as connection:
        assert connection.execute("select n from kept").fetchall() == [(1,)]


def test_postgres_pauses_whole(cluster: LocalCluster, database: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("select 1")
        cluster.postgres.pause()
        process = cluster.postgres.find()
        assert process is not None
        family = [process, *process.children(recursive=True)]
        # One that was about to end has ended, and its parent stands still.
        wait_for(
            lambda: {member.status() for member in family} - {psutil.STATUS_ZOMBIE} == {psutil.STATUS_STOPPED}
        )
        cluster.postgres.resume()
        assert connection.execute("select 2").fetchone() == (2,)


def test_databases_are_made_once(cluster: LocalCluster) -> None:
    assert cluster.create_database("made-once")
    assert not cluster.create_database("made-once")
    cluster.drop_database("made-once")


def test_names_that_are_not_there(cluster: LocalCluster, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="the cluster has 3"):
        cluster.broker(4)
    with pytest.raises(UsageError, match="no process broker-9"):
        cluster.process("broker-9")
    assert cluster.process("postgres") is cluster.postgres
    with pytest.raises(Exception, match="there is no cluster"):
        _ = LocalCluster(tmp_path).bootstrap_servers
    assert look("127.0.0.1:1", timeout_s=0.2) is None


def test_a_home_reached_through_a_link_is_the_same_home(cluster: LocalCluster, tmp_path: Path) -> None:
    """Its servers must not look crashed, or a second `up` would start them twice."""
    link = tmp_path / "link"
    link.symlink_to(cluster.home.path)
    linked = LocalCluster(link)
    assert [server.state() for server in linked.processes] == [State.RUNNING] * 4
    assert [server.find() for server in linked.processes] == [server.find() for server in cluster.processes]
