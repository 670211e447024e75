"""`tallymark failed list | show | retry | discard [--at relay | inbox]`: messages that failed on their own."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from tallymark.cli import connections, output
from tallymark.cli.person import user
from tallymark.errors import Problem, UsageError
from tallymark.lifecycle import Role

if TYPE_CHECKING:
    from tallymark.cli.desks import Changed, Choice, Desk

app = typer.Typer(
    add_completion=False, no_args_is_help=True, help="Messages that failed: look, retry, discard."
)

At = Annotated[Literal["relay", "inbox"], typer.Option("--at", help="Where they failed.")]
Ids = Annotated[list[str] | None, typer.Argument(metavar="[ID]…", help="Messages' ids.")]
All = Annotated[
    bool, typer.Option("--all", help="Every failed message (of --topic, --consumer, where given).")
]
Topic = Annotated[str | None, typer.Option("--topic", help="Only this topic.")]
Consumer = Annotated[str | None, typer.Option("--consumer", help="Only this consumer (at an inbox).")]

_COLUMNS = {
    "relay": ("id", "state", "topic", "key", "behind", "parked_at", "reason"),
    "inbox": ("consumer", "id", "state", "topic", "key", "attempts", "behind", "since", "reason"),
}


@app.command("list")
def list_(
    at: At = "relay",
    topic: Topic = None,
    consumer: Consumer = None,
    waiting: Annotated[
        bool, typer.Option("--waiting", help="Also those that wait behind a failed one (at the relay).")
    ] = False,
    limit: Annotated[int, typer.Option("--limit", min=1, max=100_000)] = 100,
    database: connections.DatabaseOption = None,
    as_json: output.JsonOption = False,
) -> None:
    """Failed messages, the oldest first, with the reason and how many wait behind each."""
    found = _desk(at, database).listed(topic=topic, consumer=consumer, waiting=waiting, limit=limit)
    columns = _COLUMNS[at]
    output.emit(
        found,
        as_json=as_json,
        human=lambda: (
            output.table(columns, [[each[column] for column in columns] for each in found])
            if found
            else f"nothing has failed at the {at}; `--at {'inbox' if at == 'relay' else 'relay'}` looks at the other side"
        ),
    )


@app.command()
def show(
    id: Annotated[str, typer.Argument(help="The message's id.")],
    at: At = "relay",
    consumer: Consumer = None,
    payload: Annotated[bool, typer.Option("--payload", help="Also its value, which may be private.")] = False,
    database: connections.DatabaseOption = None,
    as_json: output.JsonOption = False,
) -> None:
    """Everything about one failed message."""
    from tallymark.cli.desks import text_of

    found = _desk(at, database).show(id, consumer)
    if not found:
        other = "inbox" if at == "relay" else "relay"
        raise Problem(
            f"{id} did not fail at the {at}",
            remedy=f"`tallymark trace {id}` says where it is; `--at {other}` looks at the other side",
        )
    shown = []
    for each in found:
        value = each.pop("value")
        row = {**each, "key": text_of(each["key"]), "value_bytes": len(value or b"")}
        shown.append({**row, "value": text_of(value)} if payload else row)
    # An id can have failed for two consumers; for most there is one answer, and it is shown as one.
    result = shown[0] if len(shown) == 1 else shown
    output.emit(
        result,
        as_json=as_json,
        human=lambda: [output.table(("", ""), [(k, _plain(v)) for k, v in row.items()]) for row in shown],
    )


@app.command()
def retry(
    ids: Ids = None,
    everything: All = False,
    at: At = "relay",
    topic: Topic = None,
    consumer: Consumer = None,
    any_order: Annotated[
        bool,
        typer.Option("--any-order", help="Although a later one of its key was applied (at an inbox)."),
    ] = False,
    never_applied: Annotated[
        bool,
        typer.Option(
            "--never-applied",
            help="Although its id is older than the saved ones: you know that it was not applied (at an inbox).",
        ),
    ] = False,
    reason: Annotated[str, typer.Option("--reason", help="Why, for the audit.")] = "",
    database: connections.DatabaseOption = None,
    as_json: output.JsonOption = False,
) -> None:
    """Try failed messages again, each with those of its key that wait behind it, in order."""
    choice = _choice(ids, everything, topic, consumer)
    if never_applied and ids is None:
        raise UsageError("--never-applied is said of single messages", remedy="name them by their ids")
    done = _desk(at, database).retry(
        choice, who=user(), reason=reason, any_order=any_order, never_applied=never_applied
    )
    _done("retried", done, as_json)


@app.command()
def discard(
    ids: Ids = None,
    everything: All = False,
    at: At = "relay",
    topic: Topic = None,
    consumer: Consumer = None,
    reason: Annotated[str, typer.Option("--reason", help="Why; it is kept in the audit.")] = "",
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    database: connections.DatabaseOption = None,
    as_json: output.JsonOption = False,
) -> None:
    """Give messages up for good. Those that wait behind them go on."""
    desk, choice = _desk(at, database), _choice(ids, everything, topic, consumer)
    if not reason:
        raise UsageError("discarding needs a reason", remedy="say why with --reason; the audit keeps it")
    if not yes and not typer.confirm(
        f"Discard {output.counted(desk.count(choice), 'message')} for good?", err=True
    ):
        raise UsageError("nothing was discarded", remedy="say yes, or pass --yes")
    _done("discarded", desk.discard(choice, who=user(), reason=reason), as_json)


def _done(word: str, done: Changed, as_json: bool) -> None:
    output.emit(
        {word: sorted(done.changed), "unchanged": sorted(done.refused), "why": done.refused},
        as_json=as_json,
        human=lambda: [
            f"{word}: {len(done.changed)}",
            *(f"unchanged: {id_}: {why}" for id_, why in sorted(done.refused.items())),
        ],
    )
    if done.refused and not done.changed:
        raise typer.Exit(1)


def _choice(ids: list[str] | None, everything: bool, topic: str | None, consumer: str | None) -> Choice:
    from tallymark.cli.desks import Choice

    if bool(ids) == everything:
        raise UsageError("which messages?", remedy="name their ids, or pass --all")
    return Choice(ids or None, topic, consumer)


def _desk(at: Literal["relay", "inbox"], database: str | None) -> Desk:
    from tallymark.cli.desks import desk_at

    settings = connections.load(database=database).settings
    role = Role.PRODUCER if at == "relay" else Role.CONSUMER
    return desk_at(at, connections.database(settings, role=role).url.get_secret_value(), settings.schema_name)


def _plain(value: object) -> object:
    return value.isoformat(" ", "seconds") if isinstance(value, datetime) else value
