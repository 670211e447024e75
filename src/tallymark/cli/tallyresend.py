"""`tallymark tally resend`: sends exactly the messages again that were found missing. Needs no Spark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tallymark.cli import output, tallyspans
from tallymark.cli.person import user
from tallymark.errors import UsageError
from tallymark.lifecycle import Verdict
from tallymark.tally.verdicts import MENDABLE

if TYPE_CHECKING:
    from tallymark.tally.resending import Wanted


def resend(
    ids: Annotated[
        list[str] | None,
        typer.Argument(metavar="[ID]…", help="Messages' ids; default: all that are missing."),
    ] = None,
    findings: Annotated[
        Path | None,
        typer.Option(
            "--findings", metavar="FILE", help="Findings as `tally run --json` or `list --json` wrote them."
        ),
    ] = None,
    verdict: Annotated[
        list[Verdict] | None, typer.Option("--verdict", help="Only these; may be repeated.")
    ] = None,
    # Each key is locked until all are sent again: of more than this, a server with PostgreSQL's defaults has no room.
    limit: Annotated[int, typer.Option("--limit", min=1, max=5_000, help="At most so many.")] = 1000,
    any_order: Annotated[
        bool,
        typer.Option(
            "--any-order", help="Also behind later applied ones of their keys: the handlers can take it."
        ),
    ] = False,
    forgotten: Annotated[
        bool,
        typer.Option(
            "--forgotten",
            help="Also where an inbox no longer remembers that time: there it becomes a dead letter. "
            "Not what has an id without a time, which would be applied.",
        ),
    ] = False,
    reason: Annotated[str, typer.Option("--reason", help="Why; kept in the audit.")] = "",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be sent, and send nothing.")
    ] = False,
    database: Annotated[
        list[str] | None,
        typer.Option(
            "--database", metavar="NAME|URL", help="Outbox and consumers; default: all of the settings."
        ),
    ] = None,
    as_json: output.JsonOption = False,
) -> None:
    """Send what is missing again: consumers that had it change nothing, those that had not apply it once."""
    from tallymark.store.postgres.resend import Resending

    where = tallyspans.stations(database, None, kafka=False)
    if len(where.producers) != 1:
        raise UsageError(
            f"resend works on one outbox, and there are {len(where.producers)} here",
            remedy="name one producer's database and its consumers': --database bank --database ledger",
        )
    (url,) = where.producers.values()
    chosen, left = _wanted(where, ids or [], findings, verdict, limit)
    with output.progress(quiet=as_json) as told:
        done = Resending(url, where.consumers, schema=where.schema, progress=told).resend(
            chosen,
            who=user(),
            reason=reason,
            any_order=any_order,
            forgotten=forgotten,
            dry_run=dry_run,
        )
    output.emit(
        {"dry_run": dry_run, "resent": done.resent, "refused": done.refused, "left": left},
        as_json=as_json,
        human=lambda: _told(done.resent, done.refused, left, dry_run=dry_run),
    )
    if done.refused:
        raise typer.Exit(1)


def _wanted(
    where: tallyspans.Stations, ids: list[str], file: Path | None, verdicts: list[Verdict] | None, limit: int
) -> tuple[list[Wanted], int]:
    """Which messages, and how many more there are than the limit."""
    from tallymark.store.postgres.resend import wanted_of
    from tallymark.tally.resending import Wanted

    if ids and file is not None:
        raise UsageError("ids and --findings exclude each other", remedy="give one of them")
    there: int | None = None
    if ids:
        found = [Wanted(each, "", "", None) for each in dict.fromkeys(ids)]
    else:
        chosen = verdicts or sorted(MENDABLE)
        if odd := [each for each in chosen if each not in MENDABLE]:
            raise UsageError(
                f"{odd[0]} is not mended by sending it again",
                remedy=f"these are: {', '.join(sorted(MENDABLE))}",
            )
        if file is not None:
            found = [each for each in wanted_of(_read(file)) if each.verdict in chosen]
        else:
            (findings,) = tallyspans.findings_of(None, where).values()
            found = wanted_of([each.as_json() for each in findings.listed(verdicts=chosen, limit=10 * limit)])
            # Counted where they are kept: only so many of them are read as may be sent now.
            there = findings.messages(chosen)
    # One finding per consumer that lacks it, and one resend for all of them.
    named = list(dict.fromkeys(each.id for each in found))
    now = set(named[:limit])
    return [each for each in found if each.id in now], max(0, (there or len(named)) - len(now))


def _read(file: Path) -> list[Any]:
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise UsageError(
            f"{file} is not JSON: {error}", remedy="give what `tally run --json` wrote"
        ) from error
    rows = data.get("findings") if isinstance(data, dict) else data
    if not isinstance(rows, list):
        raise UsageError(
            f"{file} holds no findings", remedy="give what `tally run --json` or `tally list --json` wrote"
        )
    return rows


def _told(resent: list[dict[str, object]], refused: dict[str, str], left: int, *, dry_run: bool) -> list[Any]:
    verb = "would be sent again" if dry_run else "sent again"
    parts: list[Any] = [
        f"{output.counted(len(resent), 'message')} {verb}"
        + (f"; {left} more are missing: --limit" if left else "")
    ]
    if resent:
        columns = ("id", "resend", "position", "of_position", "verdict", "consumer")
        parts.append(output.table(columns, [[row[column] for column in columns] for row in resent[:50]]))
    if refused:
        parts.append(output.table(("not sent again", "because"), list(refused.items())[:50]))
    return parts
