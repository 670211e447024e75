"""`tallymark config`: the effective settings and where each came from. Secrets are masked."""

from __future__ import annotations

import typer

from tallymark.cli import connections, output

app = typer.Typer(add_completion=False)


@app.command()
def config(
    *,
    bootstrap_servers: connections.BootstrapOption = None,
    database: connections.DatabaseOption = None,
    json: output.JsonOption = False,
) -> None:
    """Show the effective settings, and where each came from.

    Flags win over TALLYMARK_* variables, these over tallymark.toml, that over a local cluster and defaults.
    """
    loaded = connections.load(bootstrap_servers=bootstrap_servers, database=database)
    shown = loaded.shown()
    output.emit(
        {
            "file": str(loaded.file) if loaded.file else None,
            "settings": [
                {
                    "name": each.name,
                    "value": each.value,
                    "source": each.origin.source,
                    "where": each.origin.where or None,
                }
                for each in shown
            ],
        },
        as_json=json,
        human=lambda: output.table(
            ("setting", "value", "from"), [(each.name, _written(each.value), each.origin) for each in shown]
        ),
    )


def _written(value: object) -> str:
    if value is None or value == []:
        return "–"
    if isinstance(value, bool):
        return str(value).lower()
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
