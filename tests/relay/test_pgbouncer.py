"""Relay and writers through PgBouncer in transaction mode, where statements of one session share no connection."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from tallymark.store.postgres.connection import connect
from tallymark.store.postgres.retention import Retention
from tests.relay.conftest import MakeGround
from tests.relay.ground import Ground
from tests.waiting import wait_for

PGBOUNCER = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")

pytestmark = pytest.mark.skipif(PGBOUNCER is None, reason="pgbouncer is not installed")


@pytest.fixture
def ground(make_ground: MakeGround) -> Ground:
    return make_ground(lanes=2)


@pytest.fixture
def pooled(ground: Ground) -> Iterator[str]:
    """The outbox's database behind a pooler with few connections."""
    parts = conninfo_to_dict(ground.url)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    folder = Path(tempfile.mkdtemp(prefix="pgbouncer-"))
    file = folder / "pgbouncer.ini"
    server = " ".join(f"{name}={parts[name]}" for name in ("host", "port", "dbname", "user", "password"))
    file.write_text(
        f"[databases]\n{parts['dbname']} = {server}\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\n"
        "auth_type = any\npool_mode = transaction\ndefault_pool_size = 4\nunix_socket_dir =\n"
        "ignore_startup_parameters = extra_float_digits\n"
    )
    user = "nobody" if os.geteuid() == 0 else None  # it refuses to run as root
    if user:
        folder.chmod(0o755)
        os.chown(file, pwd.getpwnam(user).pw_uid, -1)
    assert PGBOUNCER is not None
    process = subprocess.Popen(
        [PGBOUNCER, str(file)], user=user, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    url = f"postgresql://{parts['user']}@127.0.0.1:{port}/{parts['dbname']}"
    try:
        wait_for(lambda: _answers(url), what="pgbouncer answers")
        yield url
    finally:
        process.kill()
        process.wait(10)
        shutil.rmtree(folder, ignore_errors=True)


def _answers(url: str) -> bool:
    try:
        psycopg.connect(url, connect_timeout=2).close()
    except psycopg.OperationalError:
        return False
    return True


def test_writers_and_relay_through_a_pooler_survive_a_crash(ground: Ground, pooled: str) -> None:
    through = Ground(pooled, ground.servers, ground.outbox_id, ground.topics)
    through.add(200)
    with through.relay(crash_point="relay.after_kafka_commit:4") as relay:
        assert relay.wait() == -signal.SIGKILL, relay.output
    with through.relay() as relay:
        for _ in range(20):
            through.add(10)
        try:
            ground.wait_sent()
        except AssertionError as late:
            raise AssertionError(relay.output) from late
        relay.terminate()
        assert relay.wait() == 0, relay.output
    found = ground.compare()
    assert found.expected == 400
    assert found.is_clean, found


def test_nothing_of_ours_is_set_for_the_application_behind_it(ground: Ground, pooled: str) -> None:
    asked = "select name, setting from pg_settings where name = any(%s) order by 1"
    names = ["idle_in_transaction_session_timeout", "lock_timeout", "tcp_keepalives_count"]
    with psycopg.connect(pooled, prepare_threshold=None) as tx:
        before = tx.execute(asked, [names]).fetchall()
    Retention(pooled, keep=timedelta(days=7)).run_once()
    with psycopg.connect(pooled, prepare_threshold=None) as tx:
        assert tx.execute(asked, [names]).fetchall() == before
    with connect(ground.url, application="tests") as direct:
        assert direct.execute(asked, [names]).fetchall()[0] == (names[0], "60000")


def test_a_late_commit_through_a_pooler_is_not_passed(ground: Ground, pooled: str) -> None:
    with ground.relay(url=pooled), psycopg.connect(pooled, prepare_threshold=None) as late:
        ground.add(24)
        ground.wait_sent()
        ground.add_in(late, 24)
        ground.add(24)
        late.commit()
        ground.wait_sent()
    found = ground.compare()
    assert found.expected == 72
    assert found.is_clean, found


def test_nobody_waits_to_be_woken_through_a_pooler(ground: Ground, pooled: str) -> None:
    ground.query("update tallymark.outbox_identity set notify = true")
    with ground.relay(url=pooled, notify="true") as relay:
        assert relay.wait() == 2, relay.output
        assert "nobody can be woken through a pooler" in relay.output
    with ground.relay(notify="true") as relay:
        ground.add(5)
        ground.wait_sent()
