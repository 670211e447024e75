"""A real standalone Spark on this machine: a master and two workers, each a process of its own.

By option (`tallymark local up --spark`): it costs memory that most do not need. Once asked for, a home keeps it until it
is wiped. The programs come from the pyspark package; a worker's executors are its children, and die with it.
"""

from __future__ import annotations

import json
import shutil
import signal
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path

from tallymark.errors import Problem, UsageError
from tallymark.local.home import Home, write_private
from tallymark.local.java import Java
from tallymark.local.ports import HOST, free_ports, is_free
from tallymark.local.process import ServerProcess

WORKERS = 2
WORKER_CORES = 1
WORKER_MEMORY = "1g"
STOP_GRACE_S = 10.0
_READY_S = 60.0
_LOOK_AGAIN_S = 0.1
# As Spark's own scripts give them to every JVM of theirs (org.apache.spark.launcher.JavaModuleOptions).
_OPENED = (
    "java.base/java.lang",
    "java.base/java.lang.invoke",
    "java.base/java.lang.reflect",
    "java.base/java.io",
    "java.base/java.net",
    "java.base/java.nio",
    "java.base/java.util",
    "java.base/java.util.concurrent",
    "java.base/java.util.concurrent.atomic",
    "java.base/jdk.internal.ref",
    "java.base/sun.nio.ch",
    "java.base/sun.nio.cs",
    "java.base/sun.security.action",
    "java.base/sun.util.calendar",
    "java.security.jgss/sun.security.krb5",
)


@dataclass(frozen=True)
class SparkPorts:
    """A server's own port, and that of its page."""

    port: int
    page: int


class SparkServer(ServerProcess):
    """A master or a worker."""

    def __init__(
        self,
        name: str,
        kind: str,
        folder: Path,
        ports: Callable[[], SparkPorts],
        java: Callable[[], Java],
        main: str,
        arguments: Callable[[], list[str]],
        wait_first: Callable[[], None],
    ) -> None:
        self._marker_argument = f"-Dtallymark.spark={folder}"
        super().__init__(name, kind, folder, [self._marker_argument])
        self._ports, self._java = ports, java
        self._main, self._arguments, self._wait_first = main, arguments, wait_first

    @property
    def port(self) -> int:
        return self._ports().port

    def start(self, *, wait: bool = True) -> None:
        """Start it. A worker waits for its master's port first: one that comes too early tries again much later."""
        if self.is_alive():
            self.resume()
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        self._wait_first()
        self.spawn(self._command(), environment=self._environment())
        if wait:
            wait_listening(self)

    def stop(self, *, grace_s: float = STOP_GRACE_S) -> bool:
        gone = self.terminate(signal.SIGTERM, grace_s=grace_s)
        shutil.rmtree(self.folder / "work", ignore_errors=True)  # logs and jars of jobs that are over
        return gone

    def _command(self) -> list[str]:
        ports = self._ports()
        return [
            str(self._java().executable),
            "-Xmx512m",
            "-XX:+UseSerialGC",
            "-XX:+IgnoreUnrecognizedVMOptions",
            "--add-modules=jdk.incubator.vector",
            *(f"--add-opens={each}=ALL-UNNAMED" for each in _OPENED),
            "-Djdk.reflect.useDirectMethodHandle=false",
            "-Dio.netty.tryReflectionSetAccessible=true",
            # A port that is taken is an error, not a reason to listen elsewhere.
            "-Dspark.port.maxRetries=0",
            # A worker that was killed is noticed soon.
            "-Dspark.worker.timeout=10",
            self._marker_argument,
            "-cp",
            f"{spark_home()}/jars/*",
            self._main,
            *("--host", HOST, "--port", str(ports.port), "--webui-port", str(ports.page)),
            *self._arguments(),
        ]

    def _environment(self) -> dict[str, str]:
        java_home = self._java().executable.resolve().parent.parent
        return {
            "SPARK_HOME": str(spark_home()),
            # Spark's scripts find it out; without it a worker cannot build an executor's command.
            "SPARK_SCALA_VERSION": scala_version(),
            "SPARK_LOCAL_IP": HOST,
            "SPARK_LOCAL_DIRS": str(self.folder / "work"),
            "JAVA_HOME": str(java_home),
            "PYSPARK_PYTHON": sys.executable,
        }


class LocalSpark:
    """The master and its workers in one home; nothing unless it was asked for, now or earlier."""

    def __init__(self, home: Home, java: Callable[[], Java], *, wanted: bool) -> None:
        self.folder = home.path / "spark"
        self._java = java
        self._asked = wanted
        self._servers: list[SparkServer] = []

    @property
    def file(self) -> Path:
        return self.folder / "ports.json"

    @property
    def wanted(self) -> bool:
        return self._asked or self.file.is_file()

    @property
    def url(self) -> str:
        """What --master takes."""
        return f"spark://{HOST}:{self._ports()['master'].port}"

    @property
    def servers(self) -> list[SparkServer]:
        """Master first; empty where there is no Spark in this home."""
        if not self.file.is_file():
            return []
        if not self._servers:
            self._servers = [self._master(), *(self._worker(number) for number in range(1, WORKERS + 1))]
        return self._servers

    def prepare(self) -> None:
        """Ports for those that do not run: kept from one start to the next, unless another program has taken them."""
        if not self.wanted:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        names = ["master", *(f"worker-{number}" for number in range(1, WORKERS + 1))]
        known: Mapping[str, SparkPorts] = self._ports() if self.file.is_file() else {}
        alive = {server.name.removeprefix("spark-") for server in self.servers if server.is_alive()}
        chosen: dict[str, SparkPorts] = {}
        for name in names:
            ports = known.get(name)
            if ports is None or (name not in alive and not (is_free(ports.port) and is_free(ports.page))):
                used = {each for one in (*known.values(), *chosen.values()) for each in (one.port, one.page)}
                ports = SparkPorts(*free_ports(2, besides=used))
            chosen[name] = ports
        if chosen == known:
            return
        moved = bool(known) and chosen["master"] != known["master"]
        write_private(self.file, json.dumps({name: asdict(each) for name, each in chosen.items()}) + "\n")
        for server in self.servers[1:] if moved else ():
            server.stop()  # it would look for its master where that no longer is

    def wait_ready(self) -> None:
        """Until the master counts all of its workers."""
        deadline = time.monotonic() + _READY_S
        while alive_workers(self._ports()["master"].page) < WORKERS:
            for server in self.servers:
                refuse_dead(server)
            if time.monotonic() > deadline:
                raise Problem(
                    f"Spark's workers did not find their master within {_READY_S:.0f} s",
                    remedy=f"The master's log is {self.servers[0].output_file}.",
                )
            time.sleep(_LOOK_AGAIN_S)

    def wipe(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        self._servers = []

    def _master(self) -> SparkServer:
        return SparkServer(
            "spark-master",
            "spark-master",
            self.folder / "master",
            lambda: self._ports()["master"],
            self._java,
            "org.apache.spark.deploy.master.Master",
            list,
            lambda: None,
        )

    def _worker(self, number: int) -> SparkServer:
        folder = self.folder / f"worker-{number}"
        return SparkServer(
            f"spark-worker-{number}",
            "spark-worker",
            folder,
            lambda: self._ports()[f"worker-{number}"],
            self._java,
            "org.apache.spark.deploy.worker.Worker",
            lambda: [
                *(
                    "--cores",
                    str(WORKER_CORES),
                    "--memory",
                    WORKER_MEMORY,
                    "--work-dir",
                    str(folder / "work"),
                ),
                self.url,
            ],
            lambda: wait_listening(self.servers[0]),
        )

    def _ports(self) -> dict[str, SparkPorts]:
        try:
            raw = json.loads(self.file.read_text())
            return {name: SparkPorts(**each) for name, each in raw.items()}
        except FileNotFoundError:
            raise UsageError(
                "there is no Spark in this cluster", remedy="Start one with: tallymark local up --spark"
            ) from None
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise Problem(
                f"{self.file} is damaged", remedy=f"Delete {self.folder}, and run tallymark local up --spark"
            ) from error


def spark_home() -> Path:
    """The folder of pyspark: it is a whole Spark."""
    spec = find_spec("pyspark")  # found, not imported: importing it takes a second and a half
    for folder in (spec.submodule_search_locations or []) if spec else []:
        return Path(folder)
    raise UsageError("Spark was not found", remedy="install Tallymark with its extra [local]")


def scala_version() -> str:
    """The Scala that this Spark is made for, as its jars say: spark-core_2.13-4.0.0.jar."""
    for jar in (spark_home() / "jars").glob("spark-core_*.jar"):
        return jar.name.removeprefix("spark-core_").partition("-")[0]
    raise UsageError("Spark's jars were not found", remedy="install Tallymark with its extra [local]")


def wait_listening(server: SparkServer) -> None:
    """Until somebody listens on the server's port."""
    deadline = time.monotonic() + _READY_S
    while is_free(server.port):
        if server.pid is None and time.monotonic() > deadline - _READY_S + 5:
            refuse_dead(server)
        if time.monotonic() > deadline:
            raise Problem(f"{server.name} did not listen within {_READY_S:.0f} s")
        time.sleep(_LOOK_AGAIN_S)


def refuse_dead(server: SparkServer) -> None:
    if server.is_alive():
        return
    told = [
        line.strip()
        for line in (
            server.output_file.read_text(errors="replace") if server.output_file.exists() else ""
        ).splitlines()
        if "ERROR" in line or "Exception" in line
    ]
    raise Problem(
        f"{server.name} stopped while it started: {told[0][:200] if told else 'it gave no reason'}",
        remedy=f"What it wrote is in {server.output_file}.",
    )


def alive_workers(page: int) -> int:
    """How many workers the master counts, by its own page; 0 where it does not answer."""
    try:
        # Not through a proxy: it is this machine.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"http://{HOST}:{page}/json/", timeout=2) as answer:
            return int(json.load(answer)["aliveworkers"])
    except (OSError, ValueError, KeyError):
        return 0


def environment_of(spark: LocalSpark) -> dict[str, str]:
    """What `local env` exports: where jobs run by default."""
    return {"TALLYMARK_SPARK_MASTER": spark.url} if any(s.is_alive() for s in spark.servers) else {}
