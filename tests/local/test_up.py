"""`tallymark local up` against everything that a crash, a reboot, another program or a user can leave behind.

One broker is enough for all of it, and three times as quick.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
import pytest

from tallymark.broker.kafka import AdminClient, NewTopic
from tallymark.errors import EXIT_PROBLEM, EXIT_USAGE, Problem, UsageError
from tallymark.local.cluster import LocalCluster
from tallymark.local.process import State
from tests.children import start_child
from tests.waiting import wait_for

UP = ["-m", "tallymark", "local", "up", "--brokers", "1", "--json", "--home"]
POSTGRES_ONLY = (
    "import sys; from tallymark.local.cluster import LocalCluster as L; L(sys.argv[1], brokers=0).up()"
)
UP_POSTGRES = ["-c", POSTGRES_ONLY]
# The two servers are started side by side: moments of one would be passed or missed by chance when the other
# is killed. So PostgreSQL's are tried alone.
MOMENTS = ["local.recorded", "local.broker_formatted", "local.broker_spawned", "local.before_probe"]
POSTGRES_MOMENTS = ["local.postgres_initialised", "local.postgres_spawned"]


@pytest.fixture
def home() -> Iterator[Path]:
    # Not pytest's tmp_path: those folders are kept, and a cluster's data is large.
    folder = Path(tempfile.mkdtemp(prefix="tallymark-up-"))
    yield folder
    LocalCluster(folder).down(wipe=True)
    shutil.rmtree(folder)


def processes_of(home: Path) -> list[list[str]]:
    """Whatever runs out of this home, looked up without the code under test."""
    found = []
    for process in psutil.process_iter():
        try:
            command = process.cmdline()
        except psutil.Error:
            continue
        if process.pid != os.getpid() and any(str(home) in word for word in command):
            found.append(command)
    return found


def tallymark(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tallymark", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def up_ends(home: Path, crash_point: str | None = None, command: Sequence[str] = UP) -> tuple[int, str]:
    with start_child([*command, str(home)], crash_point=crash_point) as child:
        return child.wait(120), child.output


@pytest.mark.parametrize(
    ("command", "moments"),
    [(UP, MOMENTS), pytest.param(UP_POSTGRES, POSTGRES_MOMENTS, marks=pytest.mark.full)],
)
def test_killed_at_each_moment_in_turn_the_next_up_goes_on(
    home: Path, command: list[str], moments: list[str]
) -> None:
    """Each `up` starts from what the one before it left when it was killed, and gets further."""
    for moment in moments:
        code, output = up_ends(home, moment, command)
        assert (code, f"crash point {moment}" in output) == (-signal.SIGKILL, True), output
    code, output = up_ends(home, None, command)
    assert code == 0, output
    cluster = LocalCluster(home)
    assert cluster.status().healthy
    running = processes_of(home)
    assert len([line for line in running if "kafka.Kafka" in line]) == len(cluster.brokers)
    assert len([line for line in running if "-D" in line]) == 1, "a second PostgreSQL"
    assert tallymark("local", "down", "--home", str(home)).returncode == 0
    assert processes_of(home) == []


@pytest.mark.full
@pytest.mark.parametrize("moment", MOMENTS + POSTGRES_MOMENTS)
def test_killed_once_in_a_new_home_the_next_up_succeeds(home: Path, moment: str) -> None:
    assert up_ends(home, moment)[0] == -signal.SIGKILL
    code, output = up_ends(home)
    assert code == 0, output


def test_interrupted_it_leaves_nothing_running(home: Path) -> None:
    with start_child([*UP, str(home)]) as child:
        child.wait_output("waiting for the brokers")
        child.terminate(signal.SIGINT)
        child.terminate(signal.SIGINT)  # of the impatient
        assert child.wait() == 130, child.output
        assert "Traceback" not in child.output
    assert processes_of(home) == []


@pytest.mark.full
def test_a_home_lives_through_repairs(home: Path) -> None:
    """Two at once; then a stale pid file, a lost port and a half-formatted directory, with the data kept."""
    with start_child([*UP, str(home)]) as one, start_child([*UP, str(home)]) as two:
        assert (one.wait(120), two.wait(120)) == (0, 0), one.output + two.output
    cluster = LocalCluster(home)
    status = tallymark("local", "status", "--json", "--home", str(home))
    assert status.returncode == 0, status.stderr
    told = json.loads(status.stdout)
    assert [(p["name"], p["kind"], p["state"]) for p in told["processes"]] == [
        ("broker-1", "broker", "running"),
        ("postgres", "postgres", "running"),
    ]
    assert told["under_replicated"] == 0
    assert {"pid", "port", "rss_bytes", "uptime_s"} <= told["processes"][0].keys()

    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
    admin.create_topics([NewTopic("kept", 1, 1)])["kept"].result(30)
    cluster.create_database("kept")

    # The machine goes down hard. When it is back, other programs have our pids and our ports.
    cluster.broker(1).kill()
    cluster.postgres.kill()
    assert tallymark("local", "status", "--home", str(home)).returncode == EXIT_PROBLEM
    me = psutil.Process()
    for folder in ("broker-1", "postgres"):
        record = {"name": folder, "pid": me.pid, "create_time": me.create_time()}
        (home / folder / "process.json").write_text(json.dumps(record))
    lock = home / "postgres" / "data" / "postmaster.pid"
    lock.write_text(lock.read_text().replace(lock.read_text().split()[0], str(me.pid), 1))
    (home / "broker-1" / "data.new-left").mkdir()
    before = json.loads((home / "cluster.json").read_text())
    with socket.socket() as client, socket.socket() as controller, socket.socket() as database:
        for other, port in (
            (client, before["brokers"][0]["client"]),
            (controller, before["brokers"][0]["controller"]),
            (database, before["postgres_port"]),
        ):
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            other.bind(("127.0.0.1", port))
            other.listen()
        code, output = up_ends(home)
        assert code == 0, output
        assert output.count("is taken by another program") == 3
    moved = LocalCluster(home)
    assert moved.status().healthy
    admin = AdminClient({"bootstrap.servers": moved.bootstrap_servers, "log_level": 0})
    assert "kept" in admin.list_topics(timeout=30).topics
    assert not moved.create_database("kept"), "the database was lost"

    lines = tallymark("local", "env", "--home", str(home)).stdout.splitlines()
    assert f"export TALLYMARK_BOOTSTRAP_SERVERS={moved.bootstrap_servers}" in lines
    assert any(line.startswith("export TALLYMARK_DATABASE=postgresql://") for line in lines)
    masked = tallymark("local", "env", "--json", "--home", str(home)).stdout
    assert (home / "postgres" / "password").read_text().strip() not in masked

    for options, part in ((["--brokers", "3"], "1 brokers"), (["--postgres", "16"], "PostgreSQL 18")):
        refused = tallymark("local", "up", "--home", str(home), *options)
        assert (refused.returncode, part in refused.stderr) == (EXIT_USAGE, True), refused.stderr

    wiped = tallymark("local", "down", "--wipe", "--json", "--home", str(home))
    assert json.loads(wiped.stdout)["stopped"] == ["broker-1", "postgres"]
    assert processes_of(home) == []
    assert not list(home.glob("broker-*"))


@pytest.mark.parametrize("there", [True, False])
def test_where_no_cluster_was_made_wiping_says_so_and_touches_nothing(tmp_path: Path, there: bool) -> None:
    home = tmp_path / "other"
    if there:
        (home / "postgres").mkdir(parents=True)
        (home / "postgres" / "somebody's").touch()
    ran = tallymark("local", "down", "--wipe", "--home", str(home))
    assert (ran.returncode, ran.stdout.split(":")[0]) == (0, f"there is no cluster in {home}")
    told = json.loads(tallymark("local", "down", "--wipe", "--json", "--home", str(home)).stdout)
    assert told == {"home": str(home), "stopped": [], "wiped": False}
    assert [each.name for each in home.rglob("*")] == (["postgres", "somebody's"] if there else [])


def test_with_a_damaged_record_wiping_is_the_way_out_that_it_is_said_to_be(home: Path) -> None:
    """What runs is stopped first. The process stands for PostgreSQL: it is known by its folder."""
    (home / "postgres" / "data").mkdir(parents=True)
    (home / "cluster.json").write_text("{")
    stays = "import signal; signal.signal(signal.SIGINT, signal.SIG_DFL); signal.pause()"
    command = [sys.executable, "-c", stays, "-D", str(home.resolve() / "postgres" / "data")]
    # As a server's, its starter has gone.
    subprocess.run(["sh", "-c", f"{shlex.join(command)} >/dev/null 2>&1 &"], check=True)
    wait_for(lambda: processes_of(home), what="it runs")
    assert "--wipe" in tallymark("local", "down", "--home", str(home)).stderr
    assert processes_of(home)
    told = json.loads(tallymark("local", "down", "--wipe", "--json", "--home", str(home)).stdout)
    assert (told["stopped"], told["wiped"]) == (["postgres"], True)
    assert processes_of(home) == []
    assert not (home / "cluster.json").exists()
    assert not (home / "postgres").exists()


def test_postgres_16_and_data_of_another_major_version(home: Path) -> None:
    cluster = LocalCluster(home, brokers=0, postgres=16)
    cluster.up()
    assert cluster.status().healthy
    cluster.down()
    with pytest.raises(UsageError, match="PostgreSQL 16"):
        LocalCluster(home, postgres=18).up()
    (cluster.postgres.data / "PG_VERSION").write_text("15\n")
    with pytest.raises(Problem, match="holds data of PostgreSQL 15, and 16 was asked for"):
        cluster.up()
    assert cluster.postgres.state() is State.STOPPED
    (cluster.postgres.data / "PG_VERSION").write_text("16\n")
    (home / "postgres" / "password").write_text("another\n")
    with pytest.raises(Problem, match="another password"):
        cluster.up()
    assert processes_of(home) == [], "a failed up left something running"


def test_a_broker_that_cannot_start_is_told_and_nothing_stays(home: Path) -> None:
    cluster = LocalCluster(home, brokers=1, postgres=0, broker_settings={"num.io.threads": "none"})
    with pytest.raises(Problem, match=r"num.io.threads"):
        cluster.up()
    assert processes_of(home) == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--postgres", "12"], "there is no embedded PostgreSQL 12"),
        (["--brokers", "0"], "--brokers"),
    ],
)
def test_wrong_options(tmp_path: Path, options: list[str], said: str) -> None:
    refused = tallymark("local", "up", "--home", str(tmp_path / "home"), *options)
    assert (refused.returncode, said in refused.stderr) == (EXIT_USAGE, True), refused.stderr
    assert "Traceback" not in refused.stderr
    assert not (tmp_path / "home").exists()
