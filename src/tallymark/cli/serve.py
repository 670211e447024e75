"""`tallymark serve`: the query interface and the metrics of the whole system, over HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tallymark.cli import connections, output

if TYPE_CHECKING:
    from tallymark.settings import Settings

app = typer.Typer(add_completion=False)


@app.command()
def serve(
    database: Annotated[
        list[str] | None,
        typer.Option(
            "--database",
            metavar="NAME|URL",
            help="Look at this one (repeatable; the first holds the tokens). Default: all of the settings.",
        ),
    ] = None,
    bootstrap_servers: connections.BootstrapOption = None,
    host: Annotated[str, typer.Option("--host", help="Where to listen.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0: any that is free.")] = 8321,
    tls_in_front: Annotated[
        bool, typer.Option("--tls-in-front", help="A proxy in front speaks TLS: other addresses are fine.")
    ] = False,
    tls_certificate: Annotated[
        Path | None, typer.Option("--tls-certificate", metavar="PEM", help="Speak TLS ourselves.")
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option("--tls-key", metavar="PEM", help="The certificate's key.")
    ] = None,
    pool: Annotated[int, typer.Option("--connections", min=1, max=64, help="To each database, at most.")] = 8,
    wrong_tokens: Annotated[
        int, typer.Option("--wrong-tokens", min=1, help="So many from one address in a minute, at most.")
    ] = 10,
    patience: Annotated[
        float,
        typer.Option("--patience", min=0.1, help="Seconds; a client that reads nothing for so long is left."),
    ] = 30.0,
    openapi: Annotated[
        bool, typer.Option("--openapi", help="Print the OpenAPI document, and serve nothing.")
    ] = False,
) -> None:
    """Answer over HTTP where any message is, until told to stop (SIGTERM, Ctrl-C). Nobody without a token."""
    from tallymark.console.guard import FailedTokens
    from tallymark.console.server import Listening, require_tokens, world_of
    from tallymark.console.server import serve as run

    if openapi:
        _print_document()
        return
    listening = Listening(host, port, tls_in_front, tls_certificate, tls_key)
    listening.check()
    # One --database counts as the settings' own: a local cluster's name is known by it.
    settings = connections.load(
        bootstrap_servers=bootstrap_servers, database=database[0] if database else None
    ).settings
    from tallymark.cli.servedatabases import databases_of

    world = world_of(
        databases_of(settings, database or []),
        schema=settings.schema_name,
        kafka=_kafka(settings),
        connections=pool,
    )
    if not require_tokens(world):
        output.remark("no token is in use yet: `tallymark tokens create --role viewer` makes one")
    output.remark(f"looking at {', '.join(world.databases)}")
    if world.kafka is None:
        output.remark("no Kafka is given: lag is not known")
    run(world, listening, failed=FailedTokens(allowed=wrong_tokens), stalled_s=patience)


def _kafka(settings: Settings) -> dict[str, str] | None:
    return connections.kafka_client(settings) if settings.kafka.bootstrap_servers else None


def _print_document() -> None:
    from tallymark.console.app import document, framework
    from tallymark.console.server import world_of

    made = document(framework(world_of({"main": ""}, schema="tallymark", kafka=None)))
    output.emit(made, as_json=True, human=str)
