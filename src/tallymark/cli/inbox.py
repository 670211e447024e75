"""`tallymark inbox run | status | pause | resume | seek`: from Kafka to the consumer's database."""

from __future__ import annotations

import uuid
from collections.abc import Collection
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from tallymark.cli import connections, output
from tallymark.cli.person import user
from tallymark.errors import Problem, TallymarkError, UsageError
from tallymark.lifecycle import Role

if TYPE_CHECKING:
    from tallymark.cli.inboxview import Ends
    from tallymark.cli.seekto import Target
    from tallymark.settings import Settings
    from tallymark.store.postgres.inboxoperators import ConsumerStatus, InboxOperators

app = typer.Typer(add_completion=False, no_args_is_help=True, help="From Kafka to the consumer's database.")

Consumer = Annotated[str, typer.Argument(metavar="CONSUMER", help="The inbox's name.")]
Reason = Annotated[str, typer.Option("--reason", help="Why, for the audit.")]

Place = tuple[str, int]


@app.command()
def run(
    reference: Annotated[str, typer.Argument(metavar="APP:INBOX", help="Where the inbox is declared.")],
    database: connections.DatabaseOption = None,
    bootstrap_servers: connections.BootstrapOption = None,
    metrics_port: Annotated[
        int | None, typer.Option("--metrics-port", help="Serve /metrics, /healthz and /readyz on loopback.")
    ] = None,
) -> None:
    """Receive, keep and apply messages until told to stop (SIGTERM, Ctrl-C)."""
    from tallymark.cli.appref import inbox_of
    from tallymark.cli.inboxrun import serve

    serve(
        inbox_of(reference),
        database=database,
        bootstrap_servers=bootstrap_servers,
        metrics_port=metrics_port,
    )


@app.command()
def status(
    consumer: Annotated[
        str | None, typer.Argument(metavar="[CONSUMER]", help="All of them if left out.")
    ] = None,
    database: connections.DatabaseOption = None,
    bootstrap_servers: connections.BootstrapOption = None,
    as_json: output.JsonOption = False,
) -> None:
    """Positions with owner and epoch, lag in messages and in seconds, parked keys, dead letters, rates."""
    from tallymark.cli import inboxview

    settings = connections.load(bootstrap_servers=bootstrap_servers, database=database).settings
    operators = _operators(settings)
    found = _with_groups(settings, operators.status(consumer))
    ends = _ends(settings, found)
    output.emit(
        inboxview.as_data(found, ends),
        as_json=as_json,
        human=lambda: inboxview.shown(
            found, ends, connections.as_given(database), () if consumer else operators.retired()
        ),
    )


@app.command()
def pause(
    consumer: Consumer,
    database: connections.DatabaseOption = None,
    reason: Reason = "",
    as_json: output.JsonOption = False,
) -> None:
    """Let a consumer stand still: what was begun is finished, nothing new is read. It stays in its group."""
    _set_paused(consumer, database, reason, as_json, paused=True)


@app.command()
def resume(
    consumer: Consumer,
    database: connections.DatabaseOption = None,
    reason: Reason = "",
    as_json: output.JsonOption = False,
) -> None:
    """Let a paused consumer go on."""
    _set_paused(consumer, database, reason, as_json, paused=False)


@app.command()
def retire(
    consumer: Consumer,
    topic: Annotated[
        str | None, typer.Option("--topic", help="Only from this topic, which it reads no more.")
    ] = None,
    database: connections.DatabaseOption = None,
    reason: Reason = "",
    as_json: output.JsonOption = False,
) -> None:
    """Say that a consumer was stopped for good: nobody waits for it any more. Starting it takes it back."""
    operators, by = _operators(connections.load(database=database).settings), user()
    if topic is None:
        changed = operators.retire(consumer, who=by, reason=reason)
    else:
        changed = operators.retire_topic(consumer, topic, who=by, reason=reason)
    what = consumer if topic is None else f"{consumer} in {topic}"
    output.emit(
        {"consumer": consumer, "topic": topic, "changed": changed},
        as_json=as_json,
        human=lambda: f"{what} is retired" if changed else f"{what} was retired before",
    )


@app.command()
def seek(
    consumer: Consumer,
    where: Annotated[str, typer.Argument(metavar="TOPIC[/PARTITION]", help="All partitions, or one.")],
    to: Annotated[
        str, typer.Option("--to", help="An offset, beginning, end, a time (ISO, or -2h), or a message's id.")
    ],
    reason: Annotated[str, typer.Option("--reason", help="Why; it is kept in the audit.")] = "",
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    database: connections.DatabaseOption = None,
    bootstrap_servers: connections.BootstrapOption = None,
    as_json: output.JsonOption = False,
) -> None:
    """Move a consumer's positions; halted ones go on. What was kept before is known again, and changes nothing."""
    from tallymark.cli.seekto import place_of, target_of

    settings = connections.load(bootstrap_servers=bootstrap_servers, database=database).settings
    operators = _operators(settings)
    standing = _with_groups(settings, operators.status(consumer))[0]
    if not reason:
        raise UsageError("a position is moved by hand with a reason", remedy="say why with --reason")
    topic, partition = place_of(where)
    if topic not in standing.topics:
        raise UsageError(
            f"{consumer} does not read {topic}", remedy=f"its topics are: {', '.join(standing.topics)}"
        )
    if standing.in_kafka and standing.instances:
        raise Problem(
            f"the positions of {consumer} are its group's offsets in Kafka, and {standing.instances[0].owner} reads",
            remedy="stop its processes first, then seek",
        )
    offsets = _resolved(settings, operators, consumer, topic, partition, target_of(to, datetime.now(UTC)))
    before = {each.place: each.next_offset for each in standing.positions}
    if not yes:
        for place, offset in offsets.items():
            output.remark(_step(place, before.get(place), offset))
        if not typer.confirm("Move?", err=True):
            raise UsageError("nothing was moved", remedy="say yes, or pass --yes")
    if standing.in_kafka:
        from tallymark.broker.offsets import move_group
        from tallymark.broker.reach import admin_client

        move_group(admin_client(connections.kafka_client(settings)), consumer, offsets)
        operators.note_seek(consumer, offsets, before, who=user(), reason=reason)
    else:
        operators.seek(consumer, offsets, who=user(), reason=reason)
    output.emit(
        [
            {"topic": place[0], "partition": place[1], "before": before.get(place), "after": offset}
            for place, offset in offsets.items()
        ],
        as_json=as_json,
        human=lambda: [_step(place, before.get(place), offset) for place, offset in offsets.items()],
    )


def _step(place: Place, before: int | None, after: int) -> str:
    name = f"{place[0]}/{place[1]}"
    if before is None:
        return f"{name}: begins at {after}"
    if after > before:
        return f"{name}: {before} → {after}; offsets {before} to {after - 1} are skipped"
    if after < before:
        return f"{name}: {before} → {after}; what was kept since is read again, known, and changes nothing"
    return f"{name}: stays at {after}"


def _resolved(
    settings: Settings,
    operators: InboxOperators,
    consumer: str,
    topic: str,
    partition: int | None,
    target: Target,
) -> dict[Place, int]:
    from tallymark.broker import offsets
    from tallymark.broker.reach import admin_client, reach

    if target.kind == "id":
        found = next(
            (place for each in _saved_under(target.id) if (place := operators.place_of(consumer, each))), None
        )
        if found is None or found[0] != topic or partition not in (None, found[1]):
            raise Problem(
                f"{consumer} has kept no message {target.id} of {topic}",
                remedy="give an offset or a time; `tallymark trace` says when it was sent",
            )
        return {(found[0], found[1]): found[2]}
    client = connections.kafka_client(settings)
    reach(client)
    admin = admin_client(client)
    places = [each for each in offsets.partitions(admin, [topic]) if partition in (None, each[1])]
    if not places:
        raise UsageError(f"{topic} has no partition {partition}", remedy="partitions count from 0")
    if target.kind == "time":
        assert target.moment is not None  # noqa: S101 - as above
        by_time = offsets.at_time(admin, places, int(target.moment.timestamp() * 1000))
        require_all(places, by_time)
        return by_time
    bounds = offsets.bounds(admin, places)
    require_all(places, bounds)
    if target.kind != "offset":
        return {place: first if target.kind == "beginning" else end for place, (first, end) in bounds.items()}
    if partition is None and len(places) > 1:
        raise UsageError(
            f"offset {target.offset} of which partition?", remedy=f"name it, as in {topic}/0; or give a time"
        )
    first, end = bounds[places[0]]
    if not first <= target.offset <= end:
        raise UsageError(
            f"{topic}/{places[0][1]} has no offset {target.offset}: its log goes from {first} to {end}",
            remedy="give one of these, beginning or end",
        )
    return {places[0]: target.offset}


def require_all(places: Collection[Place], told: Collection[Place]) -> None:
    """Refuse to move some of a topic's positions where Kafka cannot answer for others."""
    if missing := [f"{topic}/{number}" for topic, number in places if (topic, number) not in told]:
        raise Problem(f"Kafka says nothing of {', '.join(missing)}", remedy="try again when it has a leader")


def _saved_under(id: str) -> list[uuid.UUID]:
    """An id may be a UUIDv7, saved as it is, or a producer's own name, saved under what is derived from it."""
    from tallymark.inbox.identity import named_id

    try:
        return [uuid.UUID(id), named_id(id.encode())]
    except ValueError:
        return [named_id(id.encode())]


def _with_groups(settings: Settings, consumers: list[ConsumerStatus]) -> list[ConsumerStatus]:
    """Where positions are the group's offsets in Kafka, they are asked for there."""
    from tallymark.broker import offsets
    from tallymark.broker.reach import admin_client
    from tallymark.store.postgres.inboxoperators import PositionStatus

    for consumer in consumers:
        if not consumer.in_kafka:
            continue
        try:
            admin = admin_client(connections.kafka_client(settings))
            places = offsets.partitions(admin, consumer.topics)
            found = offsets.group_offsets(admin, consumer.consumer, places)
        except TallymarkError as error:
            output.remark(f"without the offsets of group {consumer.consumer}: {error}")
            continue
        alive = bool(consumer.instances)
        consumer.positions[:] = [
            PositionStatus.in_group(consumer.consumer, place, offset, alive=alive)
            for place, offset in sorted(found.items())
        ]
    return consumers


def _ends(settings: Settings, consumers: list[ConsumerStatus]) -> Ends:
    """What Kafka adds to the positions; without Kafka, why it is missing."""
    from tallymark.broker import offsets, peek
    from tallymark.broker.reach import admin_client, reach
    from tallymark.cli.inboxview import Ends

    positions = {each.place: each.next_offset for consumer in consumers for each in consumer.positions}
    if not positions:
        return Ends({}, {})
    try:
        client = connections.kafka_client(settings)
        reach(client)
        bounds = offsets.bounds(admin_client(client), positions)
        oldest = peek.oldest_left(client, bounds, positions)
        return Ends({place: end for place, (_, end) in bounds.items()}, oldest)
    except TallymarkError as error:
        return Ends({}, {}, str(error))


def _set_paused(consumer: str, database: str | None, reason: str, as_json: bool, *, paused: bool) -> None:
    settings = connections.load(database=database).settings
    changed = _operators(settings).pause(consumer, who=user(), reason=reason, paused=paused)
    word = "paused" if paused else "resumed"
    output.emit(
        {word: consumer, "changed": changed},
        as_json=as_json,
        human=lambda: (
            f"{consumer} is {word}" if changed else f"{consumer} was {word} before: nothing to change"
        ),
    )


def _operators(settings: Settings) -> InboxOperators:
    from tallymark.store.postgres.inboxoperators import InboxOperators
    from tallymark.store.sqlite.schema import is_sqlite

    url = connections.database(settings, role=Role.CONSUMER).url.get_secret_value()
    if is_sqlite(url):
        raise UsageError("SQLite holds an outbox only", remedy="name the consumer's database")
    return InboxOperators(url, schema=settings.schema_name)
