"""The folder in which one local cluster lives, and the record of what belongs to it.

Guarantees: the record is replaced atomically (a kill at any moment leaves the old one or the new one), is
readable by its owner only (it may hold listener passwords), and two processes never change one home at once.

    home/
      cluster.json     what the cluster is: its id, how many brokers, which ports
      lock             held by whoever is changing the cluster
      broker-1/        server.properties, log4j2.xml, data/, log/, process.json
      postgres/        password, data/, log/, process.json
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from filelock import FileLock, Timeout

from tallymark.errors import Problem, UsageError

VARIABLE = "TALLYMARK_HOME"
DEFAULT = ".tallymark"
LOCK_PATIENCE_S = 180.0
_FORMAT = 1


@dataclass(frozen=True)
class Listener:
    """A listener beside the plain one, such as SASL_SSL. Its settings go in by Kafka's own names."""

    name: str
    protocol: str
    settings: Mapping[str, str] = field(default_factory=dict, repr=False)  # may hold keystore passwords


@dataclass(frozen=True)
class BrokerPorts:
    client: int
    controller: int
    extra: Mapping[str, int] = field(default_factory=dict)

    def all(self) -> tuple[int, ...]:
        return (self.client, self.controller, *self.extra.values())


@dataclass(frozen=True)
class ClusterRecord:
    """What must stay the same from one `up` to the next, except ports, which move when they are taken."""

    cluster_id: str
    brokers: tuple[BrokerPorts, ...]
    postgres: int | None
    postgres_port: int
    listeners: tuple[Listener, ...] = ()
    broker_settings: Mapping[str, str] = field(default_factory=dict, repr=False)

    def ports(self) -> frozenset[int]:
        return frozenset(port for broker in self.brokers for port in broker.all()) | {self.postgres_port}


@dataclass(frozen=True)
class Home:
    path: Path

    @classmethod
    def at(cls, path: Path | str | None) -> Home:
        """The home that is named, or TALLYMARK_HOME, or .tallymark here.

        One folder has one name, by whatever link it is reached: its servers are told from others by it.
        """
        return cls(Path(path or os.environ.get(VARIABLE) or DEFAULT).resolve())

    @property
    def record_file(self) -> Path:
        return self.path / "cluster.json"

    def broker(self, number: int) -> Path:
        return self.path / f"broker-{number}"

    @property
    def postgres(self) -> Path:
        return self.path / "postgres"

    def prepare(self) -> None:
        """Make the folder; refuse in one line where it cannot be written."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            probe = self.path / f".writable-{os.getpid()}"
            probe.touch()
            probe.unlink()
            ignore = self.path / ".gitignore"
            if not ignore.exists():
                ignore.write_text("*\n")  # a home inside a clone must never be committed: it holds a password
        except OSError as error:
            raise UsageError(
                f"the home folder {self.path} cannot be written: {error.strerror}",
                remedy="Choose another with --home or TALLYMARK_HOME, or make it writable.",
            ) from error

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the home. A second `up` waits here, then finds the work done."""
        lock = FileLock(self.path / "lock")
        try:
            lock.acquire(timeout=LOCK_PATIENCE_S)
        except Timeout as error:
            raise Problem(
                f"another process has been changing the cluster in {self.path} for {LOCK_PATIENCE_S:.0f} s",
                remedy="Wait for that `tallymark local` command to end, or stop it, and try again.",
            ) from error
        try:
            yield
        finally:
            lock.release()

    def load(self) -> ClusterRecord | None:
        try:
            text = self.record_file.read_text()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise UsageError(f"{self.record_file} cannot be read: {error.strerror}") from error
        try:
            raw = json.loads(text)
            if raw.pop("format") != _FORMAT:
                raise ValueError("format")
            return ClusterRecord(
                cluster_id=str(raw["cluster_id"]),
                brokers=tuple(BrokerPorts(**ports) for ports in raw["brokers"]),
                postgres=raw["postgres"],
                postgres_port=int(raw["postgres_port"]),
                listeners=tuple(Listener(**listener) for listener in raw["listeners"]),
                broker_settings=dict(raw["broker_settings"]),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise Problem(
                f"{self.record_file} is damaged or of another version",
                remedy=f"Start afresh with: tallymark local down --wipe --home {self.path}",
            ) from error

    def save(self, record: ClusterRecord) -> None:
        body = {"format": _FORMAT, **asdict(record)}
        write_private(self.record_file, json.dumps(body, indent=2) + "\n")


def write_private(path: Path, text: str) -> None:
    """Replace `path` atomically, readable by its owner only, whoever else writes it at the same time."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(scratch, path)


def fresh_scratch(folder: Path) -> Path:
    """A new folder to make a data directory in, before it is renamed. What earlier attempts left is cleared.

    Its name is new each time: a tool whose starter was killed may still be writing into the last one.
    """
    for leftover in folder.glob("data.new-*"):
        if leftover.is_dir():
            shutil.rmtree(leftover, ignore_errors=True)
        else:
            leftover.unlink(missing_ok=True)
    return Path(tempfile.mkdtemp(prefix="data.new-", dir=folder))
