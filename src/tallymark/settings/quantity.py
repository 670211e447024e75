"""Durations and sizes as people write them: `7d`, `500ms`, `16MiB`; a bare number is seconds, or bytes."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Annotated

from pydantic import BeforeValidator, PlainSerializer

_WRITTEN = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")
_SECONDS = {"ms": 0.001, "s": 1, "": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_BYTES = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}


def _scaled(value: object, units: dict[str, float] | dict[str, int], example: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"must be written like {example}")
    found = _WRITTEN.fullmatch(str(value))
    factor = units.get(found.group(2).lower()) if found else None
    if found is None or factor is None:
        raise ValueError(f"must be written like {example}")
    return float(found.group(1)) * factor


def parse_duration(value: object) -> timedelta:
    """`7d`, `12h`, `30m`, `10s`, `500ms`, or a number of seconds."""
    if isinstance(value, timedelta):
        return value
    return timedelta(seconds=_scaled(value, _SECONDS, '"7d", "12h", "30m", "10s" or a number of seconds'))


def parse_size(value: object) -> int:
    """`16MiB`, `500kB`, or a number of bytes."""
    return int(_scaled(value, _BYTES, '"16MiB", "500kB" or a number of bytes'))


def write_duration(value: timedelta) -> str:
    """The shortest way to write it that loses nothing: 7 days are `7d`."""
    milliseconds = round(value.total_seconds() * 1000)
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000)):
        if milliseconds and milliseconds % size == 0:
            return f"{milliseconds // size}{unit}"
    return f"{milliseconds}ms"


Duration = Annotated[timedelta, BeforeValidator(parse_duration), PlainSerializer(write_duration)]
ByteSize = Annotated[int, BeforeValidator(parse_size)]
