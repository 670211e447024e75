"""How long a message has waited, from the moment that its id names: a UUIDv7 begins with its milliseconds. Pure."""

from __future__ import annotations

import uuid

_SEVEN = 7
# An id that claims to be older was made by something else, or by a clock that is wrong: it says nothing.
_OLDEST_S = 30 * 24 * 3600.0


def since_id(id: uuid.UUID | str, now: float) -> float | None:
    """Seconds from the id's moment to `now` (since 1970); None where the id names none, or none that can be."""
    try:
        known = id if isinstance(id, uuid.UUID) else uuid.UUID(id)
    except ValueError:
        return None
    if known.version != _SEVEN:
        return None
    waited = now - (known.int >> 80) / 1000
    # A producer's clock may be a little ahead of ours.
    return max(0.0, waited) if -60.0 < waited < _OLDEST_S else None
