"""Two services' books side by side: what differs is named by column, and the repair makes them say the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tallymark.pipeline.reconcilecompare import Compared, Table
from tallymark.tally.comparing import repair_sql
from tests import journal


def test_balances_that_are_out_of_step_are_named_and_mended(
    spark: Any, database: str, tmp_path: Path
) -> None:
    for name, kind in (("deposit", "numeric(12, 2)"), ("copy", "double precision")):
        journal.query(database, f"create table {name} (id text primary key, balance {kind}, note text)")
        journal.query(
            database, f"insert into {name} select 'a' || n, n * 1.5, 'x' from generate_series(1, 200) n"
        )
    journal.query(database, "update copy set balance = 7.25 where id in ('a3', 'a4')")
    journal.query(database, "update copy set note = null where id = 'a5'")
    journal.query(database, "delete from copy where id = 'a6'")
    journal.query(database, "insert into copy values ('b''1', 1, null)")

    def differences(right: Table) -> list[Any]:
        compared = Compared(spark, Table("", database, "deposit"), right, ["id"], [])
        try:
            assert compared.counts()[0] == 200
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
    frame = spark.createDataFrame([("a1", 1.5, "x")], "id string, balance double, note string")
    frame.write.parquet(str(tmp_path / "copy.parquet"))
    assert len(differences(Table("", path=tmp_path / "copy.parquet"))) == 199
