"""`tallymark pipeline snapshot`: a database's stations to Parquet, at one consistent point."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Annotated

import typer

from tallymark.cli import connections, output
from tallymark.cli.signals import interruptible
from tallymark.cli.sparkoptions import ConfOption, MasterOption, SparkVerbose
from tallymark.errors import UsageError


def snapshot(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new folder for it.")],
    master: MasterOption = "local[*]",
    conf: ConfOption = [],  # noqa: B006 - typer copies it
    database: connections.DatabaseOption = None,
    verbose: SparkVerbose = False,
    as_json: output.JsonOption = False,
) -> None:
    """Outbox, batches, inbox, applications and dead letters as they were at one moment, for the tally to read."""
    from tallymark.cli.pipelinerun import plan_of
    from tallymark.pipeline.session import started
    from tallymark.pipeline.snapshot import Table, sweep, take
    from tallymark.store.postgres.snapshot import exported, jdbc_options
    from tallymark.store.postgres.tallyrecord import recorded
    from tallymark.store.sqlite.schema import is_sqlite

    settings = connections.load(database=database).settings
    url = connections.database(settings).url.get_secret_value()
    if is_sqlite(url):
        raise UsageError("a snapshot is of PostgreSQL", remedy="SQLite's outbox is one file: copy it")
    if folder.exists():
        raise UsageError(
            f"{folder} is there already", remedy="name a folder that is not: a snapshot is not changed"
        )
    jdbc_options(url)  # refuses what JDBC cannot reach, before anything is begun
    plan = plan_of("tallymark snapshot", master, conf, report=not as_json)

    def note(table: Table) -> None:
        if not as_json:
            output.remark(
                f"{table.name}: {output.counted(table.rows, 'row')} in {output.counted(table.files, 'file')}"
            )

    try:
        # Spark first: the point holds back vacuum, and a JVM takes seconds to start.
        told = interruptible(signal.SIGTERM, signal.SIGHUP, once=True)
        with told, started(plan, verbose=verbose) as spark:
            # Before the point, as on a live system: what was marked as sent by then is in what is read.
            said = recorded(url, schema=settings.schema_name)
            with exported(url, schema=settings.schema_name) as point:
                made = take(spark, url, settings.schema_name, point, folder, note, stations=said)
    finally:
        # Not before Spark has ended: its tasks make anew what is deleted under them.
        sweep(folder)
    output.emit(
        made,
        as_json=as_json,
        human=lambda: (
            f"{made.folder}: {sum(each.rows for each in made.tables):,} rows of {made.database} as of {made.taken_at}"
        ),
    )
