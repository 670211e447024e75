"""One real Kafka broker of a local cluster: format, start, stop, kill, pause, change, wipe.

Its log directory is formatted aside and renamed, so that it is formatted or absent. A broker never deletes
data that it did not just make, except in `wipe_disk`.
"""

from __future__ import annotations

import io
import shutil
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tallymark.crashpoint import reached
from tallymark.errors import Problem
from tallymark.local import brokerfiles
from tallymark.local.home import ClusterRecord, fresh_scratch, write_private
from tallymark.local.java import Java
from tallymark.local.process import ServerProcess

# Small heap: what a broker serves comes from the page cache. The serial collector takes the least memory.
_MEMORY = ("-Xms96m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:MaxDirectMemorySize=256m")
# Whatever lives for seconds or minutes: what the second compiler would win is never won back.
BRIEF = ("-XX:TieredStopAtLevel=1",)
_TOOL = ("-Xmx128m", "-XX:+UseSerialGC", *BRIEF)
_SERVER = "kafka.Kafka"
STOP_GRACE_S = 20.0


class Broker(ServerProcess):
    def __init__(
        self,
        number: int,
        folder: Path,
        *,
        java: Callable[[], Java],
        class_path: Callable[[], str],
        record: Callable[[], ClusterRecord],
        wait_ready: Callable[[Broker], None],
        jvm_options: Callable[[], Sequence[str]] = tuple,
        agent_options: Callable[[], Sequence[str]] = tuple,
    ) -> None:
        self._marker_argument = f"-Dtallymark.broker={folder}"
        super().__init__(f"broker-{number}", "broker", folder, [self._marker_argument])
        self.number = number
        self._java, self._class_path, self._record = java, class_path, record
        self._wait_ready, self._jvm_options = wait_ready, jvm_options
        self._agent_options = agent_options
        self._log_start = 0
        self._overrides: dict[str, str] = {}

    @property
    def port(self) -> int:
        return self._record().brokers[self.number - 1].client

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def log_file(self) -> Path:
        return self.folder / "log" / "broker.log"

    def log(self) -> str:
        """Its log since the last rollover, and what it wrote before the log was open."""
        parts = [
            path.read_text(errors="replace") for path in (self.output_file, self.log_file) if path.exists()
        ]
        return "".join(parts)

    def log_since_start(self) -> str:
        with self.log_file.open(errors="replace") if self.log_file.exists() else io.StringIO() as file:
            file.seek(min(self._log_start, _size(self.log_file)))
            return self.output_file.read_text(errors="replace") + file.read()

    # Its life

    def start(self, *, wait: bool = True) -> None:
        """Start it, and with `wait` return when it serves clients. A paused one is resumed."""
        if self.is_alive():
            self.resume()
        else:
            self.format()
            self.write_files()
            self._log_start = _size(self.log_file)
            self.spawn(self._command(_SERVER, str(self.folder / "server.properties")))
        if wait:
            self._wait_ready(self)

    def stop(self, *, grace_s: float = STOP_GRACE_S) -> bool:
        """A controlled shutdown: leadership handed over, logs flushed. True when it went by itself."""
        return self.terminate(signal.SIGTERM, grace_s=grace_s)

    def reconfigure(self, settings: Mapping[str, str]) -> None:
        """Restart with these settings over the standard ones; `{}` goes back to the standard ones."""
        self._overrides = dict(settings)
        self.stop()
        self.start()

    def wipe_disk(self) -> None:
        """Lose its disk: all of its replicas and its part of the metadata. It must not be running."""
        if self.is_alive():
            raise Problem(f"{self.name} is running", remedy="Stop or kill it before wiping its disk.")
        shutil.rmtree(self.data, ignore_errors=True)

    # Its files

    def write_files(self) -> None:
        self.log_file.parent.mkdir(parents=True, exist_ok=True)
        settings = brokerfiles.properties(self._record(), self.number, self.data, self._overrides)
        # Private: listeners may bring passwords.
        write_private(self.folder / "server.properties", brokerfiles.render_properties(settings))
        write_private(self.folder / "log4j2.xml", brokerfiles.render_logging(self.log_file))

    def format(self) -> None:
        """Make the log directory, once. What a killed format left is cleared; data is never cleared."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if (self.data / "meta.properties").exists():
            return
        if self.data.exists():
            if any(
                path.is_dir() and not path.name.startswith("__cluster_metadata")
                for path in self.data.iterdir()
            ):
                raise Problem(
                    f"{self.data} holds topics but lost its meta.properties",
                    remedy="Restore that file, or start afresh with: tallymark local down --wipe",
                )
            shutil.rmtree(self.data)
        scratch = fresh_scratch(self.folder)
        write_private(
            self.folder / "log4j2.xml", brokerfiles.render_logging(self.folder / "log" / "format.log")
        )
        settings = brokerfiles.properties(self._record(), self.number, scratch, self._overrides)
        write_private(self.folder / "format.properties", brokerfiles.render_properties(settings))
        arguments = ["format", "-t", self._record().cluster_id, "-c", str(self.folder / "format.properties")]
        for feature in brokerfiles.FEATURES:
            arguments += ["--feature", feature]
        result = subprocess.run(
            self._command("kafka.tools.StorageTool", *arguments), capture_output=True, text=True, check=False
        )
        if result.returncode != 0:
            lines = (result.stderr + result.stdout).strip().splitlines() or ["it gave no reason"]
            told = next((line for line in lines if "Exception" in line or "rror" in line), lines[0])
            raise Problem(f"{self.name}: the log directory could not be formatted: {told.strip()}")
        reached("local.broker_formatted")
        scratch.rename(self.data)

    def _command(self, main_class: str, *arguments: str) -> list[str]:
        return [
            str(self._java().executable),
            *(_MEMORY if main_class == _SERVER else _TOOL),
            *self._jvm_options(),
            "-Djava.awt.headless=true",
            f"-Dlog4j2.configurationFile={self.folder / 'log4j2.xml'}",
            *([*self._agent_options(), self._marker_argument] if main_class == _SERVER else []),
            "-cp",
            self._class_path(),
            main_class,
            *arguments,
        ]


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
