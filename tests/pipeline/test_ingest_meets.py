"""What an ingest meets beside its messages: another run, failures without end, odd folders, added partitions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from confluent_kafka.admin import AdminClient, NewPartitions

from tallymark.apply.applied import Applied
from tallymark.apply.handlers import Handlers
from tallymark.apply.incoming import Message
from tallymark.apply.options import Defaults
from tallymark.inbox.keeper import put_off
from tallymark.inbox.ports import Failed, InboxTx, Queued
from tallymark.pipeline import batchsize, committing, kafkasource
from tallymark.pipeline.committing import Committed
from tallymark.pipeline.effects import Effect, FunctionEffect, HandlersEffect, Messages, SqlEffect
from tallymark.pipeline.tenure import Held
from tallymark.policy import Backoff
from tests.inbox.ground import Ground
from tests.leaders import wait_for_leaders
from tests.pipeline.grounds import APPLY, Run
from tests.waiting import wait_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_run_that_is_refused_leaves_the_one_at_work_alone(
    inbox_ground: Ground, spark: SparkSession
) -> None:
    """Two live runs: the second ends with a line, and the first goes on as if nobody had come."""
    ground = inbox_ground
    ground.send(150)
    run = Run(ground, spark, max_offsets=60)
    refused: list[str] = []

    def meanwhile(_done: Committed) -> None:
        if not refused:
            with pytest.raises(Held, match="another run of this job") as second:
                Run(ground, spark)()
            refused.append(str(second.value))

    run.note = meanwhile
    assert sum(each.applied for each in run()) == 150
    assert len(refused) == 1
    assert ground.compare().is_clean
    assert ground.query("select batch from tallymark.ingested where batch > 1"), "it went on"
    assert ground.query("select trouble from tallymark.runs") == [(None,)], "the second never began"
    assert ground.value("select count(*) from pg_tables where tablename like 'staging_%%'") == 0


@pytest.mark.parametrize(
    "one_by_one",
    [
        pytest.param(False, id="a statement for all"),
        pytest.param(True, id="a handler each", marks=pytest.mark.full),
    ],
)
def test_what_always_meets_a_serialization_failure_counts_as_failed(
    inbox_ground: Ground, spark: SparkSession, one_by_one: bool
) -> None:
    """Pitfall 27: a trigger, or another database, may raise that code for ever: not two of us in each other's way."""
    ground = inbox_ground
    good = ground.send(60)
    (bad, behind) = ground.send(2, account="poison")
    effect: Effect = SqlEffect(APPLY, [ground.topic])
    if one_by_one:
        handlers = Handlers(Defaults().changed(backoff=(60, 60)))

        def apply(message: Message, tx: Any) -> None:
            tx.execute(
                "insert into effect (message_id, account) values (%s, %s)",
                [str(message.id), "poison" if message.key == b"poison" else "good"],
            )

        handlers.handler(ground.topic)(apply)
        effect = HandlersEffect(handlers)
    refused = """
        create function refuse() returns trigger language plpgsql as $$
        begin
            raise exception 'in the way' using errcode = '40001';
        end $$;
        create trigger refuse before insert on effect for each row
          when (new.account = 'poison') execute function refuse();
        select 1"""
    with psycopg.connect(ground.url) as connection:
        connection.execute(refused.encode())
    done = Run(ground, spark, effect, backoff=Backoff(first_s=0.01, cap_s=0.05))()
    assert sum(each.applied for each in done) == 60
    assert {row[0] for row in ground.query("select message_id from effect")} == set(good)
    waiting = ground.query("select id::text, attempts > 0 from tallymark.queue order by seq")
    assert waiting == [(bad, True), (behind, False)]
    assert "in the way" in ground.value("select reason from tallymark.queue where attempts > 0")


def test_what_is_tried_again_leaves_its_value_and_its_traceback_behind(
    inbox_ground: Ground, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P7: all of a batch may fail. What is needed of it is in the inbox; a dead letter alone takes everything along."""
    ground = inbox_ground
    ground.send(20, account="later")
    (dead,) = ground.send(1, account="never")
    handlers, held = Handlers(Defaults().changed(permanent=(LookupError,))), list[Failed]()

    def apply(message: Message, _tx: Any) -> None:
        raise LookupError if message.key == b"never" else ValueError(message.id)

    def seen(tx: InboxTx, applied: Applied, later: Sequence[Queued]) -> None:
        held.extend(applied.failed)
        put_off(tx, applied, later)

    monkeypatch.setattr(committing, "put_off", seen)
    handlers.handler(ground.topic)(apply)
    Run(ground, spark, HandlersEffect(handlers))()
    ((reason, traceback),) = ground.query("select reason, traceback from tallymark.dead_letters")
    assert (reason, "raise LookupError" in traceback) == ("LookupError", True)
    assert {(each.traceback == "", each.queued.message.value is None) for each in held} == {
        (True, True),
        (False, False),
    }
    assert dead in {str(each.queued.message.id) for each in held}


def test_dead_letters_are_written_a_piece_at_a_time(
    inbox_ground: Ground, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P7: each takes its value and its traceback along, and all of a batch may die."""
    ground, pieces = inbox_ground, list[int]()
    ground.send(20)
    handlers = Handlers(Defaults().changed(permanent=(LookupError,), on_dead="skip"))

    def apply(message: Message, _tx: Any) -> None:
        raise LookupError(message.id)

    def seen(tx: InboxTx, applied: Applied, later: Sequence[Queued]) -> None:
        pieces.append(len(applied.failed))
        put_off(tx, applied, later)

    monkeypatch.setattr(committing, "put_off", seen)
    monkeypatch.setattr(committing, "_MANY", 4)
    handlers.handler(ground.topic)(apply)
    done = Run(ground, spark, HandlersEffect(handlers))()
    assert [sum(getattr(each, name) for each in done) for name in ("dead", "queued", "applied")] == [
        20,
        20,
        0,
    ]
    assert ground.value("select count(*) from tallymark.dead_letters where value is not null") == 20
    assert max(pieces) <= 4


def handed_over(ground: Ground, **options: Any) -> HandlersEffect:
    """One by one, each effect with its message's id."""
    handlers = Handlers(Defaults().changed(**options))

    def apply(message: Message, tx: Any) -> None:
        tx.execute("insert into effect (message_id) select %s from pg_sleep(0.01)", [str(message.id)])

    handlers.handler(ground.topic)(apply)
    return HandlersEffect(handlers)


def test_what_waits_for_its_rate_is_committed_by_the_second(
    inbox_ground: Ground, spark: SparkSession
) -> None:
    """All of it in one transaction could neither be stopped nor kept when the session is lost."""
    ground = inbox_ground
    ground.send(200)
    run = Run(ground, spark, handed_over(ground, max_rate=20), available_now=False)
    told = run.start()
    wait_for(lambda: len(run.done) >= 3 or told.done(), within=60, what="several batches")
    run.stop.set()
    done = told.result(20)
    assert ground.applied() == sum(each.applied for each in done) < 200
    assert max(each.read for each in done) <= 24


def test_what_takes_long_is_committed_in_smaller_batches(
    inbox_ground: Ground, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the same run. One more may have been loaded meanwhile as large as the first."""
    ground = inbox_ground
    monkeypatch.setattr(batchsize, "_WITHIN_S", 0.05)
    monkeypatch.setattr(batchsize, "_FEW", 12)
    ids = ground.send(180)
    done = Run(ground, spark, handed_over(ground), max_offsets=60)()
    assert {row[0] for row in ground.query("select message_id from effect")} == set(ids)
    assert ground.applied() == sum(each.applied for each in done) == 180
    assert done[0].read > 30
    assert max(each.read for each in done[2:]) <= 15


# Enough for PostgreSQL to prefer an index.
BAD = 2_500


def test_a_batch_that_is_bad_throughout_is_not_read_over_and_over(
    inbox_ground: Ground, spark: SparkSession
) -> None:
    """Cut in halves down to the last, each look goes by numbers and keys; and what failed is not tried once more."""
    ground, counts, read = inbox_ground, list[int](), list[int]()
    ground.send_values([{"account": f"account-{n}", "n": n, "amount": 1} for n in range(BAD)])

    def apply(tx: Any, batch: Messages) -> None:
        scanned = (
            "select sum(seq_tup_read)::bigint from pg_stat_xact_user_tables where relname like 'staging_%'"
        )
        read.append(tx.execute(scanned).fetchone()[0])
        counts.append(batch.count)
        raise ValueError("all of it is bad")

    done = Run(ground, spark, FunctionEffect(apply, [ground.topic]), max_offsets=10_000)()
    assert sum(each.queued for each in done) == BAD
    assert counts.count(counts[0]) == 1, counts[:3]
    assert max(read) < 20 * BAD


@pytest.mark.full
def test_a_checkpoint_folder_whose_name_has_a_space(
    inbox_ground: Ground, spark: SparkSession, tmp_path: Path
) -> None:
    inbox_ground.send(10)
    assert sum(each.applied for each in Run(inbox_ground, spark, checkpoint=tmp_path / "our own %20")()) == 10
    assert [each.name for each in tmp_path.iterdir()] == ["our own %20"], "nothing is written beside it"
    assert not list((tmp_path / "our own %20").iterdir())


def test_a_partition_added_between_the_positions_and_the_query(
    inbox_ground: Ground, spark: SparkSession, admin: AdminClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark asks for offsets of all partitions: the positions are taken again, with those that were added."""
    ground = inbox_ground
    ground.send(20)
    stream, starts = kafkasource.stream, list[int]()

    def late(*arguments: Any, **options: Any) -> Any:
        starts.append(len(arguments[2]))
        if len(starts) == 1:
            admin.create_partitions([NewPartitions(ground.topic, 4)])[ground.topic].result(30)
            wait_for_leaders(admin, ground.topic, 4)
        return stream(*arguments, **options)

    monkeypatch.setattr(kafkasource, "stream", late)
    Run(ground, spark, backoff=Backoff(first_s=0.01, cap_s=0.05))()
    assert starts == [3, 4]
    assert ground.applied() == 20
    assert set(ground.positions()) == {0, 1, 2, 3}
