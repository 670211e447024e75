"""The ground that all tests stand on: one real cluster per run, a fresh database and fresh topics per test.

TALLYMARK_TEST_HOME=DIR      keep the cluster there, running, for the next run: one test file takes seconds
TALLYMARK_TEST_POSTGRES=16   the PostgreSQL to test against (18 unless told)
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tallymark.broker.kafka import AdminClient, KafkaError, KafkaException, NewTopic
from tallymark.local.cluster import LocalCluster
from tests.leaders import wait_for_leaders
from tests.secured import secured
from tests.waiting import wait_for

__all__ = ["secured"]

MakeTopic = Callable[..., str]

# Side by side, whoever gets a long file last decides when all is over: folders of long ones go first.
_LONG = ("promises", "pipeline", "tally", "local", "torture", "demo", "console", "docs", "relay", "inbox")

# After the machine stood still for seconds all brokers may be fenced: there is none to place a replica on.
_NOT_NOW = (KafkaError.INVALID_REPLICATION_FACTOR, KafkaError._TIMED_OUT, KafkaError.REQUEST_TIMED_OUT)

# A run in the background starts with SIGINT ignored, and its children inherit that: tests of Ctrl-C need it heard.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# A machine that stands still for a moment makes an example slow, not wrong.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

# Runs side by side are given a narrow window: what verbs print is looked at as it is without one.
os.environ.pop("COLUMNS", None)

# Spark's drivers live for seconds here: what the second compiler would win is never won back. Half the CPU of a start.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    rank = {name: at for at, name in enumerate(_LONG)}
    items.sort(key=lambda item: rank.get(item.path.parent.name, len(_LONG)))


@pytest.fixture(scope="session")
def cluster() -> Iterator[LocalCluster]:
    """Three brokers and PostgreSQL. A test that stops one of them must start it again."""
    major = int(os.environ.get("TALLYMARK_TEST_POSTGRES", "18"))
    warm = os.environ.get("TALLYMARK_TEST_HOME")
    # Side by side, each of pytest's workers has a cluster of its own: tests kill what they share.
    name = "-".join(filter(None, (f"postgres-{major}", os.environ.get("PYTEST_XDIST_WORKER"))))
    home = Path(warm) / name if warm else Path(tempfile.mkdtemp(prefix="tallymark-test-"))
    cluster = LocalCluster(home, brokers=3, postgres=major, brief=True)
    cluster.up()
    try:
        yield cluster
    finally:
        if not warm:
            cluster.down(wipe=True)
            shutil.rmtree(home, ignore_errors=True)


@pytest.fixture(autouse=True)
def _cluster_left_whole(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test that leaves a broker or PostgreSQL down is at fault itself, not the next one."""
    yield
    if "cluster" in request.fixturenames:
        cluster: LocalCluster = request.getfixturevalue("cluster")
        down = [server.name for server in cluster.processes if server.state() != "running"]
        if down:
            cluster.up()
            pytest.fail(f"the test left {', '.join(down)} not running")


@pytest.fixture
def bootstrap_servers(cluster: LocalCluster) -> str:
    return cluster.bootstrap_servers


@pytest.fixture
def database(cluster: LocalCluster, request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of a database made for this test and dropped after it."""
    name = _unique(request, separator="_")
    yield cluster.database_url(name)
    cluster.drop_database(name)


@pytest.fixture
def make_database(cluster: LocalCluster, request: pytest.FixtureRequest) -> Iterator[Callable[[], str]]:
    """For tests that need several databases: each call gives the URL of a fresh one."""
    made: list[str] = []

    def make() -> str:
        made.append(_unique(request, separator="_"))
        return cluster.database_url(made[-1])

    yield make
    for name in made:
        cluster.drop_database(name)


@pytest.fixture(scope="session")
def admin(cluster: LocalCluster) -> AdminClient:
    return AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})


@pytest.fixture
def make_topic(admin: AdminClient, request: pytest.FixtureRequest) -> Iterator[MakeTopic]:
    """`make_topic(partitions=3, **settings)`: a fresh topic of RF 3 and min ISR 2; deleted after the test."""
    made: list[str] = []

    def make(partitions: int = 3, *, replication_factor: int = 3, **settings: str) -> str:
        name = _unique(request, separator="-")
        config = {
            "min.insync.replicas": "2",
            **{key.replace("_", "."): value for key, value in settings.items()},
        }
        made.append(name)
        wanted = NewTopic(name, partitions, replication_factor, config=config)
        wait_for(lambda: _made(admin, wanted), what=f"topic {name} is made")
        wait_for_leaders(admin, name, partitions)
        return name

    yield make
    if made:
        for future in admin.delete_topics(made).values():
            future.exception(30)  # a topic that the test deleted itself is gone, and that is fine


@pytest.fixture
def topic(make_topic: MakeTopic) -> str:
    """One fresh topic of three partitions."""
    return make_topic()


def _made(admin: AdminClient, topic: NewTopic) -> bool:
    try:
        admin.create_topics([topic])[topic.topic].result(30)
    except KafkaException as error:
        code = error.args[0].code()
        if code not in (KafkaError.TOPIC_ALREADY_EXISTS, *_NOT_NOW):
            raise
        return bool(code == KafkaError.TOPIC_ALREADY_EXISTS)
    return True


def _unique(request: pytest.FixtureRequest, *, separator: str) -> str:
    name = re.sub(r"[^a-z0-9]+", separator, request.node.name.lower()).strip(separator)
    return f"{name[:40]}{separator}{uuid.uuid4().hex[:8]}"
