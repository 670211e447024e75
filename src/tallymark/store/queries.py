"""Reads named, commented queries from .sql files, and puts the schema's name into them, once.

    -- name: take_lane
    -- Why it is as it is.
    update {schema}.lanes set ...

A name that does not exist is an error at once, not a wrong query later.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

from tallymark.errors import SettingsError

_NAME = re.compile(r"^-- name: (\w+)\s*$", re.MULTILINE)
_PLAIN_IDENTIFIER = re.compile(r"^[a-z_][a-z0-9_]{0,40}$")


def checked_schema(schema: str) -> str:
    """The schema's name, if it is one that needs no quoting."""
    if not _PLAIN_IDENTIFIER.match(schema):
        raise SettingsError(
            f"schema name {schema!r} is not a plain identifier",
            remedy="use lower-case letters, digits and underscores, at most 41 of them",
        )
    return schema


@cache
def load(package: str, file: str, schema: str) -> dict[str, str]:
    """All queries of one file, by name."""
    text = (files(package) / file).read_text(encoding="utf-8")
    parts = _NAME.split(text)[1:]
    queries = {}
    for name, body in zip(parts[::2], parts[1::2], strict=True):
        lines = [line for line in body.splitlines() if not line.lstrip().startswith("--")]
        queries[name] = "\n".join(lines).strip().replace("{schema}", checked_schema(schema))
    return queries
