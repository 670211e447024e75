"""From an inbox's declaration and the settings to a running process: the one place that puts its parts together."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tallymark import __version__
from tallymark.cli import connections, output
from tallymark.cli.signals import until_told
from tallymark.errors import Problem, UsageError
from tallymark.inbox.config import InboxConfig
from tallymark.inbox.definition import Definition
from tallymark.inbox.logport import Log
from tallymark.inbox.ports import InboxStore
from tallymark.lifecycle import Role

if TYPE_CHECKING:
    from tallymark.broker.safety import TopicFacts
    from tallymark.inbox.station import Station
    from tallymark.settings import Settings

log = logging.getLogger("tallymark.inbox")


def serve(
    definition: Definition,
    *,
    database: str | None = None,
    bootstrap_servers: str | None = None,
    metrics_port: int | None = None,
) -> None:
    """Run an inbox until told to stop."""
    from tallymark.broker.reach import reach
    from tallymark.observe.metrics import Metrics

    definition.check()
    if threading.current_thread() is not threading.main_thread():
        raise UsageError(
            f"inbox {definition.name} is run in thread {threading.current_thread().name}, which hears no SIGTERM",
            remedy="run it in the main thread: a process of its own, as `tallymark inbox run` is, does that",
        )
    # What the command line names counts before what the declaration names.
    settings = connections.load(
        bootstrap_servers=bootstrap_servers, database=database or definition.database
    ).settings
    client = connections.kafka_client(settings)
    reach(client)
    _require_partitions(require_topics(client, definition.topics), definition)
    metrics = Metrics()
    config = configured(definition, settings)
    station = composed(definition, settings, config, metrics)
    station.open()
    _say_what_it_promises(config)
    stop = until_told("inbox.stop")
    if metrics_port is None:
        station.run(stop)
        return
    from tallymark.observe.health import Health, HealthServer

    def ready() -> Health:
        return Health(station.ready, {f"{number}": said for number, said in enumerate(station.troubles, 1)})

    with HealthServer(metrics, port=metrics_port, ready=ready):
        station.run(stop)


def configured(definition: Definition, settings: Settings) -> InboxConfig:
    """What the declaration and the settings say together."""
    chosen = settings.inbox
    return InboxConfig(
        consumer=definition.name,
        topics=definition.topics,
        mode=definition.mode,
        positions=definition.positions,
        assign=definition.assign,
        start=definition.start,
        workers=definition.workers,
        lease_s=chosen.lease_seconds,
        batch_messages=chosen.batch_messages,
        batch_bytes=chosen.batch_bytes,
    )


def composed(definition: Definition, settings: Settings, config: InboxConfig, metrics: object) -> Station:
    """The process, ready to be opened and run."""
    from tallymark.apply.applier import Applier
    from tallymark.broker.consumer import KafkaLog
    from tallymark.cli.inboxupkeep import upkeep_of
    from tallymark.inbox.station import Station
    from tallymark.observe.metrics import Metrics
    from tallymark.store.inboxes import inbox_stores

    client = connections.kafka_client(settings)
    url = connections.database(settings, role=Role.CONSUMER).url.get_secret_value()
    chosen = settings.inbox
    stores = inbox_stores(
        url,
        schema=settings.schema_name,
        consumer=definition.name,
        owner=config.owner,
        tx=definition.tx,
        using=definition.using,
        dead_letter_topic=definition.dead_letter_topic,
    )

    def open_store(name: str) -> InboxStore:
        return stores(name)

    def open_log() -> Log:
        return KafkaLog(
            client,
            group=definition.name,
            session_timeout_ms=int(chosen.session_timeout.total_seconds() * 1000),
            max_poll_interval_ms=int(chosen.max_poll_interval.total_seconds() * 1000),
        )

    return Station(
        open_store,
        open_log,
        Applier(definition.handlers),
        config,
        version=__version__,
        metrics=metrics if isinstance(metrics, Metrics) else None,
        upkeep=upkeep_of(client, url, settings.schema_name, chosen.retention),
    )


def require_topics(client: dict[str, str], names: Sequence[str]) -> Mapping[str, TopicFacts]:
    """What Kafka knows of these topics; refuses where one is not there."""
    from tallymark.broker import topics
    from tallymark.broker.reach import admin_client

    found = topics.describe(admin_client(client), list(names))
    if missing := [topic for topic in names if topic not in found]:
        raise Problem(
            f"there is no topic {', '.join(missing)} in this Kafka",
            remedy=f"correct the topic's name, or make it: `tallymark topics create {missing[0]}`",
        )
    return found


def _require_partitions(found: Mapping[str, TopicFacts], definition: Definition) -> None:
    for topic, partition in definition.assign or ():
        if partition >= found[topic].partitions:
            raise UsageError(
                f"assign= names partition {partition} of {topic}, which has {found[topic].partitions}",
                remedy="partitions count from 0",
            )


def _say_what_it_promises(config: InboxConfig) -> None:
    output.remark(f"inbox {config.consumer}, {config.mode}: {config.mode.sentence}")
    output.remark(f"  topics: {', '.join(config.topics)}; process {config.owner}")
    output.remark(f"  guarantees: {config.guarantee}")
