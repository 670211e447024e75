"""A replay holds no more than a piece of it at once, however much is replayed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import TopicPartition

from tallymark.broker.kafka import AdminClient
from tallymark.inbox.identity import received
from tallymark.inbox.ports import Received
from tallymark.message import new_id
from tallymark.pipeline.manifest import Move
from tallymark.pipeline.replaypieces import CELL, Cell, Portion, chunks, pieces, windows
from tests.children import start_child
from tests.deleting import deleted
from tests.inbox.ground import Ground, headers
from tests.pipeline.archiving import Ground as Archiving
from tests.pipeline.replaying import kept, replay

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_windows_are_all_of_it_in_order() -> None:
    moves = [Move("a", 0, 5, 25), Move("a", 1, 0, 3), Move("b", 0, 7, 7)]
    assert list(windows(moves, 10)) == [
        (Move("a", 0, 5, 10), Move("a", 1, 0, 3)),
        (Move("a", 0, 10, 20),),
        (Move("a", 0, 20, 25),),
    ]
    assert next(windows([Move("a", each, 0, 1) for each in range(3)], 2)) == tuple(
        Move("a", each, 0, 1) for each in range(3)
    ), "each goes on by one at least"


def test_pieces_weigh_no_more_than_they_may() -> None:
    window = (Move("a", 0, 10, 3 * CELL + 5), Move("a", 1, 0, CELL))
    cells = [Cell("a", 1, 0, 30), Cell("a", 0, 1, 900), Cell("a", 0, 0, 40), Cell("a", 0, 3, 60)]
    assert list(pieces(window, cells, 100)) == [
        (Move("a", 0, 10, CELL),),
        (Move("a", 0, CELL, 2 * CELL),),  # alone, for it weighs more
        (Move("a", 0, 3 * CELL, 3 * CELL + 5), Move("a", 1, 0, CELL)),
    ]
    assert list(pieces(window, cells, 10_000)) == [(Move("a", 0, 10, 3 * CELL + 5), Move("a", 1, 0, CELL))]
    assert list(pieces(window, [], 100)) == []


def test_a_transaction_is_bounded_in_bytes_too() -> None:
    def message(size: int) -> Received:
        return received("t", 0, 0, b"k", b"x" * size, None, 0)

    portion = Portion(chunk=3, chunk_bytes=100)
    sizes = [10, 10, 10, 10, 80, 200, 5]
    found = [[len(each.value or b"") for each in chunk] for chunk in chunks(map(message, sizes), portion)]
    assert found == [[10, 10, 10], [10, 80], [200], [5]]


@pytest.mark.full
def test_no_more_than_a_piece_is_fetched_at_once(
    spark: SparkSession, inbox_ground: Ground, tmp_path: Path, admin: AdminClient
) -> None:
    """P7: Spark refuses a result of half a megabyte here, and of more than that is replayed from either side."""
    ids = [str(new_id()) for _ in range(300)]
    inbox_ground.send_raw(
        [(b"k", os.urandom(5_000), headers(each)) for each in ids], transaction=300, partition=1
    )
    archiving = Archiving(inbox_ground.servers, tmp_path / "archive", [inbox_ground.topic])
    archiving.archive(spark)
    deleted(admin, TopicPartition(inbox_ground.topic, 1, 150))
    read: list[int] = []
    with small_results(spark, "500k"):
        total, job = replay(
            inbox_ground,
            spark,
            since_ms=0,
            topics=(inbox_ground.topic,),
            archive=archiving.folder,
            portion=Portion(piece=400_000, chunk_bytes=150_000),
            note=lambda so_far: read.append(so_far.read),
        )
    assert (total.read, total.kept) == (300, 300)
    assert 140 < job.from_archive <= 150
    assert kept(inbox_ground) == set(ids)
    assert max(after - before for before, after in zip([0, *read], read, strict=False)) <= 30
    queued = inbox_ground.query("select id::text from tallymark.queue order by seq")
    assert [row[0] for row in queued] == ids, "in the order of the log"


@pytest.mark.full
@pytest.mark.timeout(600)
def test_a_partition_that_is_larger_than_the_driver_may_hold(inbox_ground: Ground) -> None:
    """The verb as it is, with 150 MB in one partition, where a job may give the driver 64."""
    count = 30_000
    inbox_ground.send_raw(
        [(None, os.urandom(5_000), headers(str(new_id()))) for _ in range(count)],
        transaction=1_000,
        partition=0,
    )
    words = ["-m", "tallymark", "pipeline", "replay", "--consumer", inbox_ground.name]
    words += ["--topic", inbox_ground.topic, "--since", "-1h", "--database", inbox_ground.url]
    words += ["--bootstrap-servers", inbox_ground.servers, "--master", "local[2]", "--json"]
    words += ["--conf", "spark.driver.maxResultSize=64m"]
    with start_child(words) as child:
        assert child.wait(500) == 0, child.output
    assert inbox_ground.value("select count(*) from tallymark.queue") == count


@contextmanager
def small_results(spark: SparkSession, size: str) -> Iterator[None]:
    """Spark looks at this anew for each job."""
    conf = spark.sparkContext._jsc.sc().conf()
    conf.set("spark.driver.maxResultSize", size)
    try:
        yield
    finally:
        conf.remove("spark.driver.maxResultSize")
