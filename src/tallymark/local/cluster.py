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

import base64
import shutil
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from tallymark.broker.probe import NOTHING, Probe, look
from tallymark.crashpoint import reached
from tallymark.errors import Problem, UsageError
from tallymark.local import brokerfiles
from tallymark.local.broker import Broker
from tallymark.local.home import BrokerPorts, ClusterRecord, Home, Listener
from tallymark.local.jars import KAFKA, JarStore, Report, spark_connector
from tallymark.local.java import Java, find_java
from tallymark.local.ports import HOST, free_ports, is_free
from tallymark.local.postgres import DEFAULT_MAJOR, Postgres, binaries
from tallymark.local.process import ServerProcess, State
from tallymark.local.status import ClusterStatus, ProcessStatus

DEFAULT_BROKERS = 3
UP_PATIENCE_S = 90.0
_ABORT_GRACE_S = 3.0
_PORT_ATTEMPTS = 3
_LOOK_AGAIN_S = 0.1


class LocalCluster:
    """None for `brokers` or `postgres` means: as it was made, or the default. 0 means: without."""

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
    ) -> None:
        if brokers is not None and not 0 <= brokers <= 9:
            raise UsageError(f"{brokers} brokers cannot be run", remedy="Choose 1 or 3.")
        if postgres:
            binaries(postgres)  # refuses a version that we do not have
        self.home = Home.at(home)
        self._asked_brokers, self._asked_postgres = brokers, postgres
        self._listeners, self._broker_settings = tuple(listeners), dict(broker_settings or {})
        self._postgres_settings = dict(postgres_settings or {})
        self._cache = cache
        self._java_found: Java | None = None
        self._record: ClusterRecord | None = self.home.load()
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
        if number not in self._brokers:
            self._brokers[number] = Broker(
                number,
                self.home.broker(number),
                java=self._java,
                class_path=lambda: JarStore(self._java(), self._cache).class_path(KAFKA),
                record=self._known,
                wait_ready=self._wait_broker,
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

    def process(self, name: str) -> Broker | Postgres:
        """By the name that `status` shows: broker-1, postgres."""
        for server in self.processes:
            if server.name == name:
                return server
        raise UsageError(f"there is no process {name}")

    @property
    def processes(self) -> list[Broker | Postgres]:
        """Everything that belongs to it; nothing when it was never brought up."""
        if self._record is None:
            return []
        return [*self.brokers, *([self.postgres] if self._record.postgres else [])]

    # Up

    def up(self, report: Report = lambda _: None) -> ClusterStatus:
        self.home.prepare()
        with self.home.locked():
            self._record = self._agree(self.home.load())
            before = {server.name for server in self.processes if server.is_alive()}
            try:
                self._bring_up(report)
            except BaseException:  # also Ctrl-C: nothing of ours may stay behind
                self._abandon([server for server in self.processes if server.name not in before])
                raise
            return self.status()

    def _agree(self, found: ClusterRecord | None) -> ClusterRecord:
        """The record to work with: the one that is there, if it is what was asked for, or a new one."""
        if found is None:
            record = self._new_record()
            self.home.save(record)
            reached("local.recorded")
            return record
        if self._asked_brokers not in (None, len(found.brokers)):
            raise UsageError(
                f"the cluster in {self.home.path} was made with {len(found.brokers)} brokers, "
                f"and {self._asked_brokers} were asked for",
                remedy="Use another --home, or delete it with `tallymark local down --wipe`.",
            )
        if self._asked_postgres not in (None, found.postgres or 0):
            raise UsageError(
                f"the cluster in {self.home.path} was made with PostgreSQL {found.postgres}, "
                f"and {self._asked_postgres} was asked for",
                remedy="Use another --home, or delete it with `tallymark local down --wipe`.",
            )
        return found

    def _new_record(self) -> ClusterRecord:
        count = DEFAULT_BROKERS if self._asked_brokers is None else self._asked_brokers
        major = DEFAULT_MAJOR if self._asked_postgres is None else self._asked_postgres
        names = [listener.name for listener in self._listeners]
        ports = iter(free_ports(count * (2 + len(names)) + 1))
        return ClusterRecord(
            cluster_id=base64.urlsafe_b64encode(b"\x01" + uuid.uuid4().bytes[1:]).decode().rstrip("="),
            brokers=tuple(
                BrokerPorts(next(ports), next(ports), {name: next(ports) for name in names})
                for _ in range(count)
            ),
            postgres=major or None,
            postgres_port=next(ports),
            listeners=self._listeners,
            broker_settings=self._broker_settings,
        )

    def _bring_up(self, report: Report) -> None:
        deadline = time.monotonic() + UP_PATIENCE_S
        if self._known().brokers:
            began = time.monotonic()
            JarStore(self._java(), self._cache).ensure([KAFKA, spark_connector()], report)
            deadline += time.monotonic() - began  # a first fetch takes as long as it takes
        for server in self.processes:
            server.resume()
        for attempt in range(1, _PORT_ATTEMPTS + 1):
            self._move_taken_ports(report)
            absent = [server for server in self.processes if not server.is_alive()]
            if absent:
                report(f"starting {', '.join(server.name for server in absent)}")
            self._start_all(absent)
            try:
                self._wait_usable(report, deadline)
                return
            except _PortLost:
                if attempt == _PORT_ATTEMPTS:
                    raise

    def _start_all(self, absent: Sequence[Broker | Postgres]) -> None:
        if not absent:
            return
        with ThreadPoolExecutor(len(absent)) as pool:  # initdb and the formats side by side
            started = [pool.submit(server.start, wait=False) for server in absent]
        for future in started:
            future.result()

    def _move_taken_ports(self, report: Report) -> None:
        """Give new ports to servers that are not running and whose ports now belong to someone else."""
        record = self._known()
        used = set(record.ports())

        def fresh(server: ServerProcess, port: int) -> int:
            if is_free(port):
                return port
            other = free_ports(1, besides=used)[0]
            used.add(other)
            report(f"port {port} of {server.name} is taken by another program: moving to {other}")
            return other

        brokers = list(record.brokers)
        for broker in self.brokers:
            if not broker.is_alive():
                ports = record.brokers[broker.number - 1]
                extra = {name: fresh(broker, port) for name, port in ports.extra.items()}
                brokers[broker.number - 1] = BrokerPorts(
                    fresh(broker, ports.client), fresh(broker, ports.controller), extra
                )
        postgres_port = record.postgres_port
        if record.postgres and not self.postgres.is_alive():
            postgres_port = fresh(self.postgres, postgres_port)
        moved = replace(record, brokers=tuple(brokers), postgres_port=postgres_port)
        if moved == record:
            return
        self.home.save(moved)
        self._record = moved
        if [ports.controller for ports in moved.brokers] != [ports.controller for ports in record.brokers]:
            for broker in self.brokers:  # the voters' addresses changed: the others must learn them
                if broker.is_alive():
                    broker.stop()

    def _wait_usable(self, report: Report, deadline: float) -> None:
        record = self._known()
        if record.postgres:
            self._unless_port_lost(self.postgres, self.postgres.wait_ready)
        if not record.brokers:
            return
        reached("local.before_probe")
        probe = Probe(self.bootstrap_servers)
        report("waiting for the brokers")
        self._wait(
            lambda: len((probe.sight() or NOTHING).brokers) == len(record.brokers), deadline, "serve clients"
        )
        report("running a transaction")
        probe.use(copies=brokerfiles.replication(len(record.brokers)), deadline=deadline)
        report("waiting for the replicas")
        self._wait(
            lambda: (probe.sight() or NOTHING).under_replicated == 0, deadline, "bring all replicas in sync"
        )

    def _wait(self, done: Callable[[], bool], deadline: float, what: str) -> None:
        while not done():
            for broker in self.brokers:
                self._check_alive(broker)
            if time.monotonic() > deadline:
                raise Problem(
                    f"the brokers did not {what} in {UP_PATIENCE_S:.0f} s",
                    remedy=f"Their logs are in {self.home.path}/broker-*/log. Is the machine very busy?",
                )
            time.sleep(_LOOK_AGAIN_S)

    def _check_alive(self, broker: Broker) -> None:
        if broker.is_alive():
            return
        log = broker.log()
        if "Address already in use" in log[-20_000:]:
            raise _PortLost(f"{broker.name} lost its port to another program while it started")
        told = [
            line for line in log.splitlines() if "ERROR" in line or "Exception" in line or "rror:" in line
        ]
        raise Problem(
            f"{broker.name} stopped while it started: {told[-1].strip() if told else 'it gave no reason'}",
            remedy=f"Its log is {broker.log_file}.",
        )

    def _unless_port_lost(self, server: Postgres, wait: Callable[[], None]) -> None:
        try:
            wait()
        except Problem as problem:
            if "Address already in use" in server.log()[-5_000:]:
                raise _PortLost(
                    f"{server.name} lost its port to another program while it started"
                ) from problem
            raise

    def _wait_broker(self, broker: Broker) -> None:
        """Until the broker itself says that it is one of those that serve."""
        probe = Probe(f"{HOST}:{broker.port}")
        deadline = time.monotonic() + UP_PATIENCE_S
        while broker.number not in (probe.sight() or NOTHING).brokers:
            self._check_alive(broker)
            if time.monotonic() > deadline:
                raise Problem(
                    f"{broker.name} did not come back in {UP_PATIENCE_S:.0f} s: see {broker.log_file}"
                )
            time.sleep(_LOOK_AGAIN_S)

    # Down

    def down(self, *, wipe: bool = False, report: Report = lambda _: None) -> list[str]:
        """Stop everything gracefully; with `wipe` delete it. Returns the names of what was stopped."""
        if not self.home.path.is_dir():
            return []
        with self.home.locked():
            if self._record is None and not wipe:
                return []
            stopped = [server.name for server in self.processes if server.is_alive()]
            if stopped:
                report(f"stopping {', '.join(stopped)}")
            self._stop_all()
            if wipe:
                self._wipe()
        return stopped

    def _stop_all(self) -> None:
        servers = self.processes
        if servers:
            with ThreadPoolExecutor(len(servers)) as pool:
                list(pool.map(lambda server: server.stop(), servers))

    def _abandon(self, started: Sequence[Broker | Postgres]) -> None:
        if started:
            with ThreadPoolExecutor(len(started)) as pool:
                list(pool.map(lambda server: server.stop(grace_s=_ABORT_GRACE_S), started))

    def _wipe(self) -> None:
        for path in (*self.home.path.glob("broker-*"), self.home.postgres):
            shutil.rmtree(path, ignore_errors=True)
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
            brokers_seen=len(sight.brokers) if sight else 0,
            under_replicated=sight.under_replicated if sight else None,
        )

    def _java(self) -> Java:
        if self._java_found is None:
            self._java_found = find_java()
        return self._java_found

    def _known(self) -> ClusterRecord:
        if self._record is None:
            raise Problem(
                f"there is no cluster in {self.home.path}", remedy="Start one with: tallymark local up"
            )
        return self._record


class _PortLost(Problem):
    """A port was free when we looked and taken when the server bound it."""
