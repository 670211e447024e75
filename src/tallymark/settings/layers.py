"""Where settings are read from: a file and the environment become entries, each with its origin.

An entry is one key, its raw value and the place that gave it. Keys are checked as they are read, so that an
error names the line or the variable. No types are judged here: the model does that, once, over what won.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path as File

from tallymark.errors import SettingsError
from tallymark.settings import keys

FILE_NAME = "tallymark.toml"
PREFIX = "TALLYMARK_"
CONFIG_VARIABLE = "TALLYMARK_CONFIG"

# Short forms of the two that everyone sets.
_SHORT = {"TALLYMARK_BOOTSTRAP_SERVERS": ("kafka", "bootstrap_servers")}

# Read by other parts, before or beside the settings.
_NOT_SETTINGS = frozenset(
    PREFIX + name for name in ("CONFIG", "HOME", "CACHE", "DEBUG", "CRASHPOINT", "LOG_FORMAT", "LOG_LEVEL")
)
_NOT_SETTINGS_PREFIXES = (PREFIX + "TEST_", PREFIX + "BENCH_", PREFIX + "LOCAL_")

_KEY_PART = re.compile(r"""\s*(?:"([^"]*)"|'([^']*)'|([A-Za-z0-9_-]+))\s*\.?""")
_HEADER = re.compile(r"\s*\[([^\[\]]+)\]\s*(?:#.*)?")
_ASSIGNMENT = re.compile(r"""\s*((?:"[^"]*"|'[^']*'|[A-Za-z0-9_.\-\s])+?)\s*=""")


class Source(StrEnum):
    """The kinds of places, strongest first."""

    FLAG = "flag"
    ENVIRONMENT = "environment"
    FILE = "file"
    LOCAL = "local cluster"
    DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class Origin:
    """The place that a value came from."""

    source: Source
    where: str = ""

    def __str__(self) -> str:
        if self.source is Source.DEFAULT:
            return "default"
        return f"{self.source} {self.where}".strip() if self.source is Source.LOCAL else self.where


@dataclass(frozen=True, slots=True)
class Entry:
    """One key with its raw value. The value may be a secret: it stays out of the repr."""

    path: keys.Path
    value: object = field(repr=False)
    origin: Origin


def find_file(explicit: File | None, environ: Mapping[str, str], directory: File) -> File | None:
    """The file to read: the one that was named (it must exist), else tallymark.toml here, else none."""
    named = explicit or (File(environ[CONFIG_VARIABLE]) if environ.get(CONFIG_VARIABLE) else None)
    if named is not None:
        if not named.is_file():
            by = "--config" if explicit else CONFIG_VARIABLE
            raise SettingsError(
                f"{by}: there is no file {named}", remedy="Name a tallymark.toml that exists."
            )
        return named
    here = directory / FILE_NAME
    return here if here.is_file() else None


def from_file(file: File) -> list[Entry]:
    """The entries of a TOML file."""
    try:
        text = file.read_text(encoding="utf-8")
        tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{file}: not valid TOML: {error}", remedy="Correct that line.") from error
    except UnicodeDecodeError as error:
        raise SettingsError(f"{file}: not UTF-8 text", remedy="Save it as UTF-8.") from error
    except OSError as error:
        raise SettingsError(
            f"{file}: cannot be read: {error.strerror}", remedy="Check its rights."
        ) from error
    entries: list[Entry] = []
    for raw, value in _flattened(tree):
        path = keys.normal(raw)
        line = _line_of(path, text)
        origin = Origin(Source.FILE, f"{file}:{line}" if line else str(file))
        if value == {} and keys.is_table(path):
            continue
        keys.check(path, str(origin))
        entries.append(Entry(path, value, origin))
    return entries


def from_environment(environ: Mapping[str, str]) -> list[Entry]:
    """The entries of TALLYMARK_* variables: `__` goes one table down. An empty variable counts as not set."""
    entries: dict[keys.Path, Entry] = {}
    for name, value in sorted(environ.items()):
        if not name.startswith(PREFIX) or not value:
            continue
        if name in _NOT_SETTINGS or name.startswith(_NOT_SETTINGS_PREFIXES):
            continue
        path = _SHORT.get(name) or _path_of(name)
        origin = Origin(Source.ENVIRONMENT, name)
        keys.check(path, name)
        if (other := entries.get(path)) and other.value != value:
            raise SettingsError(
                f"{other.origin} and {name} both set {keys.dotted(path)}, to different values",
                remedy="Unset one of them.",
            )
        entries[path] = Entry(path, value, origin)
    return list(entries.values())


def _path_of(variable: str) -> keys.Path:
    path = tuple(part.lower() for part in variable.removeprefix(PREFIX).split("__"))
    # A variable's name cannot hold dots: SASL_PASSWORD is librdkafka's sasl.password.
    return (*path[:2], path[2].replace("_", ".")) if path[:2] == keys.CLIENT and len(path) == 3 else path


def _flattened(tree: Mapping[str, object], above: keys.Path = ()) -> Iterator[tuple[keys.Path, object]]:
    for name, value in tree.items():
        if isinstance(value, dict) and value:
            yield from _flattened(value, (*above, name))
        else:
            yield (*above, name), value


def _parts(key: str) -> keys.Path:
    return tuple(a or b or c for a, b, c in _KEY_PART.findall(key))


def _line_of(path: keys.Path, text: str) -> int | None:
    """The line that sets this key. tomllib does not tell; a scan by eye is enough for a message."""
    table: keys.Path = ()
    nearest: int | None = None
    for number, line in enumerate(text.splitlines(), 1):
        if header := _HEADER.fullmatch(line):
            table = _parts(header.group(1))
            if path[: len(table)] == table:
                nearest = number
        elif assignment := _ASSIGNMENT.match(line):
            key = keys.normal((*table, *_parts(assignment.group(1))))
            if path[: len(key)] == key:
                return number
    return nearest
