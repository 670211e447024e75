"""`bench tally`: comparing outbox, log and inbox, against Spark's bare reading of the same columns of the three.

All runs are in one Spark session (local[*]) over the same data, which a real relay and the pipeline have moved. The
yardstick reads id, key, value and place of every row and record into nothing, and compares nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psycopg

from bench.ground import PARTITIONS, fresh_database, fresh_topic
from bench.growth import growth_rows
from bench.harness import Sample, interleave
from bench.registry import Context, benchmark
from bench.relaychild import running_relay, until
from bench.row import Row, at_most, row
from bench.sparkmeter import SparkMeter
from tallymark.broker.reach import admin_client
from tallymark.cli.pipelinerun import plan_of
from tallymark.lifecycle import Role
from tallymark.pipeline import kafkasource
from tallymark.pipeline.effects import NoEffect
from tallymark.pipeline.ingest import IngestConfig
from tallymark.pipeline.reconcile import Tally
from tallymark.pipeline.reconcileground import TallyConfig
from tallymark.pipeline.reconcilesources import Sources, jdbc_options, queried
from tallymark.pipeline.session import started
from tallymark.pipeline.station import IngestStation, Job
from tallymark.store.postgres.migrations import migrate
from tallymark.store.postgres.tallycells import id_ranges, position_ranges
from tallymark.tally.report import TallyReport

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONSUMER = "bench"
TASKS = 4
# 200 bytes that do not compress, as other benchmarks have them.
_FILL = """
insert into tallymark.outbox (id, topic, key, value, headers)
select tallymark.new_id(), %(topic)s, convert_to('account-' || n %% 1000, 'UTF8'),
       decode(md5(n::text) || md5((n + 1)::text) || md5((n + 2)::text) || md5((n + 3)::text), 'hex')
       || decode(repeat(md5((n + 4)::text), 8), 'hex'),
       '{"ce_source":"/bench","ce_type":"transfer","content-type":"application/octet-stream"}'
  from generate_series(1, %(count)s) n
"""


@dataclass(frozen=True)
class Moved:
    """Messages that have made the whole journey."""

    bank: str
    ledger: str
    servers: str
    topic: str
    count: int

    def sources(self) -> Sources:
        client = {"bootstrap.servers": self.servers}
        return Sources({"bank": self.bank}, {"ledger": self.ledger}, client, admin_client(client))


@benchmark("tally", "comparing outbox, log and inbox, against Spark's bare reading of them")
def tally(context: Context) -> Sequence[Row]:
    count, repetitions = (1_000_000, 3) if context.quick else (10_000_000, 3)
    sizes = (250_000,) if context.quick else (1_000_000, 4_000_000)
    with started(plan_of("bench", "local[*]", [], report=False)) as spark:
        with _moved(context, spark, count) as moved:
            rows, clean = _against_bare(context, spark, moved, repetitions)
        # The last of the clean ones: all before it are paid for what a session learns.
        largest = clean[-1:] if context.quick else _whole(context, spark, 16_000_000)
        return [*rows, *_growth(context, spark, sizes, largest)]


def _against_bare(
    context: Context, spark: SparkSession, moved: Moved, repetitions: int
) -> tuple[list[Row], Sequence[Sample]]:
    """The rows, and the runs over all that agree."""
    samples = interleave(
        {
            "clean": lambda: _measured(moved, lambda: _run(spark, moved, keep=False)),
            "bare": lambda: _measured(moved, lambda: _bare(spark, moved)),
        },
        repetitions,
        progress=context.progress,
    )
    # From here on the windows are certified: nothing has to be read again.
    _run(spark, moved, keep=True)
    samples |= interleave(
        {"again": lambda: _measured(moved, lambda: _run(spark, moved, keep=True))},
        repetitions,
        warm_up=False,
        progress=context.progress,
    )
    with psycopg.connect(moved.ledger) as connection:
        connection.execute("delete from tallymark.inbox where position = %s", [moved.count // 2])
    samples |= interleave(
        {
            "missing": lambda: _measured(
                moved, lambda: _run(spark, moved, keep=False, everything=True, missing=1)
            )
        },
        repetitions,
        progress=context.progress,
    )
    clean, bare = samples["clean"], samples["bare"]
    rows = [
        _row(f"{moved.count:,} messages that agree, against the bare reading", clean, bare, 2.0),
        _row(
            "where digests are kept and nothing is new, against the bare reading", samples["again"], bare, 0.2
        ),
        _row("one missing, found and named, against the clean run", samples["missing"], clean, 1.2),
    ]
    return rows, clean


def _growth(
    context: Context, spark: SparkSession, sizes: Sequence[int], whole: Sequence[Sample]
) -> list[Row]:
    """Seconds per message: the largest against smaller ones, each of which pays the same fixed part."""
    return [each for size in sizes for each in growth_rows(whole, _whole(context, spark, size))]


def _whole(context: Context, spark: SparkSession, size: int) -> list[Sample]:
    """A run over all of so many messages, of which none is certified; the session has seen one before."""
    with _moved(context, spark, size) as moved:
        _run(spark, moved, keep=False)
        found = _measured(moved, lambda: _run(spark, moved, keep=False))
        context.progress(f"{size:,}: {found.seconds:.1f} s")
        return [found]


@contextmanager
def _moved(context: Context, spark: SparkSession, count: int) -> Iterator[Moved]:
    servers = context.cluster.bootstrap_servers
    with ExitStack() as stack:
        topic = stack.enter_context(fresh_topic(context.cluster))
        bank = stack.enter_context(fresh_database(context.cluster))
        ledger = stack.enter_context(fresh_database(context.cluster))
        migrate(bank, role=Role.PRODUCER)
        migrate(ledger, role=Role.CONSUMER)
        context.progress(f"moving {count:,} messages")
        with psycopg.connect(bank) as connection:
            connection.execute(_FILL, {"topic": topic, "count": count})
        with running_relay(bank, servers) as relay:
            until(relay, lambda: _all_sent(bank, count), within=1800, what="all was sent")
            relay.stop()
            relay.finish(timeout=60)
        station = IngestStation(
            Job(CONSUMER, (topic,), NoEffect([topic])),
            {"bootstrap.servers": servers},
            ledger,
            stop=threading.Event(),
        )
        try:
            station.take("local")
            station.run(spark, IngestConfig(available_now=True))
        finally:
            station.close()
        for url in (bank, ledger):
            with psycopg.connect(url, autocommit=True) as connection:
                connection.execute("vacuum (analyze)")
        yield Moved(bank, ledger, servers, topic, count)


def _all_sent(url: str, count: int) -> bool:
    with psycopg.connect(url) as connection:
        found = connection.execute("select coalesce(sum(sent), 0) from tallymark.lanes").fetchone()
    return found is not None and int(found[0]) >= count


def _run(
    spark: SparkSession, moved: Moved, *, keep: bool, everything: bool = False, missing: int = 0
) -> None:
    config = TallyConfig(keep=keep, everything=everything, tasks=TASKS)
    report: TallyReport = Tally(spark, moved.sources(), config).run()
    assert report.found == missing, report.as_json()


def _bare(spark: SparkSession, moved: Moved) -> None:
    """The same columns of the three, into nothing."""
    outbox = [
        f"select position, id::text, topic, key, value from tallymark.outbox"
        f" where position >= {low} and position < {high}"
        for low, high in position_ranges(0, moved.count + 1, TASKS, 1)
    ]
    with psycopg.connect(moved.ledger) as connection:
        bounds = connection.execute(
            "select (select id from tallymark.inbox order by id limit 1),"
            " (select id from tallymark.inbox order by id desc limit 1)"
        ).fetchone()
    assert bounds is not None
    inbox = [
        f'select id::text, consumer, topic, partition, "offset", position, key, value from tallymark.inbox'
        f" where id >= '{low}' and id < '{high}'"
        for low, high in id_ranges((bounds[0], bounds[1]), TASKS)
    ]
    ends = _ends(moved)
    log = kafkasource.batch(spark, {"bootstrap.servers": moved.servers}, dict.fromkeys(ends, 0), ends).select(
        "topic", "partition", "offset", "key", "value", "headers"
    )
    for frame in (
        queried(spark, jdbc_options(moved.bank), outbox),
        log,
        queried(spark, jdbc_options(moved.ledger), inbox),
    ):
        frame.write.format("noop").mode("overwrite").save()


def _ends(moved: Moved) -> dict[tuple[str, int], int]:
    from tallymark.broker.offsets import bounds

    places = [(moved.topic, partition) for partition in range(PARTITIONS)]
    return {place: end for place, (_, end) in bounds(moved.sources().admin, places).items()}


def _measured(moved: Moved, run: Callable[[], None]) -> Sample:
    with SparkMeter(moved.count) as meter:
        run()
    return meter.sample


def _row(metric: str, ours: Sequence[Sample], against: Sequence[Sample], bound: float) -> Row:
    return row(metric, "s", [one.seconds for one in ours], [one.seconds for one in against], at_most(bound))
