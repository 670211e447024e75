"""Makes the outbox's tables in an SQLite file, and knows their version. Made on first use; a second time changes nothing.

The tables stand beside the business data, in the same file, named `tallymark_…`: one commit holds both.
"""

from __future__ import annotations

import re
import sqlite3
import uuid
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path

from tallymark.errors import SchemaMismatch, SettingsError, TallymarkError, Unreachable, UsageError
from tallymark.lifecycle import Role
from tallymark.store.postgres.migrations import MigrationReport
from tallymark.store.queries import checked_schema, load

VERSION = 1
SCHEME = "sqlite:///"

# Strict tables; RETURNING and UPDATE … FROM came before them.
_OLDEST_SQLITE = (3, 37, 0)
# SQLite's own clock, in seconds since 1970. unixepoch('subsec') would need 3.42.
_NOW = "(julianday('now') - 2440587.5) * 86400.0"
_PACKAGE = "tallymark.store.sqlite"
_BUSY_MS = 10_000


@dataclass(frozen=True, slots=True)
class Created:
    """What `create` found or made."""

    path: str
    outbox_id: str
    version: int
    made: bool


def path_of(url: str) -> str:
    """The file that `sqlite:///relative/path` or `sqlite:////absolute/path` names."""
    path = url.removeprefix(SCHEME)
    if path == url or not path or path == ":memory:":
        raise SettingsError(
            "the SQLite outbox needs a file",
            remedy="write sqlite:///relative/path or sqlite:////absolute/path",
        )
    return path


def is_sqlite(url: str) -> bool:
    return url.startswith("sqlite:")


@cache
def queries(file: str, schema: str) -> dict[str, str]:
    """The named queries of one file, with SQLite's clock put in."""
    return {name: sql.replace("{now}", _NOW) for name, sql in load(_PACKAGE, file, schema).items()}


def connect(path: str) -> sqlite3.Connection:
    """A connection of ours: transactions are begun by name, and each commit is on disk before it is reported.

    The relay's claim so makes all that it is about to send durable first, whatever the writers' own `synchronous` is.
    """
    if sqlite3.sqlite_version_info < _OLDEST_SQLITE:
        raise SchemaMismatch(
            f"SQLite {sqlite3.sqlite_version} is too old for the outbox",
            remedy=f"use a Python with SQLite {'.'.join(map(str, _OLDEST_SQLITE))} or newer",
        )
    try:
        # Threads take turns: the relay makes its connections in one thread and uses each in another.
        connection = sqlite3.connect(
            path, timeout=_BUSY_MS / 1000, isolation_level=None, check_same_thread=False
        )
        try:
            mode = connection.execute("pragma journal_mode = wal").fetchone()[0]
            if mode != "wal":
                raise Unreachable(
                    f"{path} cannot be put into WAL mode (it stays in {mode})",
                    remedy="keep the file on a local disk",
                )
            connection.execute("pragma synchronous = full")
        except BaseException:
            connection.close()
            raise
    except sqlite3.Error as error:
        raise explain(error, path) from error
    return connection


def create(path: str | Path, schema: str = "tallymark") -> Created:
    """Make the file and the tables where they are missing."""
    path = str(path)
    connection = connect(path)
    try:
        before = found_version(connection, schema)
        connection.execute("begin immediate")
        make_tables(connection, schema)
        connection.execute("commit")
        outbox_id, version = connection.execute(
            f"select outbox_id, version from {schema}_identity"
        ).fetchone()
        return Created(path, outbox_id, version, made=before is None)
    except sqlite3.Error as error:
        raise explain(error, path) from error
    finally:
        connection.close()


def report(
    path: str,
    *,
    schema: str = "tallymark",
    role: Role = Role.BOTH,
    lanes: int | None = None,
    dry_run: bool = False,
) -> MigrationReport:
    """`create`, told as `tallymark init` tells it."""
    if role is Role.CONSUMER:
        raise UsageError(
            "SQLite holds an outbox, not an inbox", remedy="give a PostgreSQL database for an inbox"
        )
    if lanes not in (None, 1):
        raise UsageError(
            "an outbox on SQLite has one lane", remedy="use PostgreSQL where one lane is not enough"
        )
    done = Created(path, "", VERSION, made=not Path(path).exists()) if dry_run else create(path, schema)
    return MigrationReport(
        schema=schema,
        role=Role.PRODUCER,
        version_before=0 if done.made else done.version,
        version_after=done.version,
        applied=("outbox",) if done.made else (),
        sql=";\n".join(_statements(schema)) if done.made else "",
        outbox_id=done.outbox_id or None,
        lanes=1,
    )


def make_tables(connection: sqlite3.Connection, schema: str) -> None:
    """Make what is missing, in the transaction that the connection is in."""
    refuse_other_version(connection, schema)
    for statement in _statements(schema):
        connection.execute(statement)
    connection.execute(
        f"insert or ignore into {schema}_identity (one, version, outbox_id) values (1, ?, ?)",
        [VERSION, str(uuid.uuid4())],
    )
    connection.execute(f"insert or ignore into {schema}_lanes (lane) values (0)")


def found_version(connection: sqlite3.Connection, schema: str) -> int | None:
    """The version of the tables in this file; None where there are none."""
    table = connection.execute(
        "select 1 from sqlite_master where type = 'table' and name = ?",
        [f"{checked_schema(schema)}_identity"],
    ).fetchone()
    if table is None:
        return None
    row = connection.execute(f"select version from {schema}_identity").fetchone()
    return None if row is None else int(row[0])


def refuse_other_version(connection: sqlite3.Connection, schema: str) -> None:
    found = found_version(connection, schema)
    if found is not None and found > VERSION:
        raise SchemaMismatch(
            f"the outbox in this file has version {found}, this Tallymark knows {VERSION}",
            remedy="upgrade Tallymark here before you use this file",
        )


@cache
def _statements(schema: str) -> tuple[str, ...]:
    text = (files(_PACKAGE) / "schema.sql").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("--")]
    filled = "\n".join(lines).replace("{schema}", checked_schema(schema)).replace("{now}", _NOW)
    return tuple(part.strip() for part in re.split(r";\s*$", filled, flags=re.MULTILINE) if part.strip())


def explain(error: sqlite3.Error, path: str) -> TallymarkError:
    """SQLite's failure in our words."""
    name = getattr(error, "sqlite_errorname", "") or ""
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return Unreachable(
            f"{path} is locked by another writer",
            remedy="SQLite has one writer at a time: keep transactions short",
        )
    if name.startswith(("SQLITE_CANTOPEN", "SQLITE_READONLY", "SQLITE_PERM")):
        return Unreachable(f"{path} cannot be opened", remedy="check the path and its rights")
    if name.startswith("SQLITE_NOTADB"):
        return SettingsError(f"{path} is not an SQLite database", remedy="give another path")
    if name.startswith("SQLITE_FULL"):
        return Unreachable(
            f"the disk that holds {path} is full", remedy="make room; nothing is lost meanwhile"
        )
    return Unreachable(f"SQLite says: {error} ({name or type(error).__name__}, {path})")
