"""Messages that a topic does not take."""

from __future__ import annotations

import os
import uuid

from tallymark.broker.kafka import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from tests.relay.ground import Ground

SMALL = 20_000


def set_limit(admin: AdminClient, topic: str, size: int) -> None:
    """max.message.bytes of a topic, changed while it is in use."""
    change(admin, topic, "max.message.bytes", str(size))


def change(admin: AdminClient, topic: str, setting: str, value: str) -> None:
    """A topic's setting, changed while it is in use."""
    entry = ConfigEntry(setting, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(20)


def add_large(ground: Ground, key: str, size: int = 2 * SMALL) -> str:
    """A message that `add` would refuse, written by plain SQL as another service might."""
    id_ = str(uuid.uuid4())
    ground.query(
        "insert into tallymark.outbox (id, topic, key, value) values (%s, %s, %s, %s)",
        *(id_, ground.topic, key.encode(), os.urandom(size)),
    )
    return id_


def parked(ground: Ground) -> dict[str, int]:
    return dict(ground.query("select state, count(*) from tallymark.parked group by state"))
