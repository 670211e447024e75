"""A database's stations to Parquet at one point: every task sees the same moment, however late it reads."""

from __future__ import annotations

import json
import signal
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pyarrow.parquet as pq
import pytest

from tallymark.cli.main import EXIT_INTERRUPTED
from tallymark.errors import Problem, SchemaMismatch, Unreachable, UsageError
from tallymark.lifecycle import Role
from tallymark.message import new_id
from tallymark.pipeline import snapshot as snapshots
from tallymark.pipeline.machine import process_here
from tallymark.pipeline.snapshot import read, sweep, take
from tallymark.store.postgres.migrations import migrate
from tallymark.store.postgres.snapshot import (
    conditions,
    evenly,
    exported,
    jdbc_options,
    quantiles,
)
from tests.children import start_child

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TABLES = ("applications", "batches", "dead_letters", "inbox", "outbox")


def add(url: str, count: int) -> list[str]:
    """The same messages to four tables, in one transaction: at any moment all have them, or none."""
    ids = [new_id() for _ in range(count)]
    with psycopg.connect(url) as connection:
        for each in ids:
            row = {"id": each, "offset": each.int % 1000, "value": b"v" * 200}
            connection.execute(
                "insert into tallymark.outbox (id, topic, key, value, headers) values (%(id)s, 't', 'k', %(value)s, "
                """'{"a": "b"}')""",
                row,
            )
            connection.execute(
                'insert into tallymark.inbox (id, source, topic, partition, "offset", key, value, consumer) '
                "values (%(id)s, 's', 't', 0, %(offset)s, 'k', %(value)s, 'c')",
                row,
            )
            connection.execute(
                'insert into tallymark.applications (id, source, consumer, topic, partition, "offset", attempt, '
                "outcome) values (%(id)s, 's', 'c', 't', 0, %(offset)s, 1, 'applied')",
                row,
            )
            connection.execute(
                'insert into tallymark.dead_letters (consumer, source, id, topic, partition, "offset", state, reason) '
                "values ('c', 's', %(id)s, 't', 0, %(offset)s, 'dead', 'x')",
                row,
            )
    return [str(each) for each in ids]


def ids_in(folder: Path, table: str) -> list[str]:
    return sorted(
        row["id"] for path in (folder / table).glob("*.parquet") for row in pq.read_table(path).to_pylist()
    )


def test_every_table_is_of_the_same_moment(spark: SparkSession, database: str, tmp_path: Path) -> None:
    """Rows come, go and change between the moment and the reading; many pieces, so that tasks begin late."""
    migrate(database, role=Role.BOTH)
    before = sorted(add(database, 400))
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("vacuum analyze")
    folder = tmp_path / "snapshot"
    with exported(database, schema="tallymark", piece_bytes=30_000) as point:
        assert max(len(cut.conditions) for cut in point.cuts) > 2
        add(database, 50)
        with psycopg.connect(database) as connection:
            connection.execute("delete from tallymark.dead_letters where number % 3 = 0")
            connection.execute("update tallymark.inbox set value = 'changed' where partition = 0")
        made = take(spark, database, "tallymark", point, folder)
    for table in ("outbox", "inbox", "applications", "dead_letters"):
        assert ids_in(folder, table) == before, table
    values = {
        row["value"]
        for path in (folder / "inbox").glob("*.parquet")
        for row in pq.read_table(path).to_pylist()
    }
    assert values == {b"v" * 200}
    assert {each.name: each.rows for each in made.tables} == {
        table: 0 if table == "batches" else 400 for table in TABLES
    }
    assert made.closed_position == 400
    assert uuid.UUID(made.outbox_id or "")
    assert read(folder) == made
    with pytest.raises(UsageError, match="is there already"):
        take(spark, database, "tallymark", point, folder)


def test_a_writer_under_way_is_not_in_it_and_the_bound_says_so(
    spark: SparkSession, database: str, tmp_path: Path
) -> None:
    """Pitfall 3: a position below others that is not committed yet. Up to closed_position nothing can be missing."""
    migrate(database, role=Role.PRODUCER)
    insert = "insert into tallymark.outbox (id, topic, value) values (gen_random_uuid(), 't', 'v')"
    with psycopg.connect(database) as first, psycopg.connect(database) as late:
        first.execute(insert)
        first.commit()
        late.execute(insert)
        first.execute(insert)
        first.commit()
        with exported(database, schema="tallymark") as point:
            late.commit()
            made = take(spark, database, "tallymark", point, tmp_path / "s")
    positions = [
        row["position"]
        for path in (tmp_path / "s/outbox").glob("*.parquet")
        for row in pq.read_table(path).to_pylist()
    ]
    assert sorted(positions) == [1, 3]
    assert made.closed_position == 1
    assert [each.name for each in made.tables] == ["outbox", "batches"]


def test_nothing_stays_of_a_snapshot_that_failed(spark: SparkSession, database: str, tmp_path: Path) -> None:
    migrate(database, role=Role.PRODUCER)
    with exported(database, schema="tallymark") as point:
        pass
    with pytest.raises(Unreachable, match="the point that was read is gone"):
        take(spark, database, "tallymark", point, tmp_path / "s")
    assert not list(tmp_path.iterdir())


def test_a_snapshot_counts_what_tasks_have_written(
    spark: SparkSession, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Executors with disks of their own: what they have written is not where the driver looks."""
    migrate(database, role=Role.BOTH)
    add(database, 30)

    def elsewhere(_point: str) -> None:
        for file in tmp_path.glob(".s.*/outbox/*.parquet"):
            file.unlink()

    monkeypatch.setattr(snapshots, "reached", elsewhere)
    with (
        exported(database, schema="tallymark") as point,
        pytest.raises(Problem, match="30 rows were written, 0 are here: do driver and executors share"),
    ):
        take(spark, database, "tallymark", point, tmp_path / "s")
    assert not list(tmp_path.iterdir())


def test_a_database_without_our_tables(database: str) -> None:
    with (
        pytest.raises(SchemaMismatch, match="nothing of Tallymark's"),
        exported(database, schema="tallymark"),
    ):
        pytest.fail("no point")


@pytest.mark.full
def test_the_verb(make_database: Callable[[], str], tmp_path: Path) -> None:
    url = make_database()
    migrate(url, role=Role.BOTH)
    add(url, 20)
    folder = tmp_path / "snapshot"
    arguments = [
        "-m",
        "tallymark",
        "pipeline",
        "snapshot",
        str(folder),
        "--database",
        url,
        "--master",
        "local[2]",
        "--json",
    ]
    with start_child(arguments) as child:
        assert child.wait(240) == 0, child.output
        done = json.loads(child.output.splitlines()[-1])
    assert {each["name"]: each["rows"] for each in done["tables"]}["outbox"] == 20
    with start_child(arguments) as child:
        assert child.wait(240) == 2
        assert "is there already" in child.output


@pytest.mark.full
def test_a_snapshot_that_is_told_to_stop_leaves_nothing(database: str, tmp_path: Path) -> None:
    """Of itself, nor of one that was killed before it."""
    migrate(database, role=Role.BOTH)
    add(database, 20)
    words = ["-m", "tallymark", "pipeline", "snapshot", str(tmp_path / "s"), "--database", database]
    words += ["--master", "local[2]"]
    with start_child(words, crash_point="snapshot.table") as child:
        assert child.wait(120) == -signal.SIGKILL, child.output
    with start_child(words, crash_point="snapshot.table:1:stop") as child:
        child.wait_stopped(120)
        assert [path.name.partition("-")[0] for path in tmp_path.iterdir()] == [".s.tallymark"] * 2
        child.terminate()
        child.cont()
        assert child.wait(60) == EXIT_INTERRUPTED, child.output
        assert "Traceback" not in child.output
    assert not list(tmp_path.iterdir())


def test_what_a_killed_snapshot_left_is_swept_away(tmp_path: Path) -> None:
    """That of this process, too; but not what one of another machine is at."""
    with start_child(["-c", ""]) as ended:
        ended.wait()
    here, boot = process_here(), process_here().partition("-")[0]
    for process in (here, f"{boot}-{ended.pid}", f"00000000-{ended.pid}", f"{boot}-1"):
        (tmp_path / f".s.tallymark-{process}-0a1b2c3d").mkdir()
    (tmp_path / ".s.older").mkdir()
    sweep(tmp_path / "new")
    left = {".s.older", f".s.tallymark-00000000-{ended.pid}-0a1b2c3d", f".s.tallymark-{boot}-1-0a1b2c3d"}
    assert {path.name for path in tmp_path.iterdir()} == left


def test_pieces_leave_no_row_out() -> None:
    assert conditions("n", []) == ("true",)
    assert conditions("n", ["5"]) == ("n < 5", "n >= 5")
    assert conditions("n", ["5", "9"]) == ("n < 5", "n >= 5 and n < 9", "n >= 9")
    assert evenly(1, 100, 4) == [26, 51, 76]
    assert evenly(7, 7, 4) == [8]
    assert evenly(1, 2, 10) == [2, 3]
    assert quantiles(["a", "b", "c", "d"], 2) == ["c"]
    assert quantiles(["a", "a", "a"], 3) == ["a"]
    assert quantiles([], 3) == []


def test_a_database_in_the_words_of_jdbc() -> None:
    found = jdbc_options("postgresql://me:secret@db.example:5433/bank?sslmode=require")
    assert found["url"] == "jdbc:postgresql://db.example:5433/bank"
    assert (found["user"], found["password"], found["sslmode"]) == ("me", "secret", "require")
    assert jdbc_options("postgresql://a,b:6/x")["url"] == "jdbc:postgresql://a:5432,b:6/x"
    with pytest.raises(UsageError, match="names a socket"):
        jdbc_options("postgresql:///bank?host=/var/run")
