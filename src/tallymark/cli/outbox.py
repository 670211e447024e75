"""`tallymark outbox list | show`: where messages of the outbox are."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Annotated

import typer

from tallymark.cli import connections, output
from tallymark.errors import Problem, UsageError
from tallymark.lifecycle import MessageState, Role

if TYPE_CHECKING:
    from tallymark.outbox.ports import MessageStatus

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Look at messages in the outbox.")


@app.command("list")
def list_(
    state: Annotated[
        MessageState | None, typer.Option("--state", help="Only messages in this state.")
    ] = None,
    topic: Annotated[str | None, typer.Option("--topic", help="Only this topic.")] = None,
    key: Annotated[str | None, typer.Option("--key", help="Only this key.")] = None,
    limit: Annotated[
        int, typer.Option("--limit", min=1, max=10_000, help="How many at most, the newest first.")
    ] = 50,
    database: connections.DatabaseOption = None,
    as_json: output.JsonOption = False,
) -> None:
    """The newest messages, with the state of each."""
    from tallymark.store.stores import operators_for

    url, schema = _where(database)
    operators = operators_for(url, schema=schema)
    ids = operators.message_ids(
        state=state, topic=topic, key=key.encode() if key is not None else None, limit=limit
    )
    found = [status for status in (_status(url, schema, id_) for id_ in ids) if status is not None]
    output.emit(
        [_plain(status) for status in found],
        as_json=as_json,
        human=lambda: output.table(
            ("id", "state", "topic", "key", "position", "lane", "batch", "added", "reason"),
            [
                (s.id, s.state, s.topic, _key(s.key), s.position, s.lane, s.batch, s.added_at, s.reason or "")
                for s in found
            ],
        ),
    )


@app.command()
def show(
    id: Annotated[str, typer.Argument(help="A message's id.")],
    database: connections.DatabaseOption = None,
    as_json: output.JsonOption = False,
) -> None:
    """Where one message is, and what that means."""
    try:
        uuid.UUID(id)
    except ValueError:
        raise UsageError(
            f"{id!r} is not a message's id", remedy="ids are UUIDs, as `outbox.add` gives back"
        ) from None
    status = _status(*_where(database), id)
    if status is None:
        raise Problem(
            f"there is no message {id} here", remedy="it may be of another outbox, or dropped by retention"
        )
    output.emit(
        _plain(status),
        as_json=as_json,
        human=lambda: [
            f"{status.id}  {status.state}: {status.state.sentence}",
            output.table(
                ("", ""), [(name, value) for name, value in _plain(status).items() if value is not None]
            ),
        ],
    )


def _where(database: str | None) -> tuple[str, str]:
    settings = connections.load(database=database).settings
    return connections.database(settings, role=Role.PRODUCER).url.get_secret_value(), settings.schema_name


def _status(url: str, schema: str, id_: str) -> MessageStatus | None:
    from tallymark.store.stores import message_status

    return message_status(url, uuid.UUID(id_), schema=schema)


def _plain(status: MessageStatus) -> dict[str, object]:
    return {
        "id": str(status.id),
        "state": status.state.value,
        "topic": status.topic,
        "key": _key(status.key),
        "position": status.position,
        "lane": status.lane,
        "batch": status.batch,
        "added_at": status.added_at.isoformat(),
        "sent_at": status.sent_at.isoformat() if status.sent_at else None,
        "reason": status.reason,
    }


def _key(key: bytes | None) -> str | None:
    return None if key is None else key.decode("utf-8", "backslashreplace")
