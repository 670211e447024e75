"""The ground of a demo: a cluster of its own, databases, topics, and the services on it, ready to be started."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tallymark.broker.reach import admin_client
from tallymark.broker.topics import TopicSpec, create
from tallymark.lab.bank import bank, books, naive_bank, naive_ledger
from tallymark.lab.kafkalook import GroupLook
from tallymark.lab.leaving import MARK, write_stop
from tallymark.lab.services import Crew, clean_environment
from tallymark.lifecycle import Role
from tallymark.local.cluster import LocalCluster
from tallymark.local.home import write_private
from tallymark.store.postgres.migrations import migrate

if TYPE_CHECKING:
    from tallymark.broker.kafka import AdminClient

PARTITIONS = 6
LANES = 2
LEASE_S = 2
DATABASES = ("bank", "ledger", "report", "naive_bank", "naive_ledger")
REPORT_SQL = Path(__file__).with_name("bank") / "report.sql"
# Spark beside three brokers and PostgreSQL on two cores: a JVM that starts quickly counts for more than a fast one.
SPARK = (
    *("--master", "local[2]", "--conf", "spark.sql.shuffle.partitions=2"),
    *("--conf", "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"),
)
_FOLDER_MODE = 0o755  # PostgreSQL does not run as root: its own user must get to its data


@dataclass(frozen=True, slots=True)
class Wish:
    """What was asked for."""

    messages: int
    seed: int
    calm: bool = False
    keep: bool = False


class Stage:
    """Opened and taken down by the demo; what it starts is listed in `crew` and `cluster`."""

    def __init__(self, home: Path, wish: Wish) -> None:
        self.wish = wish
        self.home = home
        self.cluster = LocalCluster(home, brokers=3, postgres=18, brief=True)
        self.config = home / "tallymark.toml"
        self.urls: dict[str, str] = {}
        # What a killed Spark leaves in temporary folders goes with the home.
        self._scratch = home / "tmp"
        marked = {"TALLYMARK_CONFIG": str(self.config), "TMPDIR": str(self._scratch), MARK: str(home)}
        self.crew = Crew(home / "services", clean_environment(marked))
        self._admin: AdminClient | None = None
        self._naive_group: GroupLook | None = None

    def open(self) -> None:
        """Make its home, and watch over its services from now on."""
        self.home.mkdir(mode=_FOLDER_MODE, parents=True, exist_ok=True)
        self.home.chmod(_FOLDER_MODE)
        self._scratch.mkdir(exist_ok=True)
        write_stop(self.home)
        self.crew.open()

    @property
    def servers(self) -> str:
        return self.cluster.bootstrap_servers

    @property
    def client(self) -> dict[str, str]:
        return {"bootstrap.servers": self.servers}

    @property
    def admin(self) -> AdminClient:
        if self._admin is None:
            self._admin = admin_client(self.client)
        return self._admin

    @property
    def naive_group(self) -> GroupLook:
        """The twin's consumers."""
        if self._naive_group is None:
            self._naive_group = GroupLook(self.client, naive_ledger.GROUP, naive_bank.TOPIC, PARTITIONS)
        return self._naive_group

    def up(self, report: Callable[[str], None]) -> str:
        """Real brokers and a real PostgreSQL."""
        status = self.cluster.up(report)
        megabytes = sum(process.rss_bytes or 0 for process in status.processes) / 1e6
        return f"{', '.join(process.name for process in status.processes)}: {megabytes:,.0f} MB"

    def furnish(self) -> str:
        """Databases, schemas, books, topics, and the settings file that anyone can use from outside."""
        self.urls = {name: self.cluster.database_url(name) for name in DATABASES}
        self._write_settings()
        migrate(self.urls["bank"], role=Role.PRODUCER, lanes=LANES)
        migrate(self.urls["ledger"], role=Role.CONSUMER)
        migrate(self.urls["report"], role=Role.CONSUMER)
        for name, url in self.urls.items():
            books.open_books(url, books.BANK if name.endswith("bank") else books.FOLLOWER)
        for topic in (bank.TOPIC, naive_bank.TOPIC):
            create(self.admin, TopicSpec(topic, partitions=PARTITIONS, replication_factor=3))
        self._hire()
        return f"{len(DATABASES)} databases, topics {bank.TOPIC} and {naive_bank.TOPIC}: 3 copies each, 2 in sync"

    def _write_settings(self) -> None:
        lines = ["[kafka]", f"bootstrap_servers = {json.dumps(self.servers)}"]
        for name, role in (("bank", "producer"), ("ledger", "consumer"), ("report", "consumer")):
            lines += [f"[databases.{name}]", f"url = {json.dumps(self.urls[name])}", f'role = "{role}"']
        # Short leases, small batches: the demo has no minutes to wait for the dead.
        lines += ["[relay]", f"lease_seconds = {LEASE_S}"]
        lines += ["[inbox]", f"lease_seconds = {LEASE_S}", 'session_timeout = "6s"', "batch_messages = 500"]
        write_private(self.config, "\n".join(lines) + "\n")

    def _hire(self) -> None:
        crew, seed = self.crew, str(self.wish.seed)
        # By the environment: arguments can be read by every user of the machine, and a URL holds a password.
        url = {name: {"DATABASE_URL": each} for name, each in self.urls.items()}
        crew.add("bank", "-m", bank.__name__, "--seed", seed, environment=url["bank"])
        naive = ("-m", naive_bank.__name__, self.servers, "--seed", seed)
        crew.add("naive-bank", *naive, environment=url["naive_bank"])
        for number in (1, 2):
            crew.add(f"relay-{number}", "-m", "tallymark", "relay", "run", "--database", "bank")
            inbox = f"{bank.__package__}.ledger:inbox"
            crew.add(f"ledger-{number}", "-m", "tallymark", "inbox", "run", inbox)
            follower = ("-m", naive_ledger.__name__, self.servers)
            crew.add(f"naive-ledger-{number}", *follower, environment=url["naive_ledger"])
        crew.add(
            "spark",
            *("-m", "tallymark", "pipeline", "ingest", "--consumer", "report", "--topic", bank.TOPIC),
            *("--apply-sql", str(REPORT_SQL), "--database", "report", "--interval", "1"),
            *SPARK,
        )
