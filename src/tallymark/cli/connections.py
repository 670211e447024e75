"""From settings to what a verb connects to: a Kafka client's settings, a database.

A local cluster that is up (TALLYMARK_HOME) is the default as a whole: only where neither Kafka nor a database
was given. Mixing someone's database with a laptop's Kafka by accident would send their messages to the wrong
place and mark them as sent.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tallymark.errors import SettingsError, Unreachable
from tallymark.lifecycle import Role

if TYPE_CHECKING:
    from tallymark.local.cluster import LocalCluster
    from tallymark.settings import DatabaseSettings, Entry, Loaded, Settings

LOCAL_DATABASE = "tallymark"

BootstrapOption = Annotated[
    str | None, typer.Option("--bootstrap-servers", metavar="HOST:PORT,…", help="Kafka's brokers.")
]
DatabaseOption = Annotated[
    str | None, typer.Option("--database", metavar="NAME|URL", help="A database of the settings, or a URL.")
]

Flags = Mapping[tuple[str, ...], tuple[str, object]]


@dataclass(frozen=True, slots=True)
class Frame:
    """What was said before the verb: `tallymark --config FILE …`."""

    config: Path | None = None


# One process runs one command line.
_frame = Frame()


def use(frame: Frame) -> None:
    """Remember the options that were given before the verb."""
    global _frame  # noqa: PLW0603 - set once, by main, before any verb runs
    _frame = frame


def load(
    *, bootstrap_servers: str | None = None, database: str | None = None, flags: Flags | None = None
) -> Loaded:
    """The effective settings, with these flags on top and a local cluster beneath."""
    from tallymark import settings

    given = {
        ("kafka", "bootstrap_servers"): ("--bootstrap-servers", bootstrap_servers),
        ("database",): ("--database", database),
        **(flags or {}),
    }
    loaded = settings.load(flags=given, config=_frame.config)
    cluster = _local_cluster()
    if cluster is None or _is_somewhere_else(loaded.settings, cluster):
        return loaded
    return settings.load(flags=given, config=_frame.config, fallback=_local_entries(cluster, loaded.settings))


def kafka_client(settings: Settings) -> dict[str, str]:
    """What every client needs: the bootstrap servers and the user's own settings, secrets included."""
    if not settings.kafka.bootstrap_servers:
        raise SettingsError("no Kafka is given", remedy=_how_to("--bootstrap-servers HOST:PORT", settings))
    return {
        "bootstrap.servers": settings.kafka.bootstrap_servers,
        **{name: value.get_secret_value() for name, value in settings.kafka.client.items()},
    }


def database(
    settings: Settings, name_or_url: str | None = None, *, role: Role | None = None
) -> DatabaseSettings:
    """The database meant: by URL, by name, the default one, or the only one there is (of this role)."""
    from tallymark.settings import DatabaseSettings
    from tallymark.settings.keys import closest
    from tallymark.settings.model import is_address

    named = settings.databases
    wanted = name_or_url or (settings.database.get_secret_value() if settings.database else None)
    if wanted is None:
        fit = {name: each for name, each in named.items() if role is None or each.role in (role, Role.BOTH)}
        if len(fit) == 1:
            return next(iter(fit.values()))
        if fit:
            raise SettingsError("which database?", remedy=f"Give --database {' | '.join(sorted(fit))}.")
        if named:
            raise SettingsError(
                f"there is no {role}'s database in the settings, only {', '.join(sorted(named))}",
                remedy=f"Give --database; `tallymark init --database NAME --role {role}` sets one up.",
            )
        _refuse_stopped(settings)
        raise SettingsError("no database is given", remedy=_how_to("--database URL", settings))
    if wanted in named:
        return named[wanted]
    if is_address(wanted):
        return DatabaseSettings.model_validate({"url": wanted})
    if "://" in wanted:
        raise SettingsError(
            "--database is not a postgresql:// URL",
            remedy="postgresql://user@host:5432/name, or sqlite:///path",
        )
    _refuse_stopped(settings)
    if near := closest(wanted, named):
        raise SettingsError(
            f"there is no database {wanted!r} in the settings", remedy=f"Did you mean {near}?"
        )
    home = _home()
    elsewhere = "" if (home / "cluster.json").is_file() else f", and no local cluster in {home.absolute()}"
    raise SettingsError(
        f"there is no database {wanted!r} in the settings{elsewhere}",
        remedy=f"Give its URL, or add [databases.{wanted}] to tallymark.toml"
        + ("; a local cluster elsewhere is found by TALLYMARK_HOME." if elsewhere else "."),
    )


def as_given(database: str | None) -> str:
    """The option as it was given, to end a command that is suggested; a URL may hold a password, and is not repeated."""
    if database is None:
        return ""
    return f" --database {'URL' if '://' in database or '=' in database else shlex.quote(database)}"


def make_local_database(loaded: Loaded, chosen: DatabaseSettings, role: Role) -> None:
    """A local cluster's database is made when it is first set up; someone's own is theirs to make.

    It is marked too: verbs that look across stations find all of them without settings.
    """
    from tallymark.settings import Source

    local = {origin.source for path, origin in loaded.origins.items() if path[0] in ("database", "databases")}
    if local and Source.LOCAL in local and (cluster := _local_cluster()) is not None:
        name = chosen.url.get_secret_value().rpartition("/")[2]
        cluster.create_database(name)
        cluster.postgres.mark_database(name, role)


def _is_somewhere_else(settings: Settings, cluster: LocalCluster) -> bool:
    """Whether anything is given that is not this cluster's own, as `local env` hands it to a shell."""
    given = settings.kafka.bootstrap_servers
    return bool(
        settings.databases
        or (given and given != cluster.bootstrap_servers)
        or (_address(settings) and not _is_of(cluster, _address(settings)))
    )


def _address(settings: Settings) -> str:
    """The default database's URL, where it is given by one."""
    from tallymark.settings.model import is_address

    given = settings.database.get_secret_value() if settings.database else ""
    return given if is_address(given) else ""


def _is_of(cluster: LocalCluster, url: str) -> bool:
    return cluster.has_postgres and url.rpartition("/")[0] == cluster.postgres.url().rpartition("/")[0]


def _home() -> Path:
    return Path(os.environ.get("TALLYMARK_HOME") or ".tallymark")


def _local_cluster() -> LocalCluster | None:
    """The cluster in TALLYMARK_HOME, if there is one and it runs."""
    home = _home()
    # Looked at by hand first: the room behind it is heavy, and its packages may not be installed.
    if not (home / "cluster.json").is_file():
        return None
    try:
        from tallymark.local.cluster import LocalCluster
    except ImportError:
        return None
    cluster = LocalCluster(home)
    return cluster if any(broker.is_alive() for broker in cluster.brokers) else None


def _refuse_stopped(settings: Settings) -> None:
    """Where a local cluster is meant whose PostgreSQL does not run, that is what is wrong, and not the settings."""
    home = _home()
    if settings.databases or not (home / "cluster.json").is_file():
        return
    try:
        from tallymark.local.cluster import LocalCluster
    except ImportError:
        return
    cluster = LocalCluster(home)
    if cluster.has_postgres and not cluster.postgres.is_alive():
        raise Unreachable(
            f"PostgreSQL of the local cluster in {home} does not run",
            remedy="`tallymark local up` starts it again; `tallymark local status` shows what runs",
        )


def _local_entries(cluster: LocalCluster, settings: Settings) -> list[Entry]:
    from tallymark.settings import Entry, Origin, Source

    origin = Origin(Source.LOCAL, str(cluster.home.path))
    entries = [Entry(("kafka", "bootstrap_servers"), cluster.bootstrap_servers, origin)]
    server = cluster.postgres
    if not server.is_alive():
        return entries
    roles = server.marked_databases()
    if _address(settings):
        pass  # given by `local env`: it stays what it is
    elif settings.database is not None:
        # A name that no settings explain is the name of a database on the local server.
        roles.setdefault(settings.database.get_secret_value(), Role.BOTH)
    elif not roles:
        entries.append(Entry(("database",), server.url(LOCAL_DATABASE), origin))
    for name, role in roles.items():
        entries.append(Entry(("databases", name, "url"), server.url(name), origin))
        entries.append(Entry(("databases", name, "role"), role, origin))
    return entries


def _how_to(option: str, settings: Settings) -> str:
    cluster = _local_cluster()
    if cluster is not None and _is_somewhere_else(settings, cluster):
        return (
            f"Give {option}. A local cluster is up, and is not mixed with addresses that you give; "
            'to use all of it: eval "$(tallymark local env)".'
        )
    return f"Give {option}, or set it in tallymark.toml; `tallymark local up` starts both on this machine."
