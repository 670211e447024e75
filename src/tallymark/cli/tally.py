"""`tallymark tally run | list | show | verify | resend | repair | compare`: every message accounted for, by name."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tallymark.cli import output, tallycompare, tallyrepair, tallyresend, tallyspans, tallyview
from tallymark.errors import Problem, UsageError
from tallymark.lifecycle import Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tallymark.pipeline.reconcile import Tally
    from tallymark.pipeline.reconcileground import TallyConfig
    from tallymark.pipeline.reconcileports import Stations
    from tallymark.store.postgres.findings import Findings
    from tallymark.tally.chain import Certificate

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="Account for every message: compare the stations, certify, resend what is missing.",
)

Databases = Annotated[
    list[str] | None,
    typer.Option("--database", metavar="NAME|URL", help="Where to look; default: all of the settings."),
]
Servers = Annotated[
    str | None, typer.Option("--bootstrap-servers", metavar="HOST:PORT,…", help="Kafka's brokers.")
]
Master = Annotated[str, typer.Option("--master", help="Where Spark runs: local[*] or spark://host:port.")]
Conf = Annotated[
    list[str] | None,
    typer.Option("--conf", metavar="NAME=VALUE", help="A setting of Spark; may be repeated."),
]
Snapshots = Annotated[
    list[str] | None,
    typer.Option(
        "--snapshot",
        metavar="[NAME=]DIR",
        help="Read this in place of a database (NAME: what the settings call it); may be repeated. With --archive.",
    ),
]
Archive = Annotated[
    Path | None,
    typer.Option("--archive", metavar="DIR", help="Read this in place of Kafka. With --snapshot."),
]
Verdicts = Annotated[list[Verdict] | None, typer.Option("--verdict", help="Only these; may be repeated.")]


@app.command()
def run(
    since: Annotated[
        str | None, typer.Option("--since", metavar="TIME|AGO", help="Only what was added since: 2h, or ISO.")
    ] = None,
    until: Annotated[str | None, typer.Option("--until", metavar="TIME|AGO", help="… and before.")] = None,
    topic: Annotated[
        list[str] | None, typer.Option("--topic", help="Only this topic; may be repeated.")
    ] = None,
    consumer: Annotated[
        list[str] | None, typer.Option("--consumer", help="Only this consumer; may be repeated.")
    ] = None,
    everything: Annotated[
        bool, typer.Option("--everything", help="Certified windows too, which are not read again otherwise.")
    ] = False,
    keep: Annotated[
        bool, typer.Option("--keep/--no-keep", help="Keep findings and certificates beside the outbox.")
    ] = True,
    late_after: Annotated[
        str, typer.Option("--late-after", metavar="DURATION", help="On its way for longer is late.")
    ] = "5m",
    window: Annotated[
        int | None, typer.Option("--window", min=100, max=10_000_000, help="Positions in one window.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=0, help="Findings to print; all are kept.")] = 1000,
    tasks: Annotated[int, typer.Option("--tasks", min=1, max=64, help="Queries at once, per database.")] = 4,
    snapshot: Snapshots = None,
    archive: Archive = None,
    findings_to: Annotated[
        Path | None, typer.Option("--findings-to", metavar="DIR", help="Keep findings in Parquet there, too.")
    ] = None,
    database: Databases = None,
    bootstrap_servers: Servers = None,
    master: Master = "local[*]",
    conf: Conf = None,
    as_json: output.JsonOption = False,
) -> None:
    """Compare outbox, log and inboxes; name each message that is missing, doubled, reordered, late or altered."""
    from tallymark.cli.person import user
    from tallymark.pipeline.reconcileground import TallyConfig

    config = TallyConfig(
        since=tallyspans.moment(since) if since else None,
        until=tallyspans.moment(until) if until else None,
        topics=tuple(topic or ()),
        consumers=tuple(consumer or ()),
        everything=everything,
        keep=keep,
        window_rows=window,
        late_after=tallyspans.duration(late_after),
        limit=limit,
        who=user(),
        tasks=tasks,
    )
    stored = bool(snapshot or archive)
    kept = tallyspans.findings_of(database) if stored and database else {}
    sources = _snapshots(snapshot or [], archive, kept) if stored else _live(database, bootstrap_servers)
    with _tally(sources, master, conf or [], config, quiet=as_json, findings_to=findings_to) as tally:
        report = tally.run()
    output.emit(report.as_json(), as_json=as_json, human=lambda: tallyview.report(report))
    if not report.clean:
        raise typer.Exit(1)


@app.command("list")
def list_(
    verdict: Verdicts = None,
    topic: Annotated[str | None, typer.Option("--topic", help="Only this topic.")] = None,
    consumer: Annotated[str | None, typer.Option("--consumer", help="Only this consumer.")] = None,
    over: Annotated[bool, typer.Option("--over", help="Also those that are over.")] = False,
    runs: Annotated[bool, typer.Option("--runs", help="The last runs instead.")] = False,
    limit: Annotated[int, typer.Option("--limit", min=1, max=1_000_000)] = 100,
    database: Databases = None,
    as_json: output.JsonOption = False,
) -> None:
    """Findings that were kept, in the order of the outbox."""
    found: list[Any] = []
    for findings in tallyspans.findings_of(database).values():
        if runs:
            found += findings.runs(limit=limit)
        else:
            found += findings.listed(verdicts=verdict, topic=topic, consumer=consumer, over=over, limit=limit)
    if runs:
        output.emit(found, as_json=as_json, human=lambda: tallyview.runs(found))
    else:
        output.emit(
            [each.as_json() for each in found], as_json=as_json, human=lambda: tallyview.listed(found)
        )


@app.command()
def show(
    id: Annotated[str, typer.Argument(help="A message's id.")],
    database: Databases = None,
    as_json: output.JsonOption = False,
) -> None:
    """What was found of one message, and what to do about it."""
    found = [
        each
        for findings in tallyspans.findings_of(database).values()
        for each in findings.listed(ids=[id], over=True, limit=100)
    ]
    if not found:
        raise Problem(f"nothing was found of {id}", remedy=f"`tallymark trace {id}` tells its life")
    output.emit([each.as_json() for each in found], as_json=as_json, human=lambda: tallyview.shown(found))


@app.command()
def verify(
    chain_only: Annotated[
        bool, typer.Option("--chain-only", help="Only the chain of hashes; no data are read, no Spark.")
    ] = False,
    tasks: Annotated[int, typer.Option("--tasks", min=1, max=64, help="Queries at once, per database.")] = 4,
    snapshot: Snapshots = None,
    archive: Archive = None,
    database: Databases = None,
    bootstrap_servers: Servers = None,
    master: Master = "local[*]",
    conf: Conf = None,
    as_json: output.JsonOption = False,
) -> None:
    """Recompute every certificate from the data of today, or from copies, and say which window does not fit."""
    from tallymark.pipeline import reconcileverify as verifying
    from tallymark.pipeline.reconcileground import TallyConfig

    stored = bool(snapshot or archive)
    if chain_only and stored:
        raise UsageError(
            "--chain-only reads no data", remedy="leave out --snapshot and --archive, or --chain-only"
        )
    found = verifying.Verification()
    kept = tallyspans.findings_of(database)
    # The ends first: a run that is at it makes the chain longer.
    ends = {name: each.ends() for name, each in kept.items()}
    chains = {name: each.chain() for name, each in kept.items()}
    for name, chain in chains.items():
        verifying.links(chain, found, ends[name])
    if not chain_only and any(chains.values()):
        config = TallyConfig(everything=True, keep=False, tasks=tasks)
        sources = _snapshots(snapshot or [], archive, kept) if stored else _live(database, bootstrap_servers)
        if stored:
            chains = _of_snapshots(sources, {each.outbox_id: chains[name] for name, each in kept.items()})
        with _tally(sources, master, conf or [], config, quiet=as_json) as tally:
            for name in sources.outboxes:
                ground, cells = tally.digests(name)
                verifying.data(chains.get(name, []), ground, cells, found)
    output.emit(found.as_json(), as_json=as_json, human=lambda: tallyview.verified(found))
    if not found.holds:
        raise typer.Exit(1)


app.command("resend")(tallyresend.resend)
app.command("repair")(tallyrepair.repair)
app.command("compare")(tallycompare.compare)


def _live(database: list[str] | None, servers: str | None) -> Stations:
    """The databases and the Kafka of the settings."""
    from tallymark.broker.reach import admin_client
    from tallymark.pipeline.reconcilesources import Sources

    where = tallyspans.stations(database, servers)
    if not where.producers:
        raise UsageError(
            "none of the databases has an outbox", remedy="name the producer's too: --database bank …"
        )
    return Sources(where.producers, where.consumers, where.client, admin_client(where.client), where.schema)


def _snapshots(given: list[str], archive: Path | None, kept: Mapping[str, Findings]) -> Stations:
    """Snapshots and the archive; findings and certificates are `kept` beside outboxes that are live."""
    from tallymark.pipeline.reconcilesnapshot import SnapshotSources

    if not given or archive is None:
        raise UsageError(
            "snapshots and an archive are read together",
            remedy="give --snapshot DIR for each database, and --archive DIR",
        )
    names = {}
    for each in given:
        name, named, folder = each.partition("=")
        if Path(each).exists() or not named:
            name, folder = "", each
        names[Path(folder)] = name
    findings = {each.outbox_id: each for each in kept.values()}
    return SnapshotSources(list(names), archive, findings=findings, names=names)


def _of_snapshots(sources: Stations, chains: Mapping[str, list[Certificate]]) -> dict[str, list[Certificate]]:
    """Chains, given by the ids of their outboxes, by the names of the snapshots: those are their databases' own."""
    outboxes = {name: sources.producer(name).view().outbox_id for name in sources.outboxes}
    for name, outbox_id in outboxes.items():
        if outbox_id not in chains:
            raise UsageError(
                f"the certificates of {name}, of which a snapshot was given, are in none of the databases",
                remedy="name the one that it was taken of: --database NAME|URL",
            )
    return {name: chains[outbox_id] for name, outbox_id in outboxes.items()}


@contextmanager
def _tally(
    sources: Stations,
    master: str,
    conf: list[str],
    config: TallyConfig,
    *,
    quiet: bool,
    findings_to: Path | None = None,
) -> Iterator[Tally]:
    """A tally over these, with Spark for its length."""
    from tallymark.cli.pipelinerun import plan_of
    from tallymark.pipeline.reconcile import Tally
    from tallymark.pipeline.reconcilefiles import FindingFiles
    from tallymark.pipeline.reconcileground import look, outboxes_of
    from tallymark.pipeline.session import started

    files = None if findings_to is None else FindingFiles(findings_to)
    # What is wrong with the question is said before a JVM is waited for.
    for name in outboxes_of(sources, config):
        look(sources, name, config)
    with output.progress(quiet=quiet) as progress:
        progress("starting Spark")
        with started(plan_of("tallymark tally", master, conf, report=not quiet)) as spark:
            yield Tally(spark, sources, config, files=files, progress=progress)
