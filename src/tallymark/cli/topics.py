"""`tallymark topics create | check`: topics that keep what they acknowledge, and what others lack."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tallymark.cli import connections, output
from tallymark.errors import EXIT_PROBLEM, Problem, UsageError
from tallymark.lifecycle import Role

if TYPE_CHECKING:
    from rich.table import Table

    from tallymark.broker.kafka import AdminClient
    from tallymark.broker.safety import Finding

app = typer.Typer(
    add_completion=False, no_args_is_help=True, help="Create topics safely; check those there are."
)

AcceptRisk = Annotated[
    list[str] | None,
    typer.Option("--accept-risk", metavar="SETTING", help="Switch off the safety rule of this setting."),
]


def _admin(bootstrap_servers: str | None) -> AdminClient:
    from tallymark.broker.reach import admin_client, reach

    client = connections.kafka_client(connections.load(bootstrap_servers=bootstrap_servers).settings)
    reach(client)
    return admin_client(client)


def _accepted(risks: list[str] | None) -> tuple[str, ...]:
    from tallymark.broker.safety import SETTINGS
    from tallymark.settings.keys import closest

    for risk in risks or ():
        if risk not in SETTINGS:
            near = closest(risk, SETTINGS)
            raise UsageError(
                f"--accept-risk {risk}: no safety rule has this name",
                remedy=f"Did you mean {near}?" if near else f"There are: {', '.join(SETTINGS)}.",
            )
    return tuple(risks or ())


def _pairs(settings: list[str] | None) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for setting in settings or ():
        name, equals, value = setting.partition("=")
        if not (name and equals):
            raise UsageError(
                f"--config {setting} is not NAME=VALUE", remedy="For example retention.ms=604800000."
            )
        pairs[name.strip()] = value.strip()
    return pairs


@app.command()
def create(
    names: Annotated[list[str], typer.Argument(metavar="NAME…", help="The topics.")],
    *,
    partitions: Annotated[int, typer.Option(min=1, max=10_000, help="Partitions of each.")] = 6,
    replication_factor: Annotated[int, typer.Option(min=1, max=100, help="Copies of each partition.")] = 3,
    config: Annotated[
        list[str] | None, typer.Option("--config", metavar="NAME=VALUE", help="A topic setting of Kafka's.")
    ] = None,
    accept_risk: AcceptRisk = None,
    bootstrap_servers: connections.BootstrapOption = None,
    json: output.JsonOption = False,
) -> None:
    """Create topics with safe settings; one that is there already, as asked, is left alone."""
    from tallymark.broker import safety, topics

    accepted, settings = _accepted(accept_risk), _pairs(config)
    specs = [topics.TopicSpec(name, partitions, replication_factor, config=settings) for name in names]
    # Judged before anything is made: of several topics none or all.
    findings = [finding for spec in specs for finding in safety.judge(spec.expected())]
    if grave := next(safety.refused(findings, accepted), None):
        raise Problem(
            f"topic {grave.topic}: {grave.rule} would be {grave.found}, safe is {grave.safe}: {grave.why}",
            remedy=f"Leave it at the safe value, or say --accept-risk {grave.rule}.",
        )
    admin = _admin(bootstrap_servers)
    made = {spec.name: topics.create(admin, spec) for spec in specs}
    warnings = [finding for finding in findings if finding.rule not in accepted]
    output.emit(
        {
            "topics": [
                {"name": name, "created": new, "partitions": partitions} for name, new in made.items()
            ],
            "warnings": warnings,
            "accepted_risks": accepted,
        },
        as_json=json,
        human=lambda: [
            *(
                f"{name}: {'created' if new else 'exists, as asked: left alone'}"
                for name, new in made.items()
            ),
            *([_findings(warnings)] if warnings else []),
        ],
    )


@app.command()
def check(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME…]", help="The topics; default: all but internal ones."),
    ] = None,
    *,
    accept_risk: AcceptRisk = None,
    bootstrap_servers: connections.BootstrapOption = None,
    json: output.JsonOption = False,
) -> None:
    """Check topics against the safety rules. Exit code 1 when one breaks a promise or is missing."""
    from tallymark.broker import safety, topics

    accepted = _accepted(accept_risk)
    admin = _admin(bootstrap_servers)
    wanted = names or topics.names(admin)
    facts = topics.describe(admin, wanted, patience=1.0)
    missing = [name for name in wanted if name not in facts]
    findings = [
        finding for each in facts.values() for finding in safety.judge(each) if finding.rule not in accepted
    ]
    failed = bool(missing) or any(True for _ in safety.refused(findings))
    output.emit(
        {
            "ok": not failed,
            "topics": list(facts.values()),
            "missing": missing,
            "findings": findings,
            "accepted_risks": accepted,
        },
        as_json=json,
        human=lambda: [
            *(f"{name}: there is no such topic" for name in missing),
            *([_findings(findings)] if findings else []),
            f"topics looked at: {len(facts)}, findings: {len(findings)}",
        ],
    )
    if failed:
        raise typer.Exit(EXIT_PROBLEM)


@app.command()
def accept(
    name: Annotated[str, typer.Argument(help="The topic.")],
    *,
    reason: Annotated[str, typer.Option("--reason", help="Why, for the audit.")],
    database: connections.DatabaseOption = None,
    bootstrap_servers: connections.BootstrapOption = None,
    json: output.JsonOption = False,
) -> None:
    """From now on publish into a topic as it is today: after partitions were added, or it was recreated.

    Keys are placed anew over the partitions that there are now, so that a key's later messages may stand in another
    partition than its earlier ones: let consumers catch up first.
    """
    from tallymark.broker.cluster import KafkaCluster
    from tallymark.cli.person import user
    from tallymark.store.stores import operators_for

    settings = connections.load(bootstrap_servers=bootstrap_servers, database=database).settings
    report = KafkaCluster(connections.kafka_client(settings)).inspect(name)
    if not report.topic_id:
        raise Problem(f"topic {name} cannot be accepted: {report.problem}")
    url = connections.database(settings, role=Role.PRODUCER).url.get_secret_value()
    if not operators_for(url, schema=settings.schema_name).accept_topic(report, who=user(), reason=reason):
        raise UsageError(f"this outbox has never published into {name}", remedy="there is nothing to accept")
    output.emit(
        report,
        as_json=json,
        human=lambda: f"{name}: published into by its {report.partitions} partitions from now on",
    )


def _findings(findings: list[Finding]) -> Table:
    return output.table(
        ("topic", "setting", "found", "safe", "severity", "why"),
        [(each.topic, each.rule, each.found, each.safe, each.severity, each.why) for each in findings],
    )
