"""What jobs on Spark that fill an inbox are given: its database."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tallymark.cli import connections
from tallymark.errors import UsageError
from tallymark.lifecycle import Role

if TYPE_CHECKING:
    from tallymark.settings import Settings


def inbox_database(settings: Settings) -> str:
    """The URL of the consumer's database. It holds a password."""
    from tallymark.store.sqlite.schema import is_sqlite

    url = connections.database(settings, role=Role.CONSUMER).url.get_secret_value()
    if is_sqlite(url):
        raise UsageError("an inbox needs PostgreSQL: SQLite holds an outbox only")
    return url
