"""`tallymark pipeline archive`: topics to Parquet, exactly once; how the archive stands."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tallymark.cli import connections, output, pipelinearchiveview
from tallymark.cli.pipelineline import display
from tallymark.cli.signals import until_told
from tallymark.cli.sparkoptions import (
    ArchiveOption,
    AvailableNow,
    ConfOption,
    MasterOption,
    MetricsPort,
    PatienceOption,
    SparkVerbose,
)
from tallymark.errors import UsageError

if TYPE_CHECKING:
    from tallymark.pipeline.archive import ArchiveConfig, Archived
    from tallymark.pipeline.manifest import Archive
    from tallymark.pipeline.manifestlog import ManifestLog


def archive(
    archive: ArchiveOption = None,
    topic: Annotated[
        list[str] | None,
        typer.Option("--topic", help="What to archive; several times. Default: what the archive holds."),
    ] = None,
    status: Annotated[
        bool,
        typer.Option("--status", help="Only say what is archived, and how long retention leaves the rest."),
    ] = False,
    available_now: AvailableNow = False,
    compact: Annotated[
        bool, typer.Option("--compact", help="Put small files together, however few they are.")
    ] = False,
    add_topics: Annotated[
        bool, typer.Option("--add-topics", help="Let new topics into an archive that has others.")
    ] = False,
    skip_lost: Annotated[
        bool,
        typer.Option("--skip-lost", help="Record what Kafka deleted before it was archived, and go on."),
    ] = False,
    max_offsets: Annotated[
        int, typer.Option("--max-offsets", min=1, help="Offsets per micro-batch.")
    ] = 1_000_000,
    interval: Annotated[
        float, typer.Option("--interval", min=0.0, help="Seconds between looks when all is archived.")
    ] = 30.0,
    file_size: Annotated[
        int, typer.Option("--file-size", min=1, metavar="MB", help="How large compaction makes files.")
    ] = 128,
    many_files: Annotated[
        int,
        typer.Option("--many-files", min=2, help="A day with so many small files is compacted by itself."),
    ] = 32,
    grace: Annotated[
        float, typer.Option("--grace", min=0.0, help="Seconds that replaced files stay for their readers.")
    ] = 600.0,
    patience: PatienceOption = 300.0,
    metrics_port: MetricsPort = None,
    master: MasterOption = "local[*]",
    conf: ConfOption = [],  # noqa: B006 - typer copies it
    bootstrap_servers: connections.BootstrapOption = None,
    verbose: SparkVerbose = False,
    as_json: output.JsonOption = False,
) -> None:
    """Topics to Parquet files by topic and day, each message once, with its offset, time and headers."""
    from tallymark.pipeline.archive import ArchiveConfig
    from tallymark.pipeline.compact import Compaction
    from tallymark.pipeline.manifestlog import ManifestLog

    manifests = ManifestLog(folder_of(archive))
    client = connections.kafka_client(connections.load(bootstrap_servers=bootstrap_servers).settings)
    if status:
        pipelinearchiveview.show(manifests, client, as_json=as_json)
        return
    config = ArchiveConfig(
        available_now=available_now,
        max_offsets=max_offsets,
        interval_s=interval,
        compact_now=compact,
        compaction=Compaction(many=many_files, target=file_size * 1024 * 1024),
        grace_s=grace,
        patience_s=patience,
    )
    wish = _Wish(
        topics=tuple(dict.fromkeys(topic or ())),
        add_topics=add_topics,
        skip_lost=skip_lost,
        master=master,
        conf=tuple(conf),
        metrics_port=metrics_port,
        verbose=verbose,
        as_json=as_json,
    )
    done = _run(manifests, client, config, wish)
    output.emit(
        done,
        as_json=as_json,
        human=lambda: (
            f"{output.counted(done['rows'], 'message')} archived, batches: {done['batches']}; the archive holds "
            f"{done['archive_rows']:,} in {output.counted(done['archive_files'], 'file')} "
            f"({done['archive_bytes'] / 1e6:,.1f} MB)"
        ),
    )


def folder_of(given: Path | None) -> Path:
    """Where the archive is."""
    if given is None:
        raise UsageError("where is the archive?", remedy="give --archive DIR, or set TALLYMARK_ARCHIVE")
    if "://" in str(given) or ":/" in str(given):
        raise UsageError(
            f"{given} is not a folder",
            remedy="an archive lies in a folder that the driver and all executors share",
        )
    if set("*?[]{}") & set(str(given.absolute())):
        raise UsageError(
            f"the path {given} has a character that Spark reads as a pattern",
            remedy="choose one without *?[]{}",
        )
    return given


@dataclass(frozen=True, slots=True)
class _Wish:
    topics: tuple[str, ...]
    add_topics: bool
    skip_lost: bool
    master: str
    conf: tuple[str, ...]
    metrics_port: int | None
    verbose: bool
    as_json: bool


@dataclass(slots=True)
class _Progress:
    batches: int = 0
    rows: int = 0
    bytes: int = 0
    offsets: int = 0
    seconds: float = 0.0

    def add(self, done: Archived) -> None:
        self.batches += 1
        self.rows += done.rows
        self.bytes += done.bytes
        self.offsets += done.offsets
        self.seconds += done.seconds

    @property
    def line(self) -> str:
        rate = f", {self.rows / self.seconds:,.0f}/s" if self.seconds else ""
        return f"batch {self.batches}: {self.rows:,} messages, {self.bytes / 1e6:,.1f} MB{rate}"


def _run(
    manifests: ManifestLog, client: dict[str, str], config: ArchiveConfig, wish: _Wish
) -> dict[str, Any]:
    from tallymark.broker.offsets import Logs
    from tallymark.broker.reach import admin_client, reach
    from tallymark.cli.pipelinerun import plan_of
    from tallymark.observe.metrics import Metrics
    from tallymark.pipeline import kafkasource
    from tallymark.pipeline.archive import ArchiveRun, opened
    from tallymark.pipeline.archivefiles import SETTINGS
    from tallymark.pipeline.archivegauges import ArchiveGauges
    from tallymark.pipeline.archivestatus import look
    from tallymark.pipeline.runs import new_run
    from tallymark.pipeline.session import started

    plan = plan_of("tallymark archive", wish.master, wish.conf, report=not wish.as_json)
    plan = replace(plan, conf={**plan.conf, **SETTINGS})
    # What may not be is refused before anything is begun.
    plan.settings()
    kafkasource.java_settings(client)
    cluster = reach(client)
    logs = Logs(admin_client(client))
    run, progress = new_run(), _Progress()
    stop = until_told("archive.stop")
    manifests.prepare()
    with ExitStack() as stack:
        stack.enter_context(manifests.held(run))
        # Before Spark is started: whoever is refused has not waited for a JVM.
        state = opened(
            manifests,
            logs,
            run=run,
            cluster_id=cluster.cluster_id,
            topics=wish.topics,
            add_topics=wish.add_topics,
            skip_lost=wish.skip_lost,
        )
        shown = stack.enter_context(display(wish.as_json))
        spark = stack.enter_context(started(plan, verbose=wish.verbose))

        gauges = ArchiveGauges(Metrics(), manifests.folder)
        if wish.metrics_port is not None:
            stack.enter_context(gauges.served(wish.metrics_port, lambda: look(manifests, client)))

        def note(done: Archived) -> None:
            progress.add(done)
            gauges.note(done)
            shown(progress.line)

        job = ArchiveRun(
            spark,
            client,
            manifests,
            logs,
            state,
            config,
            run=run,
            topics=wish.topics or sorted(state.topics),
            stop=stop,
            note=note,
        )
        job.run()
        state = job.state
    return {
        "archive": str(manifests.folder),
        "run": run,
        "manifest": state.number,
        "topics": sorted(wish.topics or state.topics),
        "batches": progress.batches,
        "rows": progress.rows,
        "bytes": progress.bytes,
        "offsets": progress.offsets,
        "seconds": round(progress.seconds, 3),
        "archived_upto": _upto(state),
        "archive_rows": state.rows,
        "archive_files": len(state.files),
        "archive_bytes": state.bytes,
    }


def _upto(state: Archive) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for (topic, partition), extent in sorted(state.extents.items()):
        found.setdefault(topic, {})[str(partition)] = extent.next
    return found
