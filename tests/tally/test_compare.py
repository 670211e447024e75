"""Two services' books side by side: what differs is named by column, and the repair makes them say the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg

from tallymark.pipeline.reconcilecompare import Compared, Table, frame_of
from tallymark.tally.comparing import repair_script, repair_sql
from tests import journal


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
