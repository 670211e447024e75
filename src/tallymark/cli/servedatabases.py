"""Which databases `serve` looks at, and which of them holds the tokens. One rule for `serve` and `tokens`.

All databases of the settings, or those that --database names. Tokens are in the default one (`database = …`), else in
the first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tallymark.cli import connections
from tallymark.errors import SettingsError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tallymark.settings import Settings

# A database that has no name of its own in the settings.
UNNAMED = "main"


def databases_of(settings: Settings, given: Sequence[str]) -> dict[str, str]:
    """URLs by name, the one with the tokens first. SQLite has nobody to serve."""
    from tallymark.store.sqlite.schema import is_sqlite

    found = _chosen(settings, given)
    served = {name: url for name, url in found.items() if not is_sqlite(url)}
    if not served:
        raise UsageError("SQLite is not served", remedy="name a PostgreSQL database with --database")
    return served


def tokens_in(settings: Settings, given: str | None) -> str:
    """The URL of the database that holds the tokens."""
    return next(iter(databases_of(settings, [given] if given else []).values()))


def _chosen(settings: Settings, given: Sequence[str]) -> dict[str, str]:
    if given:
        chosen = {_name(each, settings, number): each for number, each in enumerate(given)}
        if len(chosen) < len(given):
            raise SettingsError("a database is named twice", remedy="name each once")
        return {name: _url(settings, each) for name, each in chosen.items()}
    named = list(settings.databases)
    default = settings.database.get_secret_value() if settings.database else None
    if default is not None:
        first = default if default in settings.databases else UNNAMED
        others = {name: _url(settings, name) for name in named if name != first}
        return {first: _url(settings, default), **others}
    if named:
        return {name: _url(settings, name) for name in named}
    return {UNNAMED: connections.database(settings).url.get_secret_value()}


def _name(given: str, settings: Settings, number: int) -> str:
    if given in settings.databases:
        return given
    return UNNAMED if number == 0 else f"{UNNAMED}-{number + 1}"


def _url(settings: Settings, name_or_url: str) -> str:
    return connections.database(settings, name_or_url).url.get_secret_value()
