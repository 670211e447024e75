"""One consistent point of one database, for readers elsewhere: an exported snapshot, and how to cut the tables.

While it is open, sessions that are given its name see exactly what was committed at that moment, however long they take.
It holds back what vacuum may clean up, so it is open for as long as the reading takes and no longer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict

from tallymark.errors import SchemaMismatch, UsageError
from tallymark.store.postgres.connection import Connection, connect, explain, place_of
from tallymark.store.queries import load

# What is read, and by what it is cut: a number that rises, or ids where there is no such number with an index.
TABLES = {
    "outbox": "position",
    "batches": "covered",
    "inbox": "id",
    "applications": "id",
    "dead_letters": "number",
}
_SAME_IN_JDBC = frozenset({"user", "password", "sslmode", "sslrootcert", "sslcert", "sslkey"})
PIECE_BYTES = 32 * 1024 * 1024
_MOST_PIECES = 64
_PAGE = 8192
_SAMPLE_PAGES = 300


@dataclass(frozen=True, slots=True)
class Cut:
    """A table, and conditions that divide it: every row meets exactly one."""

    table: str
    conditions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Point:
    """The moment that is read."""

    # What other sessions call it: SET TRANSACTION SNAPSHOT.
    name: str
    # Which transactions it sees, in PostgreSQL's own form.
    visible: str
    taken_at: datetime
    wal: str
    database: str
    # Who the outbox is; None where there is none.
    outbox_id: str | None
    # Every position up to here is in it or never will be: its transaction had ended.
    closed_position: int | None
    # How far each consumer had come: [consumer, topic, partition, next offset, topic id].
    positions: tuple[tuple[str, str, int, int, str], ...]
    cuts: tuple[Cut, ...]


@contextmanager
def exported(url: str, *, schema: str, piece_bytes: int = PIECE_BYTES) -> Iterator[Point]:
    """Hold one consistent point open."""
    queries = load("tallymark.store.postgres", "snapshot.sql", schema)
    with connect(url, application="tallymark pipeline snapshot") as connection:
        try:
            connection.execute("set idle_in_transaction_session_timeout = 0")
            names = {row[0] for row in connection.execute(queries["there"], {"names": list(TABLES)})}
            if not names:
                raise SchemaMismatch(
                    f"there is nothing of Tallymark's in {place_of(url)}", remedy="run `tallymark init`"
                )
            closed = _closed(connection, schema) if "outbox" in names else None
            connection.execute("begin isolation level repeatable read read only")
            for table in sorted(names):
                connection.execute(queries["hold"].replace("{table}", f"{schema}.{table}"))
            name, visible, taken_at, wal, database = _row(connection, queries["begin"])
            yield Point(
                name,
                visible,
                taken_at,
                wal,
                database,
                outbox_id=_row(connection, queries["outbox_id"])[0] if "outbox" in names else None,
                closed_position=closed,
                positions=tuple(connection.execute(queries["positions"])) if "inbox" in names else (),
                cuts=tuple(
                    Cut(
                        table,
                        conditions(column, _cuts(connection, queries, f"{schema}.{table}", piece_bytes)),
                    )
                    for table, column in TABLES.items()
                    if table in names
                ),
            )
            connection.execute("rollback")
        except psycopg.Error as error:
            raise explain(error, url) from error


def _closed(connection: Connection, schema: str) -> int:
    """As the relay does: the sequence first, then the floors (pitfall 3)."""
    queries = load("tallymark.store.postgres", "relay.sql", schema)
    drawn, floor = _row(connection, queries["frontier"], {"covered": -1})
    return int(drawn if floor is None else min(drawn, floor))


def _cuts(connection: Connection, queries: dict[str, str], name: str, piece_bytes: int) -> list[str]:
    table = name.rpartition(".")[2]
    size = _row(connection, queries["size"], {"table": name})[0]
    pieces = min(_MOST_PIECES, size // piece_bytes + 1)
    if pieces == 1:
        return []
    if TABLES[table] == "id":
        percent = min(100.0, 100.0 * _SAMPLE_PAGES / (size / _PAGE))
        ids = [row[0] for row in connection.execute(queries[f"some_{table}"], {"percent": percent})]
        return [f"'{each}'" for each in quantiles(ids, pieces)]
    low, high = _row(connection, queries[f"ends_{table}"])
    return [] if low is None else [str(each) for each in evenly(low, high, pieces)]


def conditions(column: str, cuts: Sequence[str]) -> tuple[str, ...]:
    """Conditions between which no row falls through: the ends are open. Pure."""
    if not cuts:
        return ("true",)
    between = [f"{column} >= {low} and {column} < {high}" for low, high in pairwise(cuts)]
    return (f"{column} < {cuts[0]}", *between, f"{column} >= {cuts[-1]}")


def evenly(low: int, high: int, pieces: int) -> list[int]:
    """Numbers that cut a range into so many pieces. Pure."""
    step = (high + 1 - low) / pieces
    return sorted({low + round(step * number) for number in range(1, pieces)} - {low})


def quantiles(ordered: Sequence[str], pieces: int) -> list[str]:
    """What cuts a sample into so many pieces, each cut once. Pure."""
    if not ordered:
        return []
    return sorted({ordered[len(ordered) * number // pieces] for number in range(1, pieces)})


def jdbc_options(url: str) -> dict[str, str]:
    """The same database in JDBC's words."""
    parts = {name: str(value) for name, value in conninfo_to_dict(url).items() if value is not None}
    hosts = parts.pop("host", "localhost").split(",")
    if any(host.startswith("/") for host in hosts):
        raise UsageError(
            "Spark reaches PostgreSQL over TCP only, and this URL names a socket",
            remedy="give host and port, as in postgresql://user@127.0.0.1:5432/name",
        )
    ports = parts.pop("port", "").split(",")
    if len(ports) != len(hosts):
        ports = ports[:1] * len(hosts)
    places = ",".join(f"{host}:{port or 5432}" for host, port in zip(hosts, ports, strict=True))
    return {
        "url": f"jdbc:postgresql://{places}/{parts.get('dbname') or parts.get('user', '')}",
        "driver": "org.postgresql.Driver",
        "ApplicationName": "tallymark pipeline snapshot",
        **{name: value for name, value in parts.items() if name in _SAME_IN_JDBC},
    }


def _row(connection: Connection, query: str, parameters: dict[str, Any] | None = None) -> tuple[Any, ...]:
    row = connection.execute(query, parameters).fetchone()
    if row is None:
        raise SchemaMismatch("the schema is incomplete", remedy="run `tallymark init`")
    return row
