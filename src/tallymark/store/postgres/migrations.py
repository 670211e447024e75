"""Creates and migrates the schema: versioned, in one transaction, safe when two run at once.

Rolling upgrades: code whose newest migration is N runs on a schema of version N or N+1 (expand, then contract);
an older schema is refused with `tallymark init`, a newer one with "upgrade Tallymark".
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from importlib.resources import files

import psycopg

from tallymark.errors import SchemaMismatch, UsageError
from tallymark.lifecycle import Role
from tallymark.store.postgres.connection import Connection, connect, explain, place_at, place_of
from tallymark.store.queries import checked_schema

# One lane has the least latency, and one relay's worth of throughput; more lanes are for more relays.
DEFAULT_LANES = 1
# Rows that one partition of the outbox holds, and how many partitions stand ready before any relay has run.
PARTITION_ROWS = 1_000_000
PARTITIONS_AHEAD = 32
# The span of ids that one partition of the inbox holds, and how many such spans stand ready ahead of today.
INBOX_WIDTH = timedelta(days=1)
INBOX_AHEAD = 14

_PACKAGE = "tallymark.store.postgres"
_FILE = re.compile(r"^(\d{4})_(\w+)\.sql$")
_ROLE = re.compile(r"^-- role: (producer|consumer|both)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Migration:
    """One file of SQL, applied once."""

    version: int
    name: str
    role: Role
    sql: str

    def serves(self, role: Role) -> bool:
        return Role.BOTH in (self.role, role) or self.role is role


@dataclass(frozen=True, slots=True)
class MigrationReport:
    """What `migrate` did, or with dry_run would do."""

    schema: str
    role: Role
    version_before: int
    version_after: int
    applied: tuple[str, ...]
    sql: str
    outbox_id: str | None
    lanes: int | None


@cache
def known() -> tuple[Migration, ...]:
    """All migrations that this code brings, in order."""
    found = []
    for entry in (files(_PACKAGE) / "schema").iterdir():
        if match := _FILE.match(entry.name):
            text = entry.read_text(encoding="utf-8")
            role = _ROLE.search(text)
            if role is None:
                raise AssertionError(f"{entry.name} names no role")
            found.append(Migration(int(match[1]), match[2], Role(role[1]), text))
    return tuple(sorted(found, key=lambda migration: migration.version))


def migrate(
    url: str,
    *,
    schema: str = "tallymark",
    role: Role = Role.BOTH,
    dry_run: bool = False,
    lanes: int | None = None,
    notify: bool | None = None,
    partition_rows: int = PARTITION_ROWS,
    partitions_ahead: int = PARTITIONS_AHEAD,
    inbox_width: timedelta = INBOX_WIDTH,
) -> MigrationReport:
    """Bring the schema to this code's version for `role`. The second run changes nothing."""
    checked_schema(schema)
    if lanes is not None and not 1 <= lanes <= 256:
        raise UsageError(f"{lanes} lanes cannot be had", remedy="choose from 1 to 256 lanes")
    with connect(url, application="tallymark init", autocommit=False) as connection:
        try:
            # Two at once: the second waits here, then finds nothing to do.
            connection.execute(
                "select pg_advisory_xact_lock(hashtextextended('tallymark migrate ' || %s, 0))", [schema]
            )
            _refuse_encoding(connection, url)
            before = applied_versions(connection, schema)
            _refuse_newer(schema, before)
            todo = [m for m in known() if m.version not in before and m.serves(role)]
            # The tag starts the keys of our floors: random, so that two schemas of one database differ.
            tag = 1 + secrets.randbelow(32767)
            scripts = {m: m.sql.replace("{schema}", schema).replace("{tag}", str(tag)) for m in todo}
            sql = "\n\n".join(f"-- {m.version:04} {m.name}\n{script}" for m, script in scripts.items())
            if not dry_run:
                for migration, script in scripts.items():
                    _apply(connection, migration, script, schema)
                if any(m.name == "outbox" for m in todo):
                    _found_outbox(
                        connection, schema, tag, lanes or DEFAULT_LANES, partition_rows, partitions_ahead
                    )
                if any(m.name == "inbox" for m in todo):
                    _found_inbox(connection, schema, inbox_width)
                if notify is not None:
                    _set_notify(connection, schema, notify)
            identity = _identity(connection, schema) if not dry_run else None
            if identity and lanes is not None and identity[1] != lanes:
                raise UsageError(
                    f"the outbox in schema {schema} has {identity[1]} lanes, not {lanes}",
                    remedy=f"change them with `tallymark relay lanes {lanes}` when nothing is waiting to be sent",
                )
        except psycopg.Error as error:
            raise explain(error, url) from error
        if dry_run:
            connection.rollback()
        after = {m.version for m in todo} | before
        return MigrationReport(
            schema=schema,
            role=role,
            version_before=max(before, default=0),
            version_after=max(after, default=0),
            applied=tuple(f"{m.version:04}_{m.name}" for m in todo),
            sql=sql,
            outbox_id=identity[0] if identity else None,
            lanes=identity[1] if identity else None,
        )


def grants(schema: str) -> str:
    """The least-privilege script for this schema."""
    text = (files(_PACKAGE) / "grants.sql").read_text(encoding="utf-8")
    return text.replace("{schema}", checked_schema(schema))


def apply_grants(url: str, *, schema: str = "tallymark") -> None:
    """Make the group roles and give each what it needs, and no more. Safe to repeat."""
    with connect(url, application="tallymark init", autocommit=False) as connection:
        try:
            connection.execute(grants(schema).encode())
        except psycopg.Error as error:
            raise explain(error, url) from error


def applied_versions(connection: Connection, schema: str) -> set[int]:
    """Versions already applied; none where the schema is missing."""
    exists = connection.execute("select to_regclass(%s)", [f"{schema}.migrations"]).fetchone()
    if exists is None or exists[0] is None:
        return set()
    return {row[0] for row in connection.execute(f"select version from {schema}.migrations")}


def require_schema(connection: Connection, schema: str, role: Role) -> None:
    """Refuse a schema that is missing, too old or too new for this code."""
    applied = applied_versions(connection, checked_schema(schema))
    _refuse_newer(schema, applied)
    needed = {m.version for m in known() if m.serves(role) and m.role is not Role.BOTH}
    if applied and needed <= applied:
        return
    where = f"schema {schema} in database {place_at(connection)}"
    if not applied:
        what = f"there is no {where}"
    elif needed & applied:
        what = f"{where} is older than this Tallymark: it lacks migration {min(needed - applied)}"
    else:
        what = f"{where} has no tables for a {role}"
    name = connection.info.dbname
    raise SchemaMismatch(
        what, remedy=f"run `tallymark init --role {role} --database {name}` for it, or with its URL"
    )


def _refuse_encoding(connection: Connection, url: str) -> None:
    """Texts are written as UTF-8, in binary: in another encoding they would not be found again."""
    row = connection.execute("select current_setting('server_encoding')").fetchone()
    if row is not None and row[0] != "UTF8":
        raise UsageError(
            f"the database {place_of(url)} is encoded in {row[0]}, not in UTF8",
            remedy="create one with: create database NAME encoding 'UTF8' template template0",
        )


def _refuse_newer(schema: str, applied: set[int]) -> None:
    newest = max(m.version for m in known())
    if max(applied, default=0) > newest + 1:
        raise SchemaMismatch(
            f"schema {schema} has version {max(applied)}, this Tallymark knows {newest} and runs on at most {newest + 1}",
            remedy="upgrade Tallymark here before you use this database",
        )


def _apply(connection: Connection, migration: Migration, script: str, schema: str) -> None:
    # A file of several statements: bytes take psycopg's simple protocol, with no parameters.
    connection.execute(script.encode())
    connection.execute(
        f"insert into {schema}.migrations (version, name, role) values (%s, %s, %s)",
        [migration.version, migration.name, str(migration.role)],
    )


def _found_outbox(
    connection: Connection, schema: str, tag: int, lanes: int, partition_rows: int, ahead: int
) -> None:
    connection.execute(
        f"insert into {schema}.outbox_identity (tag, lanes, partition_rows) values (%s, %s, %s)",
        [tag, lanes, partition_rows],
    )
    connection.execute(f"insert into {schema}.lanes (lane) select generate_series(0, %s - 1)", [lanes])
    connection.execute(f"select {schema}.make_partitions(%s)", [partition_rows * (ahead - 1)])


def _found_inbox(connection: Connection, schema: str, width: timedelta) -> None:
    connection.execute(f"insert into {schema}.inbox_identity (partition_width) values (%s)", [width])
    connection.execute(f"select {schema}.make_inbox_partitions(now() + %s)", [width * INBOX_AHEAD])


def _set_notify(connection: Connection, schema: str, notify: bool) -> None:
    """Whether writers wake relays: a trigger that is there or not, so that those who do without pay nothing."""
    connection.execute(f"drop trigger if exists outbox_wake on {schema}.outbox")
    if notify:
        connection.execute(
            f"create trigger outbox_wake after insert on {schema}.outbox"
            f" for each statement execute function {schema}.outbox_wake()"
        )
    connection.execute(f"update {schema}.outbox_identity set notify = %s", [notify])


def _identity(connection: Connection, schema: str) -> tuple[str, int] | None:
    exists = connection.execute("select to_regclass(%s)", [f"{schema}.outbox_identity"]).fetchone()
    if exists is None or exists[0] is None:
        return None
    row = connection.execute(f"select outbox_id::text, lanes from {schema}.outbox_identity").fetchone()
    return (row[0], row[1]) if row else None
