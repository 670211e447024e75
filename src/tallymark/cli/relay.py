"""`tallymark relay run | status | pause | resume | clear | lanes`: from the outbox to Kafka."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Annotated

import typer

from tallymark.cli import connections, output
from tallymark.cli.person import user
from tallymark.cli.signals import until_told
from tallymark.lifecycle import Mode, Role

if TYPE_CHECKING:
    from collections.abc import Callable

    from tallymark.relay.config import RelayConfig
    from tallymark.relay.ports import RelayStore
    from tallymark.settings import Settings
    from tallymark.store.stores import AnyOperators

app = typer.Typer(add_completion=False, no_args_is_help=True, help="From the outbox to Kafka.")

log = logging.getLogger("tallymark.relay")

Lanes = Annotated[list[int] | None, typer.Argument(metavar="[LANE]…", help="All lanes where none is named.")]
Reason = Annotated[str, typer.Option("--reason", help="Why, for the audit.")]


@app.command()
def run(
    database: connections.DatabaseOption = None,
    bootstrap_servers: connections.BootstrapOption = None,
    mode: Annotated[Mode | None, typer.Option("--mode", help="How to publish.")] = None,
    accept_risk: Annotated[
        list[str] | None,
        typer.Option("--accept-risk", metavar="SETTING", help="Publish although this is unsafe."),
    ] = None,
    metrics_port: Annotated[
        int | None, typer.Option("--metrics-port", help="Serve /metrics, /healthz and /readyz on loopback.")
    ] = None,
) -> None:
    """Run a relay until it is told to stop (SIGTERM, Ctrl-C)."""
    from tallymark.broker.cluster import KafkaCluster
    from tallymark.broker.reach import reach
    from tallymark.observe.metrics import Metrics
    from tallymark.relay.relay import Relay, house_kept

    loaded = connections.load(
        bootstrap_servers=bootstrap_servers,
        database=database,
        flags={
            ("relay", "mode"): ("--mode", str(mode) if mode else None),
            ("relay", "accept_risk"): ("--accept-risk", ",".join(accept_risk) if accept_risk else None),
        },
    )
    settings = loaded.settings
    client = connections.kafka_client(settings)
    config = _config(settings)
    stores, upkeep = _stores(settings, config.owner)
    with house_kept(upkeep):
        brokers = reach(client).brokers
    kafka = KafkaCluster(
        client,
        prefix=settings.topic_prefix,
        accepted=config.accepted,
        # A broker that is away for a moment is no reason for fewer copies: only whoever accepts that risk gets them.
        receipts_copies=min(3, brokers) if "replication.factor" in config.accepted else 3,
    )
    metrics = Metrics()
    relay = Relay(stores, kafka, config, metrics=metrics, upkeep=upkeep)
    identity = relay.open()
    _say_what_it_promises(config, identity.outbox_id)
    stop = until_told("relay.stop")
    if metrics_port is None:
        relay.run(stop)
        return
    from tallymark.observe.health import Health, HealthServer

    def ready() -> Health:
        troubles = relay.troubles
        return Health(
            relay.ready and not troubles, {f"lane {number}": said for number, said in troubles.items()}
        )

    with HealthServer(metrics, port=metrics_port, ready=ready):
        relay.run(stop)


@app.command()
def status(database: connections.DatabaseOption = None, as_json: output.JsonOption = False) -> None:
    """Lanes, owners, backlog, what is parked or held, and the oldest floor."""
    from tallymark.cli import relayview

    found = _operators(database).status()
    output.emit(found, as_json=as_json, human=lambda: relayview.shown(found, connections.as_given(database)))


@app.command()
def pause(
    lanes: Lanes = None,
    database: connections.DatabaseOption = None,
    reason: Reason = "",
    as_json: output.JsonOption = False,
) -> None:
    """Let lanes stand still: what was begun is finished, nothing new is sent."""
    _set_paused(lanes, database, reason, as_json, paused=True)


@app.command()
def resume(
    lanes: Lanes = None,
    database: connections.DatabaseOption = None,
    reason: Reason = "",
    as_json: output.JsonOption = False,
) -> None:
    """Let paused lanes go on."""
    _set_paused(lanes, database, reason, as_json, paused=False)


@app.command()
def clear(
    lane: Annotated[int, typer.Argument(help="The lane that was halted.")],
    reason: Annotated[str, typer.Option("--reason", help="What you found, for the audit.")],
    database: connections.DatabaseOption = None,
    forget_receipts: Annotated[
        bool,
        typer.Option(
            "--forget-receipts",
            help="Go on from whatever receipt the log has, or none. Unmarked batches are sent.",
        ),
    ] = False,
    as_json: output.JsonOption = False,
) -> None:
    """Let a halted lane go on, after you have looked into what it found."""
    done = _operators(database).clear(lane, who=user(), reason=reason, forget_receipts=forget_receipts)
    output.emit({"lane": lane, "cleared": done}, as_json=as_json, human=lambda: f"lane {lane} may go on")


@app.command()
def lanes(
    count: Annotated[int, typer.Argument(help="How many lanes the outbox is to have, from 1 to 256.")],
    database: connections.DatabaseOption = None,
    reason: Reason = "",
    as_json: output.JsonOption = False,
) -> None:
    """Change how many lanes the outbox has. Needs all relays stopped and nothing waiting to be sent."""
    before = _operators(database).change_lanes(count, who=user(), reason=reason)
    output.emit(
        {"before": before, "after": count},
        as_json=as_json,
        human=lambda: f"{output.counted(before, 'lane')} before, {output.counted(count, 'lane')} now",
    )


def _set_paused(
    numbers: list[int] | None, database: str | None, reason: str, as_json: bool, *, paused: bool
) -> None:
    changed = _operators(database).pause(numbers, who=user(), reason=reason, paused=paused)
    word = "paused" if paused else "resumed"
    output.emit(
        {word: changed},
        as_json=as_json,
        human=lambda: f"{word}: lanes {', '.join(map(str, changed))}" if changed else "nothing to change",
    )


def _operators(database: str | None) -> AnyOperators:
    from tallymark.store.stores import operators_for

    settings = connections.load(database=database).settings
    chosen = connections.database(settings, role=Role.PRODUCER)
    return operators_for(chosen.url.get_secret_value(), schema=settings.schema_name)


def _stores(settings: Settings, owner: str) -> tuple[Callable[[str], RelayStore], Callable[[], None]]:
    """How the relay opens its connections, and its housekeeping."""
    from tallymark.store.stores import stores_for

    url = connections.database(settings, role=Role.PRODUCER).url.get_secret_value()
    relay = settings.relay
    stores = stores_for(
        url, schema=settings.schema_name, keep=relay.retention, keep_names=relay.dedup_retention, owner=owner
    )
    return stores.open, stores.upkeep


def _config(settings: Settings) -> RelayConfig:
    from tallymark.relay.config import RelayConfig, new_owner

    relay = settings.relay
    return RelayConfig(
        mode=relay.mode,
        owner=new_owner(relay.owner),
        lease_s=relay.lease_seconds,
        batch_messages=relay.batch_messages,
        batch_bytes=relay.batch_bytes,
        poll_s=relay.poll_ms / 1000,
        give_up_after_s=relay.give_up_after.total_seconds() if relay.give_up_after else None,
        hold_key=relay.on_park == "hold-key",
        accepted=relay.accept_risk,
        lanes=relay.lanes,
        notify=relay.notify,
        end_floors_after_s=relay.end_floors_after.total_seconds() if relay.end_floors_after else None,
    )


def _say_what_it_promises(config: RelayConfig, outbox_id: str) -> None:
    policy = config.policy
    output.remark(f"relay {config.owner} for outbox {outbox_id}, mode {policy.mode}")
    output.remark(f"  guarantees: {policy.guarantee}")
    output.remark(f"  costs: {policy.cost}")
    for risk in config.accepted:
        output.remark(f"  accepted risk: {risk} may be unsafe")
