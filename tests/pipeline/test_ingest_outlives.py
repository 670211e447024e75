"""What an ingest outlives, and what it must not: checkpoints put back, an owner that comes, servers that are away."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tallymark.apply.handlers import Handlers
from tallymark.apply.incoming import Message
from tallymark.errors import EXIT_UNREACHABLE, OutcomeUnknown, Unreachable
from tallymark.inbox.ports import Wanted
from tallymark.lifecycle import OwnerKind
from tallymark.local.cluster import LocalCluster
from tallymark.pipeline.committing import Committed
from tallymark.pipeline.effects import FunctionEffect, HandlersEffect, Messages
from tallymark.pipeline.tenure import Held
from tallymark.store.postgres.inboxstore import PostgresInboxStore
from tests.inbox.ground import Ground, ends
from tests.pipeline.grounds import APPLY, Run, pipeline
from tests.waiting import wait_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.full
def test_one_checkpoint_folder_for_all_runs(
    inbox_ground: Ground, spark: SparkSession, tmp_path: Path
) -> None:
    """Pitfall 21: what lies in it, be it older or newer than the database, neither doubles nor skips."""
    ground, folder, old = inbox_ground, tmp_path / "checkpoint", tmp_path / "old"
    ground.send(60)
    run = Run(ground, spark, max_offsets=30, checkpoint=folder)

    def copy(_done: Committed) -> None:
        if not old.exists():
            query = folder if (folder / "offsets").is_dir() else next(folder.iterdir())
            shutil.copytree(query, old, ignore=shutil.ignore_patterns(".*", "*.tmp"))

    run.note = copy
    assert sum(each.applied for each in run()) == 60
    assert (old / "offsets" / "0").is_file(), "it is Spark's own"
    # An old copy is put back, where a query would find it if the folder itself were its checkpoint.
    shutil.copytree(old, folder, dirs_exist_ok=True)
    ground.send(40)
    done = Run(ground, spark, checkpoint=folder)()
    assert [sum(getattr(each, name) for each in done) for name in ("applied", "repeated")] == [40, 0]
    # And the database is set back to before all of it.
    for table in ("tallymark.inbox", "tallymark.applications", "tallymark.ingested", "effect"):
        ground.query(f"delete from {table} returning 1")
    ground.query("update account set balance = 0 returning 1")
    ground.query("update tallymark.positions set next_offset = 0, kept = 0 returning 1")
    assert sum(each.applied for each in Run(ground, spark, checkpoint=folder)()) == 100
    assert ground.compare().is_clean
    assert ground.positions() == ends(ground.servers, ground.topic, 3)


def test_what_is_for_workers_is_kept_by_batches_and_applied_from_the_queue(
    inbox_ground: Ground, spark: SparkSession
) -> None:
    ground = inbox_ground
    ground.send(60)
    handlers = Handlers()

    def apply(message: Message, tx: Any) -> None:
        value = message.value
        tx.execute(
            "insert into effect (message_id, account, n, amount) values (%s, %s, %s, %s)",
            [str(message.id), value["account"], value["n"], value["amount"]],
        )
        tx.execute(
            "update account set balance = balance + %s where id = %s", [value["amount"], value["account"]]
        )

    handlers.handler(ground.topic)(apply)
    done = Run(ground, spark, HandlersEffect(handlers), deferred=True)()
    assert [sum(getattr(each, name) for each in done) for name in ("kept", "queued", "applied")] == [
        60,
        60,
        0,
    ]
    found = ground.compare()
    assert (found.expected, found.is_clean) == (60, True), found
    assert ground.value("select count(*) from tallymark.queue") == 0
    assert ground.value("select count(*) from tallymark.applications") == 60


@pytest.mark.full
def test_a_run_that_a_service_has_fenced_ends(inbox_ground: Ground, spark: SparkSession) -> None:
    """In mid-stream: its lease ran out, and a service took the positions. It does not take them back (pitfall 23)."""
    ground = inbox_ground
    ground.send(150)
    run = Run(ground, spark, max_offsets=60)
    store = PostgresInboxStore(ground.url, ground.name)
    wanted = [Wanted(ground.topic, partition, "", 0) for partition in range(3)]

    def taken() -> bool:
        ground.query("update tallymark.positions set lease_until = now() - interval '1 s' returning 1")
        return not any(each.refused for each in store.take("service", OwnerKind.SERVICE, 60, wanted))

    def fence(_done: Committed) -> None:
        wait_for(taken, what="the service has all of them")

    run.note = fence
    with pytest.raises(Held, match="a service reads for this consumer"):
        run()
    assert len(run.done) == 1
    assert ground.applied() == run.done[0].applied
    assert {row[0] for row in ground.query("select owner from tallymark.positions")} == {"service"}
    store.leave("service")
    store.close()
    Run(ground, spark)()
    assert ground.compare().is_clean


@pytest.mark.full
def test_a_database_that_stays_away_in_mid_batch(
    inbox_ground: Ground, spark: SparkSession, cluster: LocalCluster
) -> None:
    """It is waited for; when patience ends so does the run, and of the batch nothing is there."""
    ground = inbox_ground
    ground.send(150)
    calls: list[int] = []

    def apply(tx: Any, batch: Messages) -> None:
        calls.append(batch.count)
        tx.execute(APPLY.replace("{batch}", batch.relation))
        if len(calls) == 2:
            cluster.postgres.kill()

    run = Run(ground, spark, FunctionEffect(apply, [ground.topic]), max_offsets=60, patience_s=2)
    try:
        with pytest.raises((Unreachable, OutcomeUnknown)):
            run()
    finally:
        cluster.postgres.start()
    assert len(run.done) == 1
    kept = run.done[0].kept
    assert ground.applied() == ground.value("select count(*) from tallymark.inbox") == kept
    assert ground.value("select sum(kept) from tallymark.positions") == kept
    Run(ground, spark)()
    assert ground.compare().is_clean


@pytest.mark.full
@pytest.mark.timeout(600)
def test_a_master_that_is_not_there_is_one_clear_line(inbox_ground: Ground, tmp_path: Path) -> None:
    inbox_ground.send(10)
    with pipeline(inbox_ground, tmp_path, master="spark://127.0.0.1:1") as child:
        assert child.wait(400) == EXIT_UNREACHABLE, child.output
        told = [line for line in child.output.splitlines() if "spark://127.0.0.1:1" in line]
        assert len(told) == 1, child.output
        assert "cannot be reached" in told[0]
        assert "Traceback" not in child.output
    owners = inbox_ground.query("select owner from tallymark.positions")
    assert {row[0] for row in owners} == {None}, "nobody waits for a lease"
    assert inbox_ground.applied() == 0
