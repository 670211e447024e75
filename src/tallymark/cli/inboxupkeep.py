"""The inbox's housekeeping: saved ids go when the log itself has dropped the messages (pitfall 16)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from datetime import timedelta
from typing import TYPE_CHECKING

from tallymark.errors import TallymarkError

if TYPE_CHECKING:
    from tallymark.broker.kafka import AdminClient

Place = tuple[str, int]

# Behind every offset.
_PASSED = 2**63 - 1

log = logging.getLogger("tallymark.inbox")


def upkeep_of(client: dict[str, str], url: str, schema: str, keep: timedelta) -> Callable[[], None]:
    """What an inbox process does now and then, beside its work."""
    from tallymark.broker.reach import admin_client
    from tallymark.store.postgres.inboxretention import InboxRetention

    admin = admin_client(client)
    retention = InboxRetention(url, schema=schema)

    def upkeep() -> None:
        starts: dict[Place, int] = {}
        try:
            starts = log_starts(admin, *retention.read())
        except (
            TallymarkError
        ) as error:  # of what the log still has nothing is known: nothing goes, and partitions are made
            log.warning("housekeeping: %s", error, extra={"action": "inbox.upkeep"})
        retention.run_safely(starts, keep)

    return upkeep


def log_starts(admin: AdminClient, topics: Collection[str], read: Collection[Place]) -> dict[Place, int]:
    """Where logs begin, of all that was ever read here; one that was deleted gives nothing again, and so has no begin."""
    from tallymark.broker import offsets

    named = {*topics, *(topic for topic, _ in read)}
    gone = offsets.deleted(admin, named)
    places = offsets.partitions(admin, named - gone)
    starts = {place: first for place, (first, _) in offsets.bounds(admin, places).items()}
    return starts | {place: _PASSED for place in read if place[0] in gone}
