"""`tallymark init`: create or migrate the schema in one database, and say what was done."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from tallymark.cli import connections, output
from tallymark.errors import UsageError
from tallymark.lifecycle import Role

if TYPE_CHECKING:
    from tallymark.store.postgres.migrations import MigrationReport

app = typer.Typer(add_completion=False)


@app.command()
def init(
    *,
    role: Annotated[
        Role | None,
        typer.Option(help="What lives in this database; default: as the settings say, else both."),
    ] = None,
    database: connections.DatabaseOption = None,
    lanes: Annotated[
        int | None,
        typer.Option(min=1, max=256, help="Lanes of a new outbox; later it is the relay's to change."),
    ] = None,
    notify: Annotated[
        bool | None,
        typer.Option("--notify/--no-notify", help="Whether writers wake relays by NOTIFY (docs/relay.md)."),
    ] = None,
    grants: Annotated[
        bool,
        typer.Option("--grants", help="Also make the least-privilege roles and grant them their rights."),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the SQL and change nothing.")] = False,
    json: output.JsonOption = False,
) -> None:
    """Create or migrate Tallymark's schema. Running it again changes nothing."""
    from tallymark.store.postgres import migrations
    from tallymark.store.sqlite.schema import is_sqlite
    from tallymark.store.stores import migrate_for

    loaded = connections.load(database=database)
    chosen = connections.database(loaded.settings)
    if not dry_run:
        connections.make_local_database(loaded, chosen, role or chosen.role)
    if grants and is_sqlite(chosen.url.get_secret_value()):
        raise UsageError("SQLite has no roles to grant to", remedy="leave --grants out")
    done = migrate_for(
        chosen.url.get_secret_value(),
        schema=loaded.settings.schema_name,
        role=role or chosen.role,
        dry_run=dry_run,
        lanes=lanes,
        notify=notify,
    )
    if grants:
        script = migrations.grants(done.schema)
        if dry_run:
            done = replace(done, sql=f"{done.sql}\n\n{script}")
        else:
            migrations.apply_grants(chosen.url.get_secret_value(), schema=done.schema)
    output.emit(
        {
            "schema": done.schema,
            "role": role or chosen.role,
            "applied": done.applied,
            "version_before": done.version_before,
            "version_after": done.version_after,
            "outbox_id": done.outbox_id,
            "grants": grants,
            "dry_run": dry_run,
            **({"sql": done.sql} if dry_run else {}),
        },
        as_json=json,
        human=lambda: done.sql if dry_run and done.sql else _told(done, dry_run=dry_run),
    )


def _told(done: MigrationReport, *, dry_run: bool) -> list[str]:
    if not done.applied:
        return [f"schema {done.schema}: already at version {done.version_after}, nothing to do"]
    verb = "would apply" if dry_run else "applied"
    lines = [f"schema {done.schema}: version {done.version_before} → {done.version_after}"]
    lines += [f"  {verb} {name}" for name in done.applied]
    return [*lines, f"  outbox {done.outbox_id}"] if done.outbox_id else lines
