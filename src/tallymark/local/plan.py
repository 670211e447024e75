"""Decide what a cluster is to be: a new record, the one that is there, or that one with other ports.

Nothing is started or stopped here, and nothing is written.
"""

from __future__ import annotations

import base64
import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from tallymark.errors import UsageError
from tallymark.local.home import BrokerPorts, ClusterRecord, Listener
from tallymark.local.jars import Report
from tallymark.local.ports import free_ports, is_free

DEFAULT_BROKERS = 3
DEFAULT_POSTGRES = 18


@dataclass(frozen=True)
class Wish:
    """What the caller asked for. None means: as it was made, or the default. 0 means: without."""

    brokers: int | None
    postgres: int | None
    listeners: tuple[Listener, ...] = ()
    broker_settings: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if self.brokers is not None and not 0 <= self.brokers <= 9:
            raise UsageError(f"{self.brokers} brokers cannot be run", remedy="Choose 1 or 3.")


def new_record(wish: Wish) -> ClusterRecord:
    count = DEFAULT_BROKERS if wish.brokers is None else wish.brokers
    major = DEFAULT_POSTGRES if wish.postgres is None else wish.postgres
    names = [listener.name for listener in wish.listeners]
    ports = iter(free_ports(count * (2 + len(names)) + 1))
    return ClusterRecord(
        # Kafka's form of a UUID. Its tools would read a leading dash as an option: hence the first byte.
        cluster_id=base64.urlsafe_b64encode(b"\x01" + uuid.uuid4().bytes[1:]).decode().rstrip("="),
        brokers=tuple(
            BrokerPorts(next(ports), next(ports), {name: next(ports) for name in names}) for _ in range(count)
        ),
        postgres=major or None,
        postgres_port=next(ports),
        listeners=wish.listeners,
        broker_settings=wish.broker_settings,
    )


def refuse_unless_same(found: ClusterRecord, wish: Wish, home: Path) -> None:
    """A home keeps the shape that it was made with: changing it would leave topics without their replicas."""
    made_with = ""
    if wish.brokers not in (None, len(found.brokers)):
        made_with = f"{len(found.brokers)} brokers, and {wish.brokers} were asked for"
    elif wish.postgres not in (None, found.postgres or 0):
        held = f"data of PostgreSQL {found.postgres}" if found.postgres else "no PostgreSQL"
        made_with = f"{held}, and {wish.postgres} was asked for"
    if made_with:
        raise UsageError(
            f"the cluster in {home} was made with {made_with}",
            remedy=f"Use another --home, or delete it with: tallymark local down --wipe --home {home}",
        )


def move_taken_ports(record: ClusterRecord, absent: Collection[str], report: Report) -> ClusterRecord:
    """New ports for servers among `absent` (by name) whose ports now belong to another program."""
    used = set(record.ports())

    def kept(server: str, port: int) -> int:
        if server not in absent or is_free(port):
            return port
        other = free_ports(1, besides=used)[0]
        used.add(other)
        report(f"port {port} of {server} is taken by another program: moving to {other}")
        return other

    brokers = tuple(
        BrokerPorts(
            client=kept(f"broker-{number}", ports.client),
            controller=kept(f"broker-{number}", ports.controller),
            extra={name: kept(f"broker-{number}", port) for name, port in ports.extra.items()},
        )
        for number, ports in enumerate(record.brokers, 1)
    )
    return replace(record, brokers=brokers, postgres_port=kept("postgres", record.postgres_port))


def same_voters(one: ClusterRecord, other: ClusterRecord) -> bool:
    """Whether a running broker still knows where to find the controllers."""
    return [ports.controller for ports in one.brokers] == [ports.controller for ports in other.brokers]
