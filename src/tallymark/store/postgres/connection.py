"""Connections to PostgreSQL, with the settings that our promises need, and errors that say what to do.

Every connection sets TCP keepalives on both sides and `idle_in_transaction_session_timeout`, so that a dead or stopped
process of ours cannot hold a row or a floor for hours; reads as READ COMMITTED, on the primary; and waits for the disk
where it commits, whatever the database's default is. Behind a pooler in transaction mode all but the client's keepalives
are left to its administrator: what is set there stays for others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import psycopg
from psycopg.conninfo import conninfo_to_dict

from tallymark.errors import (
    AccessDenied,
    OutcomeUnknown,
    Problem,
    SchemaMismatch,
    SettingsError,
    TallymarkError,
    Unreachable,
)

Connection = psycopg.Connection[tuple[Any, ...]]

_KEEPALIVE: dict[str, Any] = {
    "keepalives": 1,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    # Keepalives say nothing while something sent waits to be acknowledged: then this does. Ignored where TCP lacks it.
    "tcp_user_timeout": 25_000,
}
# The same from the server's side: it would learn for hours of nothing that a client is gone, and keep its locks.
KEEPALIVES = {"tcp_keepalives_idle": "10", "tcp_keepalives_interval": "5", "tcp_keepalives_count": "3"}
_SESSION = "; ".join(
    [
        *(f"set {name} = {value}" for name, value in KEEPALIVES.items()),
        "set idle_in_transaction_session_timeout = '60s'",
        "set default_transaction_isolation = 'read committed'",
        # What Kafka is told must not be forgotten here by a crash. More than this (remote_apply) is left as it is.
        "select set_config('synchronous_commit', 'on', false) where current_setting('synchronous_commit') = 'off'",
    ]
)
_AUTHENTICATION = ("28000", "28P01")

# PostgreSQL's codes for "this connection or server is going away": reconnect, nothing is wrong with the statement.
_GONE = ("57P01", "57P02", "57P03", "08000", "08003", "08006", "08001", "08004")


def place_of(url: str) -> str:
    """Where the URL points to, without its password."""
    try:
        parts = conninfo_to_dict(url)
    except psycopg.ProgrammingError:
        return urlsplit(url).hostname or "the database"
    host, port = parts.get("host", "localhost"), parts.get("port", "5432")
    return f"{parts.get('dbname') or parts.get('user', '')} at {host}:{port}"


def place_at(connection: Connection) -> str:
    """Where a connection leads to."""
    info = connection.info
    return f"{info.dbname} at {info.host or 'localhost'}:{info.port}"


def connect(
    url: str,
    *,
    application: str,
    autocommit: bool = True,
    timeout_s: int = 10,
    kind: type[Connection] = psycopg.Connection,
    prepare_threshold: int | None = None,
) -> Connection:
    """Open a connection to the primary, or say in one line why it cannot be had.

    Who gives a `prepare_threshold` has the session to itself; others may stand behind a pooler in transaction mode.
    """
    connection: Connection | None = None
    try:
        connection = kind.connect(
            url,
            autocommit=autocommit,
            connect_timeout=timeout_s,
            application_name=application,
            target_session_attrs="read-write",
            # Statements are prepared by the server only where a pooler in transaction mode is not in between.
            prepare_threshold=prepare_threshold,
            **_KEEPALIVE,
        )
        # Not in the start-up packet: PgBouncer refuses options that it does not track.
        connection.autocommit = True
        set_session(connection, _SESSION, shared=prepare_threshold is None)
        connection.autocommit = autocommit
        return connection
    except psycopg.Error as error:
        if connection is not None:
            connection.close()
        raise explain(error, url) from error


def set_session(connection: Connection, settings: str, *, shared: bool = True) -> None:
    """Set what is to hold for this session; nothing where a pooler would hand it on to whoever comes next."""
    if not shared or is_direct(connection):
        connection.execute(settings)


def is_direct(connection: Connection) -> bool:
    """Whether the server's session is this connection's alone: a pooler gives out process numbers of its own."""
    row = connection.execute("select pg_backend_pid()").fetchone()
    return row is None or bool(row[0] == connection.info.backend_pid)


def is_gone(error: BaseException) -> bool:
    """Whether the connection, not the statement, failed."""
    if isinstance(error, psycopg.errors.DiskFull | psycopg.errors.OutOfMemory):
        return False
    if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
        code = getattr(error, "sqlstate", None)
        return code is None or code in _GONE
    return False


def commit(connection: Connection, end: Callable[[], None], url: str) -> None:
    """Commit. What the database refuses now (a deferred constraint) is raised as it is; a lost session is unknown."""
    try:
        end()
    except psycopg.Error as error:
        if is_gone(error) or connection.closed:
            if not connection.closed:
                connection.close()
            raise OutcomeUnknown(f"lost the connection to {place_of(url)} during a commit") from error
        raise


@contextmanager
def transaction(url: str, *, application: str) -> Iterator[Connection]:
    """One, with all that goes wrong in it said in our words: at its end, too, where it may have been done."""
    with connect(url, application=application, autocommit=False) as connection:
        try:
            yield connection
            commit(connection, connection.commit, url)
        except psycopg.Error as error:
            raise explain(error, url) from error


def explain(error: psycopg.Error, url: str) -> TallymarkError:  # noqa: PLR0911 - one return per meaning
    """The same failure in our words, with what to do about it."""
    where = place_of(url)
    code = error.sqlstate
    text = str(error).strip().splitlines()
    last = text[-1].strip() if text else type(error).__name__
    if isinstance(error, psycopg.ProgrammingError) and code is None:
        return SettingsError(
            "the database's URL cannot be read", remedy="write postgresql://user:password@host:port/database"
        )
    if code in _AUTHENTICATION or "password authentication failed" in last or "no password supplied" in last:
        return AccessDenied(
            f"PostgreSQL refuses to let us in to {where}", remedy="check the user name and the password"
        )
    if code == "3D000" or ("database" in last and "does not exist" in last):
        return Unreachable(f"there is no database {where}", remedy="create it, or correct the URL")
    if code == "42501":
        return AccessDenied(
            f"missing rights in {where}: {_primary(error)}",
            remedy="let a role with the right to create a schema run `tallymark init`, or grant the rights it names",
        )
    if code in ("42P01", "3F000", "42883"):
        return SchemaMismatch(
            f"the schema is missing or incomplete in {where}: {_primary(error)}",
            remedy="run `tallymark init --database …` with its name or URL",
        )
    if isinstance(error, psycopg.DataError) and code is None:  # refused before it was sent
        return Problem(f"PostgreSQL says: {last} ({where})")
    if code is None or is_gone(error):
        return Unreachable(
            f"PostgreSQL cannot be reached: {where} ({last})", remedy="check that it runs and is reachable"
        )
    return Problem(f"PostgreSQL says: {_primary(error)} ({code}, {where})")


def _primary(error: psycopg.Error) -> str:
    return error.diag.message_primary or str(error).strip()
