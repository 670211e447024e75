"""`tallymark pipeline ingest | status | submit`: the inbox at Spark's width, and what belongs to it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tallymark.cli import (
    connections,
    output,
    pipelinearchive,
    pipelinereplay,
    pipelinesnapshot,
    pipelinesubmit,
)
from tallymark.cli.sparkoptions import (
    ArchiveOption,
    AvailableNow,
    ConfOption,
    MasterOption,
    MetricsPort,
    PatienceOption,
    SparkVerbose,
)
from tallymark.errors import EXIT_PROBLEM, UsageError

app = typer.Typer(add_completion=False, no_args_is_help=True, help="The pipeline on Spark.")
app.command()(pipelinearchive.archive)
app.command()(pipelinesnapshot.snapshot)
app.command()(pipelinereplay.replay)
app.command()(pipelinesubmit.submit)


@app.command()
def ingest(
    reference: Annotated[
        str | None, typer.Argument(metavar="[APP:INBOX]", help="An inbox's handlers, one message at a time.")
    ] = None,
    consumer: Annotated[str | None, typer.Option("--consumer", help="The inbox's name.")] = None,
    topic: Annotated[list[str] | None, typer.Option("--topic", help="What to read; several times.")] = None,
    apply_sql: Annotated[
        Path | None,
        typer.Option("--apply-sql", metavar="FILE", help="A statement over {batch}, for all at once."),
    ] = None,
    apply: Annotated[
        str | None,
        typer.Option("--apply", metavar="APP:FUNCTION", help="A function (tx, batch), for all at once."),
    ] = None,
    available_now: AvailableNow = False,
    start: Annotated[
        str, typer.Option("--start", help="Where a new consumer begins: beginning or end.")
    ] = "beginning",
    max_offsets: Annotated[
        int, typer.Option("--max-offsets", min=1, help="Offsets per micro-batch.")
    ] = 200_000,
    min_partitions: Annotated[
        int | None,
        typer.Option("--min-partitions", min=1, help="Tasks per micro-batch at least; default: partitions."),
    ] = None,
    interval: Annotated[
        float, typer.Option("--interval", min=0.0, help="Seconds between micro-batches.")
    ] = 0.5,
    checkpoint: Annotated[
        Path | None,
        typer.Option("--checkpoint", metavar="DIR", help="Where Spark keeps its schedule while it runs."),
    ] = None,
    patience: PatienceOption = 300.0,
    metrics_port: MetricsPort = None,
    master: MasterOption = "local[*]",
    conf: ConfOption = [],  # noqa: B006 - typer copies it
    database: connections.DatabaseOption = None,
    bootstrap_servers: connections.BootstrapOption = None,
    verbose: SparkVerbose = False,
    as_json: output.JsonOption = False,
) -> None:
    """Kafka to the inbox by micro-batches on Spark, each exactly once; the same tables as `inbox run`."""
    from tallymark.cli import pipelinerun
    from tallymark.pipeline.ingest import IngestConfig

    if start not in ("beginning", "end"):
        raise UsageError(f"--start {start} is not known", remedy="use beginning or end")
    job, declared = pipelinerun.job_of(
        reference,
        consumer=consumer,
        topics=topic or (),
        apply_sql=apply_sql,
        apply=apply,
        at_end=start == "end",
    )
    plan = pipelinerun.plan_of(f"tallymark ingest {job.consumer}", master, conf, report=not as_json)
    config = IngestConfig(
        available_now=available_now,
        max_offsets=max_offsets,
        min_partitions=min_partitions,
        interval_s=interval,
        checkpoint=checkpoint,
        patience_s=patience,
    )
    done = pipelinerun.run(
        job,
        plan,
        config,
        database=database or declared,
        bootstrap_servers=bootstrap_servers,
        metrics_port=metrics_port,
        verbose=verbose,
        as_json=as_json,
    )
    output.emit(
        done,
        as_json=as_json,
        human=lambda: (
            f"{done['kept']:,} kept and {done['applied']:,} applied in {done['batches']} batches; "
            f"{done['repeated']:,} were known before, {done['queued']:,} wait, {done['dead']:,} are dead"
        ),
    )


@app.command()
def status(
    consumer: Annotated[
        str | None, typer.Argument(metavar="[CONSUMER]", help="All of them if left out.")
    ] = None,
    archive: ArchiveOption = None,
    database: connections.DatabaseOption = None,
    bootstrap_servers: connections.BootstrapOption = None,
    as_json: output.JsonOption = False,
) -> None:
    """The last run of each consumer: who, where, how fast, how far behind; and with --archive how that one stands."""
    from tallymark.cli import pipelineview

    settings = connections.load(bootstrap_servers=bootstrap_servers, database=database).settings
    found = pipelineview.look(settings, consumer, archive)
    output.emit(found.as_data(), as_json=as_json, human=lambda: pipelineview.shown(found))
    if found.archive_troubles:
        raise typer.Exit(EXIT_PROBLEM)
