"""The job: outbox, batches, inbox, applications and dead letters to Parquet, at one consistent point of one database.

Every task reads over a session that was given the driver's exported snapshot before its query: all tables, and all pieces
of a table, are seen as they were at the same moment, while writers go on. The folder appears whole or not at all.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tallymark import __version__
from tallymark.crashpoint import reached
from tallymark.errors import Problem, TallymarkError, Unreachable, UsageError
from tallymark.pipeline import failures
from tallymark.pipeline.archivefiles import local
from tallymark.pipeline.machine import has_ended, process_here
from tallymark.pipeline.rowcount import RowCount
from tallymark.store.postgres.snapshot import Cut, Point, jdbc_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FORMAT = 1
MANIFEST = "manifest.json"
STATIONS = "stations.json"
# Rows at a time: a value may be a megabyte.
_FETCH = "1000"


@dataclass(frozen=True, slots=True)
class Table:
    """One table of a snapshot."""

    name: str
    rows: int
    files: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a snapshot is of: written beside the tables."""

    folder: str
    database: str
    outbox_id: str | None
    taken_at: str
    visible: str
    wal: str
    closed_position: int | None
    positions: list[list[Any]]
    tables: list[Table]
    version: str = __version__


def take(
    spark: SparkSession,
    url: str,
    schema: str,
    point: Point,
    folder: Path,
    note: Callable[[Table], None] = lambda _table: None,
    *,
    stations: Mapping[str, Any] | None = None,
) -> Snapshot:
    """Read everything at this point, into a folder that was not there before.

    `stations`: how far everybody had come before it (store/postgres/tallyrecord.py); the tally asks for it.
    """
    with _whole(folder) as aside:
        tables = []
        for cut in point.cuts:
            count = RowCount()
            try:
                rows = count.over(frame(spark, url, schema, point, cut))
                rows.write.option("compression", "zstd").parquet(local(aside / cut.table))
            except Exception as error:
                raise explained(error) from error
            reached("snapshot.table")
            tables.append(_counted(aside / cut.table))
            count.refuse_other(tables[-1].rows, folder.absolute().parent)
            note(tables[-1])
        made = Snapshot(
            folder=str(folder.absolute()),
            database=point.database,
            outbox_id=point.outbox_id,
            taken_at=point.taken_at.isoformat(),
            visible=point.visible,
            wal=point.wal,
            closed_position=point.closed_position,
            positions=[list(each) for each in point.positions],
            tables=tables,
        )
        if stations is not None:
            (aside / STATIONS).write_text(json.dumps(stations) + "\n")
        body = {"format": FORMAT, **asdict(made)}
        del body["folder"]  # it may be moved
        (aside / MANIFEST).write_text(json.dumps(body, indent=1) + "\n")
    return made


def frame(spark: SparkSession, url: str, schema: str, point: Point, cut: Cut) -> DataFrame:
    """One table at this point, a task for each condition."""
    options = jdbc_options(url)
    address = options.pop("url")
    return spark.read.jdbc(
        address,
        f"{schema}.{cut.table}",
        predicates=list(cut.conditions),
        properties={
            **options,
            # With a fetch size the driver begins a transaction; the first thing in it is to see what we see.
            "fetchsize": _FETCH,
            "sessionInitStatement": "set transaction isolation level repeatable read, read only; "
            f"set transaction snapshot '{point.name}'",
        },
    )


def read(folder: Path) -> Snapshot:
    """What was written beside the tables; a clear error where this is no snapshot."""
    try:
        raw = json.loads((folder / MANIFEST).read_text())
        if raw.pop("format") != FORMAT:
            raise ValueError("format")
        return Snapshot(
            **{**raw, "folder": str(folder.absolute()), "tables": [Table(**each) for each in raw["tables"]]}
        )
    except OSError as error:
        raise UsageError(
            f"there is no snapshot in {folder}: {error.strerror}",
            remedy="`tallymark pipeline snapshot` makes one",
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise Problem(f"{folder / MANIFEST} is damaged or of another version") from error


def stations(folder: Path) -> dict[str, Any]:
    """How far everybody had come."""
    try:
        return dict(json.loads((folder / STATIONS).read_text()))
    except FileNotFoundError as error:
        raise Problem(
            f"the snapshot {folder} does not say how far everybody had come: an older version made it",
            remedy="make a new one: `tallymark pipeline snapshot`",
        ) from error
    except (OSError, ValueError) as error:
        raise Problem(f"{folder / STATIONS} is damaged") from error


def explained(error: Exception) -> TallymarkError:
    """What the JDBC driver says, in our words."""
    if isinstance(error, TallymarkError):
        return error
    found = re.search(r"org\.postgresql\.util\.PSQLException: ([^\n]*)", str(error))
    if found is None:
        return failures.explain(error)
    said = found.group(1).strip()
    if "snapshot" in said and ("does not exist" in said or "invalid" in said):
        return Unreachable(
            "the point that was read is gone: the driver's session was ended", remedy="run it again"
        )
    return Unreachable(f"PostgreSQL refused a task: {said[:300]}", remedy="check that executors reach it")


def sweep(folder: Path) -> None:
    """What was begun beside it and came to nothing: by this process, where Spark has ended, or by one that was killed."""
    for aside in folder.absolute().parent.glob(".*.tallymark-*"):
        named = re.fullmatch(r"\..+\.tallymark-(\w+-\d+)-\w+", aside.name)
        if named and (named[1] == process_here() or has_ended(named[1])):
            shutil.rmtree(aside, ignore_errors=True)


@contextmanager
def _whole(folder: Path) -> Iterator[Path]:
    """A folder beside it, which takes its name at the end."""
    if folder.exists():
        raise UsageError(
            f"{folder} is there already", remedy="name a folder that is not: a snapshot is not changed"
        )
    token = f"tallymark-{process_here()}-{secrets.token_hex(4)}"
    aside = folder.absolute().with_name(f".{folder.name}.{token}")
    try:
        aside.mkdir(parents=True)
    except OSError as error:
        raise UsageError(
            f"{folder} cannot be made: {error.strerror}", remedy="choose another folder"
        ) from error
    try:
        yield aside
        os.rename(aside, folder)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise


def _counted(folder: Path) -> Table:
    import pyarrow.parquet as pq

    files = sorted(folder.glob("*.parquet"))
    return Table(
        folder.name,
        rows=sum(pq.read_metadata(path).num_rows for path in files),
        files=len(files),
        bytes=sum(path.stat().st_size for path in files),
    )
