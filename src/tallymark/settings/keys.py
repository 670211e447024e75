"""Which keys exist, and the nearest one to a key that does not.

A key is a path: ("relay", "mode"), ("databases", "bank", "url"), ("kafka", "client", "sasl.password"). The
names come from the model; those under kafka.client are librdkafka's own and are not judged here.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from pydantic import BaseModel

from tallymark.errors import SettingsError
from tallymark.settings.model import (
    RESERVED,
    DatabaseSettings,
    InboxSettings,
    KafkaSettings,
    RelaySettings,
    Settings,
)

Path = tuple[str, ...]

CLIENT: Path = ("kafka", "client")
DATABASES: Path = ("databases",)
_ANY = "NAME"
_SECTIONS: dict[str, type[BaseModel]] = {
    "kafka": KafkaSettings,
    "relay": RelaySettings,
    "inbox": InboxSettings,
}


def _leaves() -> tuple[Path, ...]:
    found: list[Path] = []
    for name in Settings.model_fields:
        if name in _SECTIONS:
            found += [(name, inner) for inner in _SECTIONS[name].model_fields if (name, inner) != CLIENT]
        elif (name,) != DATABASES:
            found.append((name,))
    found += [(*DATABASES, _ANY, inner) for inner in DatabaseSettings.model_fields]
    return (*found, (*CLIENT, _ANY))


LEAVES: tuple[Path, ...] = _leaves()
TABLES: frozenset[Path] = frozenset(leaf[:depth] for leaf in LEAVES for depth in range(1, len(leaf)))


def dotted(path: Path) -> str:
    """How a key is written for people."""
    return ".".join(f'"{part}"' if "." in part else part for part in path)


def normal(path: Path) -> Path:
    """librdkafka's names have dots, which TOML splits unless they are quoted: put them back together."""
    depth = len(CLIENT)
    return (*CLIENT, ".".join(path[depth:])) if path[:depth] == CLIENT and len(path) > depth else path


def _fits(path: Path, pattern: Path) -> bool:
    return len(path) == len(pattern) and all(b in (a, _ANY) for a, b in zip(path, pattern, strict=True))


def is_leaf(path: Path) -> bool:
    """Whether this key takes a value."""
    return any(_fits(path, leaf) for leaf in LEAVES)


def is_table(path: Path) -> bool:
    """Whether this key holds others."""
    return any(_fits(path, table) for table in TABLES)


def check(path: Path, where: str) -> None:
    """Refuse a key that does not exist, with the nearest that does."""
    if path[:-1] == CLIENT and path[-1] in RESERVED:
        raise SettingsError(
            f"{where}: {dotted(path)} cannot be set: {RESERVED[path[-1]]}",
            remedy="Take it out of kafka.client.",
        )
    if is_leaf(path):
        return
    if is_table(path):
        raise SettingsError(
            f"{where}: {dotted(path)} holds settings of its own and takes no value",
            remedy=f"Known there: {', '.join(_inside(path))}.",
        )
    for depth in range(1, len(path)):
        if is_leaf(path[:depth]):
            raise SettingsError(
                f"{where}: {dotted(path[:depth])} takes a single value, not a table",
                remedy=f"Write {path[depth - 1]} = …, and not [{dotted(path[:depth])}].",
            )
    # The first part that leads nowhere is the one to complain about.
    known = next(depth for depth in range(1, len(path) + 1) if not is_table(path[:depth]))
    raise SettingsError(f"{where}: unknown setting {dotted(path[:known])}", remedy=_nearest(path, known))


def meaning(path: Path) -> str:
    """What this key is for, as the model describes it."""
    section = DatabaseSettings if path[:1] == DATABASES else _SECTIONS.get(path[0], Settings)
    field = section.model_fields.get(path[-1])
    return (field.description or "") if field else ""


def _inside(table: Path) -> list[str]:
    depth = len(table)
    return sorted({leaf[depth] for leaf in LEAVES if len(leaf) > depth and _fits(table, leaf[:depth])})


def closest(word: str, known: Iterable[str]) -> str | None:
    """The known word that this one was most likely meant to be."""
    found = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return found[0] if found else None


def _nearest(path: Path, known: int) -> str:
    table, word = path[: known - 1], path[known - 1]
    siblings = _inside(table)
    elsewhere = {leaf[-1]: leaf for leaf in LEAVES if _ANY not in leaf}
    if near := closest(word, siblings):
        return f"Did you mean {dotted((*table, near))}?"
    if near := closest(path[-1], elsewhere):
        return f"Did you mean {dotted(elsewhere[near])}?"
    return f"Known {'there' if table else 'at the top'}: {', '.join(siblings)}."
