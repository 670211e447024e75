"""What `--to` of `tallymark inbox seek` may say: an offset, beginning, end, a time, or a message's id. Pure."""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from tallymark.errors import UsageError

_AGO = re.compile(r"(\d+)([smhd])\s+ago|-(\d+)([smhd])", re.ASCII)
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


@dataclass(frozen=True, slots=True)
class Target:
    """Where to go on reading."""

    kind: Literal["offset", "beginning", "end", "time", "id"]
    offset: int = 0
    moment: datetime | None = None
    id: str = ""


def target_of(text: str, now: datetime) -> Target:
    """What was meant; a UsageError that lists the forms where it cannot be told."""
    given = text.strip()
    if given in ("beginning", "end"):
        return Target("beginning" if given == "beginning" else "end")
    if given.isascii() and given.isdigit():
        return Target("offset", offset=int(given))
    if given.startswith("id:"):
        return Target("id", id=given.removeprefix("id:"))
    try:
        return Target("id", id=str(uuid.UUID(given)))
    except ValueError:
        pass
    try:
        if ago := _AGO.fullmatch(given):
            number, unit = (ago[1], ago[2]) if ago[1] else (ago[3], ago[4])
            moment = now - timedelta(seconds=int(number) * _SECONDS[unit])
        else:
            moment = datetime.fromisoformat(given)
    except (ValueError, OverflowError):
        raise UsageError(
            f"--to {text!r} cannot be read",
            remedy="an offset, beginning, end, a time (2026-11-15T10:00+00:00, -2h), or a message's id "
            "(id:NAME where it is no UUID)",
        ) from None
    if moment.tzinfo is None:
        raise UsageError(f"--to {text!r} has no time zone", remedy="add one, as in 2026-11-15T10:00+00:00")
    return Target("time", moment=moment)


def place_of(text: str) -> tuple[str, int | None]:
    """`topic` or `topic/partition`."""
    topic, slash, partition = text.rpartition("/")
    if not slash:
        return text, None
    if not topic or not partition.isascii() or not partition.isdigit():
        raise UsageError(f"{text!r} is neither TOPIC nor TOPIC/PARTITION", remedy="as in transfers/3")
    return topic, int(partition)
