"""Loading: the layers in order, the first that speaks for a key wins, the model judges the result once."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path as File

from pydantic import BaseModel, SecretStr, ValidationError

from tallymark.errors import SettingsError
from tallymark.observe.masking import MASK, is_secret_name, mask, remember, url_password
from tallymark.settings import keys
from tallymark.settings.layers import Entry, Origin, Source, find_file, from_environment, from_file
from tallymark.settings.model import Settings

_DEFAULT = Origin(Source.DEFAULT)


@dataclass(frozen=True, slots=True)
class Shown:
    """One setting as it may be shown: secrets are masked."""

    name: str
    value: object
    origin: Origin


@dataclass(frozen=True, slots=True)
class Loaded:
    """The effective settings, and where each came from."""

    settings: Settings
    origins: Mapping[keys.Path, Origin]
    file: File | None

    def origin(self, *path: str) -> Origin:
        """Where this one came from: `origin("relay", "mode")`."""
        return self.origins.get(path, _DEFAULT)

    def shown(self) -> list[Shown]:
        """Every setting with its value, fit to be shown to anyone."""
        return [
            Shown(keys.dotted(path), _displayed(path, value), self.origin(*path))
            for path, value in _values(self.settings)
        ]


def load(
    *,
    flags: Mapping[keys.Path, tuple[str, object]] | None = None,
    environ: Mapping[str, str] | None = None,
    directory: File | None = None,
    config: File | None = None,
    fallback: Sequence[Entry] = (),
) -> Loaded:
    """Settings from flags, environment, file and fallback (a local cluster's addresses), in that order.

    A flag is its key with the option's name and value; a value of None was not given.
    """
    environ = os.environ if environ is None else environ
    file = find_file(config, environ, directory or File.cwd())
    given = [
        Entry(path, value, Origin(Source.FLAG, option))
        for path, (option, value) in (flags or {}).items()
        if value is not None
    ]
    won: dict[keys.Path, Entry] = {}
    for entry in (*given, *from_environment(environ), *(from_file(file) if file else ()), *fallback):
        won.setdefault(entry.path, entry)
    for entry in won.values():
        _remember_secret(entry)
    try:
        settings = Settings.model_validate(_nested(won.values()))
    except ValidationError as error:
        raise _explained(error, won) from None
    return Loaded(settings, {path: entry.origin for path, entry in won.items()}, file)


def _nested(entries: Iterable[Entry]) -> dict[str, object]:
    tree: dict[str, object] = {}
    for entry in entries:
        at = tree
        for part in entry.path[:-1]:
            inner = at.setdefault(part, {})
            assert isinstance(inner, dict)  # noqa: S101 - keys were checked: a table is never also a value
            at = inner
        at[entry.path[-1]] = entry.value
    return tree


def _holds_address(path: keys.Path) -> bool:
    return path == ("database",) or (path[:1] == keys.DATABASES and path[-1] == "url")


def _remember_secret(entry: Entry) -> None:
    """From here on, whatever prints this secret prints stars."""
    if not isinstance(entry.value, str):
        return
    if _holds_address(entry.path):
        if password := url_password(entry.value):
            remember(password)
    elif entry.path[:2] == keys.CLIENT and is_secret_name(entry.path[-1]):
        remember(entry.value)


def _explained(error: ValidationError, won: Mapping[keys.Path, Entry]) -> SettingsError:
    """The first complaint as one line that names the place; the others are counted."""
    problems = error.errors(include_url=False, include_input=False)
    first = problems[0]
    path = tuple(str(part) for part in first["loc"])
    # A complaint about one item of a list, or about a whole table, belongs to the nearest key that was set.
    entry = next((won[path[:depth]] for depth in range(len(path), 0, -1) if path[:depth] in won), None)
    inside = entry or next((each for at, each in won.items() if at[: len(path)] == path), None)
    inside = inside or next((each for at, each in won.items() if at[: len(path) - 1] == path[:-1]), None)
    where = f"{inside.origin}: " if inside else ""
    if first["type"] == "missing":
        complaint = f"{keys.dotted(path[:-1])} needs {path[-1]}"
    else:
        said = str(first.get("ctx", {}).get("error", "")) or first["msg"].removeprefix("Input ")
        said = said.partition(", unable to parse")[0]
        complaint = f"{keys.dotted(entry.path if entry else path)} {said}{_but_is(entry, said)}"
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    key = entry.path if entry else path
    about = keys.meaning(key)
    return SettingsError(
        mask(where + complaint + more), remedy=f"{key[-1]}: {about}." if about else "Correct it there."
    )


def _but_is(entry: Entry | None, said: str) -> str:
    """What the value is, where it cannot be a secret and was not said already."""
    if entry is None or _holds_address(entry.path) or entry.path[:2] == keys.CLIENT:
        return ""
    shown = repr(entry.value)
    return f", not {shown}" if isinstance(entry.value, str | int | float) and shown not in said else ""


def _values(model: BaseModel, above: keys.Path = ()) -> Iterator[tuple[keys.Path, object]]:
    plain = model.model_dump(mode="json")
    for name in type(model).model_fields:
        value, path = getattr(model, name), (*above, name)
        if isinstance(value, BaseModel):
            yield from _values(value, path)
        elif isinstance(value, dict):
            for inner, item in value.items():
                if isinstance(item, BaseModel):
                    yield from _values(item, (*path, inner))
                else:
                    yield (*path, inner), item
        else:
            yield path, value if isinstance(value, SecretStr) else plain[name]


def _displayed(path: keys.Path, value: object) -> object:
    if not isinstance(value, SecretStr):
        return value
    return MASK if is_secret_name(path[-1]) else mask(value.get_secret_value())
