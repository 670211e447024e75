"""Two services' books side by side: what differs is named by column, and the repair makes them say the same."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tallymark.pipeline.reconcilecompare import Compared, Table, frame_of
from tallymark.tally.comparing import Difference, repair_script, repair_sql
from tests import journal
from tests.cli.conftest import Run
from tests.waiting import wait_for


def test_balances_that_are_out_of_step_are_named_and_mended(
    spark: Any, database: str, tmp_path: Path
) -> None:
    for name, kind in (("deposit", "numeric(12, 2)"), ("copy", "double precision")):
        rate = kind.partition("(")[0]
        journal.query(
            database, f"create table {name} (id text primary key, balance {kind}, note text, rate {rate})"
        )
        journal.query(
            database,
            f"insert into {name} select 'a' || n, n * 1.5, 'x', n / 100000.0 from generate_series(1, 200) n",
        )
        # From ten million on, and below a thousandth, Java writes a double with an exponent.
        journal.query(
            database,
            f"insert into {name} (id, balance, rate)"
            " values ('c1', 10000000, 0), ('c2', -123456789.25, 1e15), ('c3', '-0', -1.25e-9), ('c4', 1, 9876543.21)",
        )
    journal.query(database, "update copy set balance = 7.25 where id in ('a3', 'a4')")
    journal.query(database, "update copy set note = null where id = 'a5'")
    journal.query(database, "delete from copy where id = 'a6'")
    journal.query(database, "insert into copy values ('b''1', 1, null, 0)")

    def differences(right: Table) -> list[Any]:
        compared = Compared(spark, Table("", database, "deposit"), right, ["id"], [])
        try:
            assert compared.counts()[0] == 204
            return sorted(compared.differences(), key=lambda each: str(each.key["id"]))
        finally:
            compared.close()

    found = differences(Table("", database, "copy"))
    assert [(each.key["id"], each.kind, each.columns) for each in found] == [
        ("a3", "differs", {"balance": ("4.5", "7.25")}),
        ("a4", "differs", {"balance": ("6", "7.25")}),
        ("a5", "differs", {"note": ("x", None)}),
        ("a6", "missing-right", {}),
        ("b'1", "missing-left", {}),
    ]
    for statement in repair_sql("copy", found):
        journal.query(database, statement)
    assert differences(Table("", database, "copy")) == []
    # The same against files.
    frame = spark.createDataFrame(
        [("a1", 1.5, "x", 0.00001)], "id string, balance double, note string, rate double"
    )
    frame.write.parquet(str(tmp_path / "copy.parquet"))
    assert len(differences(Table("", path=tmp_path / "copy.parquet"))) == 203


def test_a_whole_number_cuts_the_reading_for_several_tasks(spark: Any, database: str) -> None:
    """And nothing is read twice or left out, a key that is null neither."""
    for name in ("ledger", "copy"):
        journal.query(database, f"create table {name} (n bigint, m integer)")
        journal.query(database, f"insert into {name} select n, n from generate_series(-50, 50) n")
        journal.query(database, f"insert into {name} values (null, 7)")
    journal.query(database, "update copy set m = 0 where n = 50 or n is null")
    one, other = (Table("", database, name) for name in ("ledger", "copy"))
    tasks = spark.sparkContext.defaultParallelism
    assert tasks > 1
    assert frame_of(spark, one, ["n"]).rdd.getNumPartitions() == tasks
    compared = Compared(spark, one, other, ["n"], [])
    try:
        assert compared.counts() == (102, 102)
        found = {each.key["n"]: each.columns for each in compared.differences()}
    finally:
        compared.close()
    assert found == {"50": {"m": ("50", "0")}, None: {"m": ("7", "0")}}


def test_a_repair_writes_times_as_they_were_compared_whatever_zone_a_session_has(
    spark: Any, database: str
) -> None:
    for name in ("ledger", "copy"):
        journal.query(database, f"create table {name} (id text primary key, at timestamptz, local timestamp)")
    for id_ in ("a1", "a2"):
        moment = "2026-11-01 12:00:00.5"
        journal.query(database, "insert into ledger values (%s, %s, %s)", [id_, f"{moment}+00", moment])
    journal.query(database, "insert into copy values ('a1', '2026-11-01 09:00+00', '2026-11-01 09:00')")

    def differences() -> list[Any]:
        compared = Compared(spark, Table("", database, "ledger"), Table("", database, "copy"), ["id"], [])
        try:
            return list(compared.differences())
        finally:
            compared.close()

    found = differences()
    assert len(found) == 2
    with psycopg.connect(database, autocommit=True, options="-c timezone=Asia/Tokyo") as connection:
        for statement in repair_script("copy", found):
            connection.execute(statement.encode())
    assert differences() == []


# How keys are written; what PostgreSQL writes in the same way as Spark is asked for by name.
_WRITTEN: dict[str, Callable[[int], str | None]] = {
    "text": lambda n: f"a'{n}" if n else None,
    "uuid": lambda n: f"00000000-0000-0000-0000-{n:012}" if n else None,
    "char(9)": lambda n: f"a{n}".ljust(9) if n else None,
    "bigint": lambda n: str(n) if n else None,
    "numeric": lambda n: f"{n}.5" if n else None,
}


@pytest.mark.parametrize("few", [5_000, pytest.param(0, marks=pytest.mark.full)])
@pytest.mark.parametrize("kind", ["text", pytest.param("bigint", marks=pytest.mark.full)])
def test_a_row_that_enters_both_tables_between_the_reads_is_no_difference(
    spark: Any, database: str, kind: str, few: int
) -> None:
    key = _WRITTEN[kind]
    for name in ("ledger", "copy"):
        journal.query(database, f"create table {name} (id {kind}, region integer, balance numeric)")
        for n in range(0, 9):
            journal.query(database, f"insert into {name} values (%s, 1, %s)", [key(n), n])
    # As the first look sees it, which reads the left table first.
    journal.query(database, "insert into copy values (%s, 1, 20)", [key(20)])
    journal.query(database, "insert into copy values (%s, 1, 21)", [key(21)])
    journal.query(database, "insert into ledger values (%s, 2, 22)", [key(22)])
    journal.query(database, "update copy set balance = 70 where balance in (0, 7)")
    one, other = (Table("", database, name) for name in ("ledger", "copy"))
    compared = Compared(spark, one, other, ["id", "region"], [], few=few)
    try:
        assert compared.counts() == (10, 11)
        # It was in the left one too, and a second has now arrived in the right one.
        journal.query(database, "insert into ledger values (%s, 1, 20)", [key(20)])
        journal.query(database, "insert into copy values (%s, 2, 22)", [key(22)])
        # What differs in another way by now is told as it is now.
        journal.query(database, "update copy set balance = 71 where id = %s", [key(7)])
        # What differs only since then is for the next run.
        journal.query(database, "insert into ledger values (%s, 1, 23)", [key(23)])
        found = {each.key["id"]: (each.kind, each.columns, each.right) for each in compared.differences()}
    finally:
        compared.close()
    assert found == {
        None: ("differs", {"balance": ("0", "70")}, {"balance": "70"}),
        key(7): ("differs", {"balance": ("7", "71")}, {"balance": "71"}),
        key(21): ("missing-left", {}, {"balance": "21"}),
    }


@pytest.mark.full
def test_whatever_a_key_is_it_is_found_again(spark: Any, database: str) -> None:
    """Also where the other table has it as another type, and something there that cannot be one of this."""
    for name, write in _WRITTEN.items():
        table = name.partition("(")[0]
        for side, kind in (("left", name), ("right", "text")):
            journal.query(database, f'create table "{table}_{side}" (id {kind}, m integer)')
            for n in (0, 1, 2):
                journal.query(database, f'insert into "{table}_{side}" values (%s, 1)', [write(n)])
        journal.query(database, f'update "{table}_right" set m = 2 where id is null or id = %s', [write(1)])
        journal.query(database, f"insert into \"{table}_right\" values ('none', 3)")
        one, other = (Table("", database, f"{table}_{side}") for side in ("left", "right"))

        def kinds(left: Table, right: Table) -> dict[str | None, str]:
            compared = Compared(spark, left, right, ["id"], [])
            try:
                return {each.key["id"]: each.kind for each in compared.differences()}
            finally:
                compared.close()

        mine = {None: "differs", write(1): "differs"}
        assert kinds(one, other) == {**mine, "none": "missing-left"}, name
        assert kinds(other, one) == {**mine, "none": "missing-right"}, name
        chosen = frame_of(spark, one, ["id"], {"id": {write(1), "none"}})
        assert chosen.count() == (3 if name == "numeric" else 1), name


def test_a_file_is_looked_at_again_beside_a_table(spark: Any, database: str, tmp_path: Path) -> None:
    journal.query(database, "create table copy (id text, n integer)")
    journal.query(database, "insert into copy values ('a', 1), ('b', 7), ('c', 1)")
    frame = spark.createDataFrame([("a", 1), ("b", 1), ("late", 1)], "id string, n integer")
    frame.write.parquet(str(tmp_path / "ledger.parquet"))
    file, copy = Table("", path=tmp_path / "ledger.parquet"), Table("", database, "copy")
    compared = Compared(spark, file, copy, ["id"], [])
    try:
        assert compared.counts() == (3, 3)
        journal.query(database, "insert into copy values ('late', 1)")
        assert {each.key["id"]: each.kind for each in compared.differences()} == {
            "b": "differs",
            "c": "missing-left",
        }
    finally:
        compared.close()


def test_the_verb_counts_by_column_and_writes_a_script_that_mends(
    spark: Any, database: str, run: Run, tmp_path: Path
) -> None:
    for name in ("ledger", "copy"):
        journal.query(database, f"create table {name} (id integer, n integer, note text)")
        journal.query(database, f"insert into {name} select i, i, 'x' from generate_series(1, 5) i")
    journal.query(database, "update copy set n = 0 where id in (1, 2)")
    journal.query(database, "update copy set note = null where id in (2, 3)")
    journal.query(database, "delete from copy where id = 4")
    journal.query(database, "insert into copy values (6, 6, 'it''s')")
    script = tmp_path / "mend.sql"
    sides = ["--left", f"{database}:ledger", "--right", f"{database}:copy", "--key", "id"]
    line = ["tally", "compare", *sides, "--conf", "spark.sql.shuffle.partitions=2", "--json"]
    found = run(*line, "--repair", str(script))
    assert found.code == 1, found.err
    assert found.json["by_kind"] == {"differs": 3, "missing-left": 1, "missing-right": 1}
    assert found.json["by_column"] == {"n": 2, "note": 2}
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(script.read_bytes())
    assert run(*line).code == 0


@pytest.mark.parametrize("unique", ["", "primary key"])
def test_a_repair_leaves_what_has_changed_since(database: str, unique: str) -> None:
    journal.query(database, f"create table copy (id text {unique}, n integer, at timestamptz)")
    journal.query(
        database, "insert into copy values ('there', 5, null), ('changed', 2, null), ('stands', 2, null)"
    )
    says = {"n": "1", "at": None}
    found = [
        Difference({"id": "there"}, "missing-right", says, {}, (1, 0)),
        Difference({"id": "new"}, "missing-right", says, {}, (1, 0)),
        Difference({"id": "changed"}, "missing-left", {}, says, (0, 1)),
        Difference({"id": "stands"}, "missing-left", {}, {"n": "2", "at": None}, (0, 1)),
    ]
    for statement in repair_sql("copy", found):
        journal.query(database, statement)
    rows = journal.query(database, "select id, n from copy order by id")
    assert rows == [("changed", 2), ("new", 1), ("there", 5)]


def test_a_repair_waits_for_whoever_inserts_the_same_row(database: str) -> None:
    """What an open transaction has inserted nobody else sees, and with a unique key its commit would fail the script."""
    journal.query(database, "create table copy (id text primary key, n integer)")
    missing = [Difference({"id": id_}, "missing-right", {"n": "1"}, {}, (1, 0)) for id_ in ("a", "b")]

    def mend() -> None:
        with psycopg.connect(database, autocommit=True) as connection:
            for statement in repair_script("copy", missing):
                connection.execute(statement.encode())

    waiting = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
    with ThreadPoolExecutor(1) as pool:
        with psycopg.connect(database) as other:
            other.execute("insert into copy values ('a', 5)")
            mended = pool.submit(mend)
            wait_for(lambda: journal.query(database, waiting) == [(1,)], what="the repair waits")
        mended.result(60)
    assert journal.query(database, "select id, n from copy order by id") == [("a", 5), ("b", 1)]
