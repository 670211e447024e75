"""`tallymark trace ID`, or `--key K --since T`: the whole life of one message, from its transaction to its effects."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from tallymark.cli import output, tallyspans
from tallymark.errors import Problem, UsageError
from tallymark.lifecycle import Verdict

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tallymark.tally.trace import Trace, TraceEvent

app = typer.Typer(add_completion=False)

# What would be misread under its name in the data.
_NAMES = {"next_offset": "consumer now at"}


@app.command()
def trace(
    id: Annotated[str | None, typer.Argument(metavar="[ID]", help="The message's id.")] = None,
    key: Annotated[str | None, typer.Option("--key", help="All messages of this key, with --since.")] = None,
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="TIME|AGO", help="A moment (ISO), or how long ago: 2h, 3d."),
    ] = None,
    topic: Annotated[str | None, typer.Option("--topic", help="With --key: only this topic.")] = None,
    limit: Annotated[
        int, typer.Option("--limit", min=1, max=1000, help="With --key: how many at most.")
    ] = 20,
    database: Annotated[
        list[str] | None,
        typer.Option("--database", metavar="NAME|URL", help="Where to look; default: all of the settings."),
    ] = None,
    as_json: output.JsonOption = False,
) -> None:
    """The life of a message: transaction, batch, place in the log, receipt, position, attempts, effect."""
    from tallymark.store.postgres.tracing import Tracer

    if (id is None) == (key is None):
        raise UsageError("trace needs an id, or --key with --since", remedy="tallymark trace ID")
    chosen, schema = tallyspans.databases(database)
    tracer = Tracer({each.name: each.url for each in chosen}, schema=schema)
    if id is not None:
        ids = [id.strip()]
    else:
        if since is None:
            raise UsageError("--key needs --since", remedy="say from when on: --since 2h")
        ids = tracer.ids((key or "").encode(), tallyspans.moment(since), topic=topic, limit=limit)
    found = [life for each in ids if (life := tracer.trace(each)) is not None]
    if not found:
        what = f"message {id}" if id is not None else f"message of key {key} since {since}"
        raise Problem(
            f"there is no {what} in {', '.join(each.name for each in chosen)}",
            remedy="it may be of another system, or dropped by retention",
        )
    output.emit(
        found[0].as_json() if id is not None else [life.as_json() for life in found],
        as_json=as_json,
        human=lambda: [part for life in found for part in _told(life)],
    )


def _told(life: Trace) -> list[RenderableType]:
    clock = (
        "times of adding are times of commit"
        if life.clock == "commit"
        else "times of adding, not of commit (track_commit_timestamp is off)"
    )
    key = "" if life.key is None else f", key {life.key.decode('utf-8', 'backslashreplace')}"
    times = [event.at for event in life.events if event.at is not None]
    start = next(iter(times), None)
    # The day stands once, over the column, where all of it happened on one.
    days = {at.astimezone(UTC).date() for at in times}
    of_day = len(days) == 1
    return [
        f"{life.id}  {life.verdict}: {_sentence(life)}",
        f"topic {life.topic}{key}; {clock}",
        output.table(
            (f"{days.pop()}, UTC" if of_day else "at, UTC", "after", "station", "what", "where"),
            [
                (_clock(each.at, of_day=of_day), _after(start, each), each.station, each.what, _where(each))
                for each in life.events
            ],
        ),
    ]


def _sentence(life: Trace) -> str:
    """What the verdict means; of a message that nobody here is to apply, no more than is known."""
    if life.verdict is Verdict.DELIVERED and not any(e.station in ("inbox", "apply") for e in life.events):
        return "Written and sent. No consumer of its topic is known in these databases."
    return life.verdict.sentence


def _clock(at: datetime | None, *, of_day: bool) -> str:
    if at is None:
        return ""
    moment = at.astimezone(UTC).replace(tzinfo=None)
    return moment.time().isoformat("milliseconds") if of_day else moment.isoformat(" ", "milliseconds")


def _after(start: datetime | None, event: TraceEvent) -> str:
    if start is None or event.at is None:
        return ""
    passed = event.at - start
    if passed < timedelta(0):
        return f"{passed.total_seconds():.3f} s"
    if passed < timedelta(minutes=10):
        return f"+{passed.total_seconds():.3f} s"
    return f"+{passed}".split(".")[0]


def _where(event: TraceEvent) -> str:
    # By identity: partition 0 and offset 0 are places too, and equal to False.
    shown = {
        name: value
        for name, value in event.details.items()
        if value is not None and value is not False and value != ""
    }
    shown.pop("clock", None)
    return ", ".join(f"{_NAMES.get(name, name)} {value}" for name, value in shown.items())
