"""`tallymark pipeline replay`: messages again into a consumer, from Kafka or from the archive."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tallymark.cli import connections, output
from tallymark.cli.person import user
from tallymark.cli.pipelineground import inbox_database
from tallymark.cli.sparkoptions import ArchiveOption, ConfOption, MasterOption, SparkVerbose
from tallymark.errors import EXIT_PROBLEM, UsageError

if TYPE_CHECKING:
    from tallymark.pipeline.manifestlog import ManifestLog
    from tallymark.pipeline.replayground import Ground, Wish
    from tallymark.pipeline.session import SparkPlan
    from tallymark.store.postgres.replay import Redriven, ReplayStore


def replay(
    consumer: Annotated[str, typer.Option("--consumer", help="Whose inbox; a new one is made.")],
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="TIME", help="All since then: 2026-11-15T10:00+00:00, or -2h."),
    ] = None,
    ids: Annotated[
        Path | None,
        typer.Option("--ids", metavar="FILE", help="These messages, an id per line; - for stdin."),
    ] = None,
    topic: Annotated[
        list[str] | None,
        typer.Option("--topic", help="Only these; a new consumer needs them. Several times."),
    ] = None,
    archive: ArchiveOption = None,
    incomplete: Annotated[
        bool, typer.Option("--incomplete", help="Replay what there is, where a part is nowhere any more.")
    ] = False,
    any_order: Annotated[
        bool,
        typer.Option("--any-order", help="Also behind later messages of the key: the handler can take that."),
    ] = False,
    reason: Annotated[str, typer.Option("--reason", help="Why, for the audit.")] = "",
    master: MasterOption = "local[*]",
    conf: ConfOption = [],  # noqa: B006 - typer copies it
    database: connections.DatabaseOption = None,
    bootstrap_servers: connections.BootstrapOption = None,
    verbose: SparkVerbose = False,
    as_json: output.JsonOption = False,
) -> None:
    """Keep and queue messages again, each once: what the consumer had kept before changes nothing."""
    from tallymark.cli.pipelinearchive import folder_of
    from tallymark.cli.pipelinerun import plan_of
    from tallymark.inbox.definition import Definition
    from tallymark.pipeline import kafkasource
    from tallymark.pipeline.manifestlog import ManifestLog
    from tallymark.pipeline.replayground import Wish, prepared
    from tallymark.store.postgres.replay import ReplayStore

    if (since is None) == (ids is None):
        raise UsageError("which messages?", remedy="give --since TIME, or --ids FILE")
    Definition(consumer)  # its name is checked there
    wish = Wish(
        since_ms=None if since is None else _moment_ms(since),
        ids=None if ids is None else _ids(ids),
        topics=tuple(topic or ()),
        incomplete=incomplete,
    )
    manifests = None if archive is None else ManifestLog(folder_of(archive))
    settings = connections.load(bootstrap_servers=bootstrap_servers, database=database).settings
    client = connections.kafka_client(settings)
    kafkasource.java_settings(client)  # what cannot be passed on is refused before anything is begun
    url = inbox_database(settings)
    plan = plan_of(f"tallymark replay {consumer}", master, conf, report=not as_json)
    with ExitStack() as stack:
        store = ReplayStore(url, consumer, schema=settings.schema_name)
        stack.callback(store.close)
        ground = prepared(store, client, manifests, wish)
        done = _run(stack, store, client, manifests, ground, wish, plan, any_order, verbose, as_json)
        store.note(user(), reason, {name: value for name, value in done.items() if name != "missing"})
    missing = done["missing"]
    output.emit(
        done,
        as_json=as_json,
        human=lambda: [
            f"{done['kept']:,} kept and queued for {consumer}; {done['repeated']:,} were known before, "
            f"{done['behind']:,} came behind later ones, {done['quarantined']:,} could not be kept",
            *([f"{done['kept']:,} wait for `tallymark inbox run`"] if done["kept"] else []),
            *(f"not found: {each}" for each in missing[:20]),
        ],
    )
    if missing or done["behind"] or done["quarantined"]:
        raise typer.Exit(EXIT_PROBLEM)


def _run(
    stack: ExitStack,
    store: ReplayStore,
    client: dict[str, str],
    manifests: ManifestLog | None,
    ground: Ground,
    wish: Wish,
    plan: SparkPlan,
    any_order: bool,
    verbose: bool,
    as_json: bool,
) -> dict[str, Any]:
    from tallymark.pipeline.replay import Replay
    from tallymark.pipeline.session import started

    spark = stack.enter_context(started(plan, verbose=verbose))

    def note(total: Redriven) -> None:
        if not as_json:
            output.remark(f"{total.read:,} read, {total.kept:,} kept, {total.repeated:,} known before")

    job = Replay(
        spark,
        client,
        None if manifests is None else manifests.folder,
        lambda messages: store.redrive(messages, any_order=any_order),
        since_ms=wish.since_ms,
        ids=wish.ids,
        note=note,
    )
    total = job.run(ground.source)
    return {
        "consumer": store.consumer,
        "new_consumer": ground.new,
        "topics": list(ground.topics),
        **asdict(total),
        "from_archive": job.from_archive,
        "from_kafka": total.read - job.from_archive,
        "missing": sorted(set(wish.ids or ()) - job.found),
    }


def _moment_ms(text: str) -> int:
    from tallymark.cli.seekto import target_of
    from tallymark.pipeline.replay import moment_ms

    try:
        target = target_of(text, datetime.now(UTC))
    except UsageError:
        target = None
    if target is None or target.moment is None:
        raise UsageError(
            f"--since {text!r} is no time", remedy="as in 2026-11-15T10:00+00:00 (with a time zone), or -2h"
        )
    return moment_ms(target.moment)


def _ids(path: Path) -> tuple[str, ...]:
    try:
        text = sys.stdin.read() if str(path) == "-" else path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {getattr(error, 'strerror', error)}") from error
    found: Sequence[str] = [line.strip() for line in text.splitlines()]
    ids = tuple(dict.fromkeys(each for each in found if each and not each.startswith("#")))
    if not ids:
        raise UsageError(f"{path} names no message", remedy="write an id per line")
    return ids
