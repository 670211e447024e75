"""`tallymark failed list | show | retry | discard --at relay`: messages that failed on their own."""

from __future__ import annotations

import getpass
import uuid
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from tallymark.cli import connections, output
from tallymark.errors import Problem, UsageError
from tallymark.lifecycle import ParkedState

if TYPE_CHECKING:
    from tallymark.store.stores import AnyOperators

app = typer.Typer(
    add_completion=False, no_args_is_help=True, help="Messages that failed: look, retry, discard."
)

At = Annotated[Literal["relay"], typer.Option("--at", help="Where they failed.")]
Ids = Annotated[list[str] | None, typer.Argument(metavar="[ID]…", help="Messages' ids.")]
All = Annotated[bool, typer.Option("--all", help="Every failed message (of --topic, where given).")]
Topic = Annotated[str | None, typer.Option("--topic", help="Only this topic.")]


@app.command("list")
def list_(
    at: At = "relay",
    topic: Topic = None,
    waiting: Annotated[
        bool, typer.Option("--waiting", help="Also those that wait behind a failed one.")
    ] = False,
    limit: Annotated[int, typer.Option("--limit", min=1, max=100_000)] = 100,
    database: connections.DatabaseOption = None,
    as_json: output.JsonOption = False,
) -> None:
    """Failed messages, the oldest first, with the reason and how many wait behind each."""
    states = [ParkedState.FAILED, ParkedState.RETRYING] + ([ParkedState.WAITING] if waiting else [])
    found = _operators(database).parked(states=states, topic=topic, after=-1, limit=limit)
    output.emit(
        [
            {
                "at": at,
                "id": each.id,
                "state": each.state.value,
                "topic": each.topic,
                "key": _key(each.key),
                "position": each.position,
                "reason": each.reason,
                "attempts": each.attempts,
                "parked_at": each.parked_at.isoformat(),
                "behind": each.behind,
            }
            for each in found
        ],
        as_json=as_json,
        human=lambda: (
            output.table(
                ("id", "state", "topic", "key", "behind", "since", "reason"),
                [
                    (
                        e.id,
                        e.state,
                        e.topic,
                        _key(e.key),
                        e.behind,
                        e.parked_at.isoformat(" ", "seconds"),
                        e.reason,
                    )
                    for e in found
                ],
            )
            if found
            else "nothing has failed"
        ),
    )


@app.command()
def show(
    id: Annotated[str, typer.Argument(help="The message's id.")],
    at: At = "relay",
    payload: Annotated[bool, typer.Option("--payload", help="Also its value, which may be private.")] = False,
    database: connections.DatabaseOption = None,
    as_json: output.JsonOption = False,
) -> None:
    """Everything about one failed message."""
    found = _operators(database).parked_one(_checked([id])[0])
    if found is None:
        raise Problem(f"{id} did not fail at the {at}", remedy="`tallymark outbox show` says where it is")
    value = found.pop("value")
    shown = {**found, "key": _key(found["key"]), "value_bytes": len(value or b"")}
    if payload:
        shown["value"] = _key(value)
    output.emit(shown, as_json=as_json, human=lambda: output.table(("", ""), list(shown.items())))


@app.command()
def retry(
    ids: Ids = None,
    everything: All = False,
    at: At = "relay",  # noqa: ARG001 - one value until the inbox has failures of its own
    topic: Topic = None,
    reason: Annotated[str, typer.Option("--reason", help="Why, for the audit.")] = "",
    database: connections.DatabaseOption = None,
    as_json: output.JsonOption = False,
) -> None:
    """Send failed messages again, each with those of its key that wait behind it, in order."""
    operators = _operators(database)
    chosen = _chosen(operators, ids, everything, topic)
    changed = operators.retry(chosen, who=getpass.getuser(), reason=reason)
    _done("retried", chosen, changed, as_json)


@app.command()
def discard(
    ids: Ids = None,
    everything: All = False,
    at: At = "relay",  # noqa: ARG001 - one value until the inbox has failures of its own
    topic: Topic = None,
    reason: Annotated[str, typer.Option("--reason", help="Why; it is kept in the audit.")] = "",
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    database: connections.DatabaseOption = None,
    as_json: output.JsonOption = False,
) -> None:
    """Give messages up for good. Those that wait behind them are sent."""
    operators = _operators(database)
    chosen = _chosen(operators, ids, everything, topic)
    if not reason:
        raise UsageError("discarding needs a reason", remedy="say why with --reason; the audit keeps it")
    if not yes and not typer.confirm(f"Discard {len(chosen)} messages, never to be sent?", err=True):
        raise UsageError("nothing was discarded", remedy="say yes, or pass --yes")
    changed = operators.discard(chosen, who=getpass.getuser(), reason=reason)
    _done("discarded", chosen, changed, as_json)


def _done(word: str, chosen: list[str], changed: list[str], as_json: bool) -> None:
    left = sorted(set(chosen) - set(changed))
    output.emit(
        {word: sorted(changed), "unchanged": left},
        as_json=as_json,
        human=lambda: (
            f"{word}: {len(changed)}" + (f"; not failed, so unchanged: {', '.join(left)}" if left else "")
        ),
    )
    if left and not changed:
        raise typer.Exit(1)


def _chosen(operators: AnyOperators, ids: list[str] | None, everything: bool, topic: str | None) -> list[str]:
    if bool(ids) == everything:
        raise UsageError("which messages?", remedy="name their ids, or pass --all")
    if ids:
        return _checked(ids)
    return [
        each.id
        for each in operators.parked(states=[ParkedState.FAILED], topic=topic, after=-1, limit=1_000_000)
    ]


def _checked(ids: list[str]) -> list[str]:
    try:
        return [str(uuid.UUID(each)) for each in ids]
    except ValueError:
        raise UsageError(
            "that is not a message's id", remedy="ids are UUIDs, as `failed list` shows them"
        ) from None


def _operators(database: str | None) -> AnyOperators:
    from tallymark.store.stores import operators_for

    settings = connections.load(database=database).settings
    return operators_for(connections.database(settings).url.get_secret_value(), schema=settings.schema_name)


def _key(key: bytes | None) -> str | None:
    return None if key is None else bytes(key).decode("utf-8", "backslashreplace")
