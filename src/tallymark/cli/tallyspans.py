"""What verbs that look across stations are given: several databases by name, and moments as people write them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from tallymark.cli import connections
from tallymark.errors import UsageError

if TYPE_CHECKING:
    from tallymark.settings import Settings
    from tallymark.store.postgres.findings import Findings

_AGO = re.compile(r"-?(\d+(?:\.\d+)?)\s*(s|m|h|d)(?:\s+ago)?", re.ASCII)
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


@dataclass(frozen=True, slots=True)
class Named:
    """A database and the name that people know it by."""

    name: str
    url: str


@dataclass(frozen=True, slots=True)
class Stations:
    """Outboxes and inboxes by name, and Kafka."""

    producers: Mapping[str, str]
    consumers: Mapping[str, str]
    schema: str
    client: Mapping[str, str] = field(default_factory=dict)


def databases(given: Sequence[str] | None) -> tuple[list[Named], str]:
    """Those that were given, else all of the settings; and the schema's name."""
    settings = connections.load(database=given[0] if given else None).settings
    return _chosen(settings, given), settings.schema_name


def stations(given: Sequence[str] | None, servers: str | None, *, kafka: bool = True) -> Stations:
    """The same by what is in them: an outbox, an inbox, or both."""
    from tallymark.store.postgres.tally import what_is_here

    settings = connections.load(bootstrap_servers=servers, database=given[0] if given else None).settings
    client: Mapping[str, str] = {}
    if kafka:
        from tallymark.broker.reach import reach

        client = connections.kafka_client(settings)
        reach(client)
    producers, consumers = {}, {}
    for each in _chosen(settings, given):
        outbox, inbox = what_is_here(each.url, schema=settings.schema_name)
        if outbox:
            producers[each.name] = each.url
        if inbox:
            consumers[each.name] = each.url
    return Stations(producers, consumers, settings.schema_name, client)


def findings_of(given: Sequence[str] | None, where: Stations | None = None) -> dict[str, Findings]:
    """Where each outbox's findings are kept."""
    from tallymark.store.postgres.findings import Findings

    where = where or stations(given, None, kafka=False)
    if not where.producers:
        raise UsageError(
            "none of the databases has an outbox: findings are kept beside it",
            remedy="name the producer's: --database bank",
        )
    return {name: Findings(url, schema=where.schema) for name, url in where.producers.items()}


def _chosen(settings: Settings, given: Sequence[str] | None) -> list[Named]:
    if given:
        return [Named(_name(each), _url(settings, each)) for each in dict.fromkeys(given)]
    if settings.databases:
        return [Named(name, each.url.get_secret_value()) for name, each in settings.databases.items()]
    return [Named("database", connections.database(settings).url.get_secret_value())]


def _name(name_or_url: str) -> str:
    """A URL is known by its database's name."""
    from tallymark.settings.model import is_address

    if not is_address(name_or_url):
        return name_or_url
    from psycopg import ProgrammingError
    from psycopg.conninfo import conninfo_to_dict

    try:
        return str(conninfo_to_dict(name_or_url).get("dbname") or "database")
    except ProgrammingError:  # the name is for people; what is wrong with the URL is said when it is used
        return "database"


def _url(settings: Settings, name_or_url: str) -> str:
    return connections.database(settings, name_or_url).url.get_secret_value()


def duration(text: str) -> timedelta:
    """How long: 90s, 15m, 2h, 3d."""
    if found := _AGO.fullmatch(text.strip()):
        return timedelta(**{_UNITS[found[2]]: float(found[1])})
    raise UsageError(f"{text!r} is not a duration", remedy="write 90s, 15m, 2h or 3d")


def moment(text: str) -> datetime:
    """A moment in ISO form, or so long ago: 90s, 15m, 2h, 3d."""
    if _AGO.fullmatch(text.strip()):
        return datetime.now(UTC) - duration(text)
    try:
        at = datetime.fromisoformat(text.strip())
    except ValueError:
        raise UsageError(
            f"{text!r} is not a moment", remedy="write 2026-11-15T08:00:00Z, or how long ago: 15m, 2h, 3d"
        ) from None
    return at if at.tzinfo else at.replace(tzinfo=UTC)
