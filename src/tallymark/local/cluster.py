"""Real Kafka brokers and a real PostgreSQL in one folder. Tests, lab, bench and the command line share this.

    cluster = LocalCluster(home, brokers=3, postgres=18)
    cluster.up()                                    # idempotent; repairs what a crash or a reboot left
    cluster.bootstrap_servers; cluster.database_url("bank")
    cluster.broker(2).kill(); cluster.broker(2).start(); cluster.postgres.pause()
    cluster.down(wipe=True)

`up` returns when the cluster has produced, consumed and run a transaction. When it fails or is interrupted,
what it started is stopped again and what was running before keeps running.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

from tallymark.broker.probe import look
from tallymark.crashpoint import reached
from tallymark.errors import Problem, UsageError
from tallymark.local.broker import BRIEF, Broker
from tallymark.local.brokerclasses import broker_classes
from tallymark.local.classarchive import ClassArchive
from tallymark.local.home import ClusterRecord, Home, Listener
from tallymark.local.jars import KAFKA, JarStore, Report, spark_connector
from tallymark.local.java import Java, find_java
from tallymark.local.jmx import JMX, Agents
from tallymark.local.plan import Wish, move_taken_ports, new_record, refuse_unless_same, same_voters
from tallymark.local.ports import HOST
from tallymark.local.postgres import Postgres, binaries
from tallymark.local.process import State
from tallymark.local.readiness import PATIENCE_S, PortLost, wait_broker, wait_brokers, wait_postgres
from tallymark.local.spark import LocalSpark, SparkServer
from tallymark.local.status import ClusterStatus, ProcessStatus

_ABORT_GRACE_S = 3.0
_PORT_ATTEMPTS = 3

Server = Broker | Postgres | SparkServer


class LocalCluster:
    """None for `brokers` or `postgres` means: as it was made, or the default. 0 means: without.

    `brief` is for brokers that live for minutes: they start with half the CPU, and are slower under a long load.
    """

    def __init__(
        self,
        home: Path | str | None = None,
        *,
        brokers: int | None = None,
        postgres: int | None = None,
        listeners: Sequence[Listener] = (),
        broker_settings: Mapping[str, str] | None = None,
        postgres_settings: Mapping[str, str] | None = None,
        cache: Path | None = None,
        jmx: bool = False,
        spark: bool = False,
        brief: bool = False,
    ) -> None:
        self._brief = brief
        self._wish = Wish(brokers, postgres, tuple(listeners), dict(broker_settings or {}))
        if postgres:
            binaries(postgres)  # refuses a version that we do not have
        self.home = Home.at(home)
        self._postgres_settings = dict(postgres_settings or {})
        self._cache = cache
        self.agents = Agents(self.home, wanted=jmx)
        self.spark = LocalSpark(self.home, self._java, wanted=spark)
        self._java_found: Java | None = None
        self._record: ClusterRecord | None = None
        self._brokers: dict[int, Broker] = {}
        self._postgres: Postgres | None = None

    # What it offers

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(f"{HOST}:{ports.client}" for ports in self._known().brokers)

    def listener_servers(self, name: str) -> str:
        """The bootstrap servers of an extra listener."""
        return ",".join(f"{HOST}:{ports.extra[name]}" for ports in self._known().brokers)

    def database_url(self, name: str) -> str:
        """A URL with the password in it; the database is made if it is missing."""
        self.create_database(name)
        return self.postgres.url(name)

    def create_database(self, name: str) -> bool:
        return self.postgres.create_database(name)

    def drop_database(self, name: str) -> None:
        self.postgres.drop_database(name)

    def broker(self, number: int) -> Broker:
        known = len(self._known().brokers)
        if not 1 <= number <= known:
            raise UsageError(f"there is no broker {number}: the cluster has {known}")
        return self._broker(number)

    def _broker(self, number: int) -> Broker:
        if number not in self._brokers:
            self._brokers[number] = Broker(
                number,
                self.home.broker(number),
                java=self._java,
                class_path=lambda: self._jars().class_path(KAFKA),
                record=self._known,
                wait_ready=wait_broker,
                jvm_options=lambda: (*self._archive().options(), *(BRIEF if self._brief else ())),
                agent_options=lambda: self.agents.options(
                    number, self.home.broker(number), self._jars().folder(JMX)
                ),
            )
        return self._brokers[number]

    @property
    def brokers(self) -> list[Broker]:
        return [self.broker(number) for number, _ in enumerate(self._known().brokers, 1)]

    @property
    def postgres(self) -> Postgres:
        major = self._known().postgres
        if not major:
            raise UsageError(f"the cluster in {self.home.path} was made without PostgreSQL")
        if self._postgres is None:
            self._postgres = Postgres(
                self.home.postgres,
                major=major,
                port=lambda: self._known().postgres_port,
                settings=self._postgres_settings,
            )
        return self._postgres

    @property
    def has_postgres(self) -> bool:
        return bool(self._known().postgres)

    def process(self, name: str) -> Server:
        """By the name that `status` shows: broker-1, postgres, spark-worker-1."""
        for server in self.processes:
            if server.name == name:
                return server
        raise UsageError(f"there is no process {name} in {self.home.path}")

    @property
    def processes(self) -> list[Server]:
        """Everything that belongs to it; nothing when it was never brought up."""
        if not self.exists():
            return []
        return [*self.brokers, *([self.postgres] if self.has_postgres else []), *self.spark.servers]

    def exists(self) -> bool:
        """Whether a cluster was ever made in this home."""
        self._record = self._record or self.home.load()
        return self._record is not None

    # Up

    def up(self, report: Report = lambda _: None) -> ClusterStatus:
        self.home.prepare()
        with self.home.locked():
            self._record = self._agree()
            before = {server.name for server in self.processes if server.is_alive()}
            try:
                self._bring_up(report)
            except BaseException:  # also Ctrl-C: nothing of ours may stay behind
                self._stop([s for s in self.processes if s.name not in before], grace_s=_ABORT_GRACE_S)
                raise
            return self.status()

    def _agree(self) -> ClusterRecord:
        found = self.home.load()
        if found is None:
            found = new_record(self._wish)
            self.home.save(found)
            reached("local.recorded")
        refuse_unless_same(found, self._wish, self.home.path)
        return found

    def _bring_up(self, report: Report) -> None:
        if self._known().brokers:
            agents = [JMX] if self.agents.wanted else []
            self._jars().ensure([KAFKA, spark_connector(), *agents], report)
            self._archive().ensure(report)
            running = {broker.number for broker in self.brokers if broker.is_alive()}
            self.agents.prepare(len(self.brokers), running)
        deadline = time.monotonic() + PATIENCE_S
        for server in self.processes:
            server.resume()  # someone may have left it paused
        for attempt in range(1, _PORT_ATTEMPTS + 1):
            self._move_taken_ports(report)
            self.spark.prepare()
            self._start_absent(report)
            try:
                if self.has_postgres:
                    wait_postgres(self.postgres)
                if self._known().brokers:
                    wait_brokers(self.brokers, report, deadline)
                if self.spark.servers:
                    self.spark.wait_ready()
                return
            except PortLost:
                if attempt == _PORT_ATTEMPTS:
                    raise

    def _absent(self) -> list[Server]:
        return [server for server in self.processes if not server.is_alive()]

    def _start_absent(self, report: Report) -> None:
        absent = self._absent()
        if absent:
            report(f"starting {', '.join(server.name for server in absent)}")
            _together(absent, lambda server: server.start(wait=False))

    def _move_taken_ports(self, report: Report) -> None:
        record = self._known()
        moved = move_taken_ports(record, [server.name for server in self._absent()], report)
        if moved != record:
            self.home.save(moved)
            self._record = moved
            if not same_voters(moved, record):
                self._stop(self.brokers)  # those that run must learn where the controllers are now

    # Down

    def down(self, *, wipe: bool = False, report: Report = lambda _: None) -> list[str]:
        """Stop everything gracefully; with `wipe` delete it. Returns the names of what was stopped.

        The record is made first and deleted last: a folder without one holds nothing of ours, and is not touched.
        """
        if not self.home.record_file.exists():
            return []
        with self.home.locked():
            self._record = None  # another process may have moved ports since we looked
            servers = self._to_stop(wipe=wipe)
            running = [server for server in servers if server.is_alive()]
            if running:
                report(f"stopping {', '.join(server.name for server in running)}")
            self._stop(servers)
            if wipe:
                self._wipe()
        return [server.name for server in running]

    def _to_stop(self, *, wipe: bool) -> list[Server]:
        try:
            return self.processes
        except Problem:
            if not wipe:
                raise
        # The record is damaged, and `--wipe` is the way out that it names. What runs is known by its folder.
        numbers = [int(path.name.removeprefix("broker-")) for path in self.home.path.glob("broker-[1-9]")]
        server = Postgres(self.home.postgres, major=0, port=lambda: 0)
        return [*(self._broker(number) for number in numbers), server, *self.spark.servers]

    def _stop(self, servers: Sequence[Server], *, grace_s: float | None = None) -> None:
        if servers:
            _together(servers, lambda s: s.stop() if grace_s is None else s.stop(grace_s=grace_s))

    def _wipe(self) -> None:
        for path in (*self.home.path.glob("broker-*"), self.home.postgres):
            shutil.rmtree(path, ignore_errors=True)
        self.agents.file.unlink(missing_ok=True)
        self.spark.wipe()
        self.home.record_file.unlink(missing_ok=True)  # last: until then `down --wipe` knows what there is
        self._record, self._brokers, self._postgres = None, {}, None

    # Looking

    def status(self) -> ClusterStatus:
        processes = tuple(ProcessStatus.of(server, server.port) for server in self.processes)
        serving = any(process.kind == "broker" and process.state is State.RUNNING for process in processes)
        sight = look(self.bootstrap_servers) if serving else None
        return ClusterStatus(
            home=str(self.home.path),
            processes=processes,
            # Kafka counts one that was killed for seconds more: it serves nobody.
            brokers_seen=sum(
                broker.number in sight.brokers and broker.is_alive() for broker in self.brokers if sight
            ),
            under_replicated=sight.under_replicated if sight else None,
        )

    def _java(self) -> Java:
        if self._java_found is None:
            self._java_found = find_java()
        return self._java_found

    def _jars(self) -> JarStore:
        return JarStore(self._java(), self._cache)

    def _archive(self) -> ClassArchive:
        return broker_classes(self._java(), self._jars())

    def _known(self) -> ClusterRecord:
        if not self.exists() or self._record is None:
            raise Problem(
                f"there is no cluster in {self.home.path}", remedy="Start one with: tallymark local up"
            )
        return self._record


def _together(servers: Sequence[Server], action: Callable[[Server], object]) -> None:
    """Side by side, since each mostly waits. All get their turn before the first error is raised."""
    pool = ThreadPoolExecutor(len(servers))
    try:
        turns = [pool.submit(action, server) for server in servers]
        wait(turns)
    finally:
        pool.shutdown()  # also on Ctrl-C: a late start must not come after the stopping
    for turn in turns:
        turn.result()
