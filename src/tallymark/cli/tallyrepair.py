"""`tallymark tally repair --from URL`: a consumer takes what it lacks from the producer's side, without Kafka."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from tallymark.cli import connections, output, tallyspans
from tallymark.cli.person import user
from tallymark.errors import UsageError
from tallymark.lifecycle import Role
from tallymark.tally.repairing import Repaired


def repair(
    consumer: Annotated[str, typer.Option("--consumer", help="Who lacks messages.")],
    source: Annotated[str, typer.Option("--from", metavar="URL", help="The producer's query interface.")],
    token: Annotated[
        str,
        typer.Option(
            "--token", envvar="TALLYMARK_TOKEN", help="An operator's token there.", show_default=False
        ),
    ] = "",
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="TIME|AGO|POSITION", help="Sent since then; default: all."),
    ] = None,
    until: Annotated[
        str | None, typer.Option("--until", metavar="TIME|AGO|POSITION", help="… and before.")
    ] = None,
    topic: Annotated[
        list[str] | None, typer.Option("--topic", help="Only this topic; may be repeated.")
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", min=1, max=1_000_000, help="Take at most so many.")
    ] = 10_000,
    any_order: Annotated[
        bool,
        typer.Option(
            "--any-order", help="Also behind later applied ones of their keys: the handlers can take it."
        ),
    ] = False,
    reason: Annotated[str, typer.Option("--reason", help="Why; kept in the audit.")] = "",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what is lacking, and take nothing.")
    ] = False,
    database: connections.DatabaseOption = None,
    as_json: output.JsonOption = False,
) -> None:
    """Ask what was sent, compare with the inbox, and keep and queue what is lacking. Kafka is not needed."""
    from tallymark.broker.partition import partition_of
    from tallymark.store.postgres.tallyrepair import Repair

    if not token:
        raise UsageError("the producer's side wants a token", remedy="give --token, or set TALLYMARK_TOKEN")
    settings = connections.load(database=database).settings
    url = connections.database(settings, role=Role.CONSUMER).url.get_secret_value()
    repairing = Repair(url, consumer, place=partition_of, schema=settings.schema_name)
    try:
        from tallymark.console.client import Client
    except ModuleNotFoundError as error:
        raise UsageError(
            f"`tallymark tally repair` needs the package {error.name}",
            remedy="install Tallymark with its extra [serve]",
        ) from error
    with Client(source, token) as client:
        done = repairing.run(
            client,
            since=_when(since),
            until=_when(until),
            topics=topic or (),
            limit=limit,
            any_order=any_order,
            dry_run=dry_run,
            who=user(),
            reason=reason,
        )
    output.emit(
        {"dry_run": dry_run, **done.as_json()}, as_json=as_json, human=lambda: _told(done, dry_run=dry_run)
    )
    if done.refused:
        raise typer.Exit(1)


def _when(text: str | None) -> Any:
    if text is None:
        return None
    return int(text) if text.isdigit() else tallyspans.moment(text)


def _told(done: Repaired, *, dry_run: bool) -> list[Any]:
    parts: list[Any] = [
        f"{done.asked:,} were sent, {done.lacking:,} are lacking"
        + (f"; {len(done.missing):,} would be taken" if dry_run else f"; {done.kept:,} kept and queued")
    ]
    if done.unread:
        parts.append(
            f"{done.unread:,} left to Kafka: behind what the consumer has read, as earlier ones of their keys may be"
            " (without --since all are taken, in order)"
        )
    if done.forgotten:
        parts.append(
            f"{done.forgotten:,} left alone: the inbox has dropped what it kept of their time, and nobody can say whether"
            " they were applied"
        )
    if done.refused:
        parts.append(output.table(("not taken", "because"), list(done.refused.items())[:50]))
    return parts
