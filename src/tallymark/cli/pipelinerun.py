"""From the command line's words to a running ingest: the one place that puts its parts together."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from tallymark.cli import connections, output
from tallymark.cli.pipelineground import inbox_database
from tallymark.cli.pipelineline import display
from tallymark.cli.signals import until_told
from tallymark.errors import TallymarkError, UsageError

if TYPE_CHECKING:
    from tallymark.pipeline.committing import Committed
    from tallymark.pipeline.effects import Effect
    from tallymark.pipeline.ingest import IngestConfig
    from tallymark.pipeline.session import SparkPlan
    from tallymark.pipeline.station import Job

log = logging.getLogger("tallymark.pipeline")


def job_of(
    reference: str | None,
    *,
    consumer: str | None,
    topics: Sequence[str],
    apply_sql: Path | None,
    apply: str | None,
    at_end: bool,
) -> tuple[Job, str | None]:
    """What was asked for, and the database that its inbox names; refuses what does not fit together."""
    from tallymark.pipeline.effects import FunctionEffect, HandlersEffect, NoEffect, SqlEffect
    from tallymark.pipeline.station import Job

    if reference is not None:
        if consumer or topics or apply_sql or apply:
            raise UsageError(
                "an inbox brings its own name, topics and handlers", remedy="leave the other options out"
            )
        from tallymark.cli.appref import inbox_of

        definition = inbox_of(reference)
        definition.check()
        if definition.positions == "kafka":
            raise UsageError(
                'positions="kafka" is for services', remedy="let the database keep them: leave it out"
            )
        if definition.assign is not None:
            raise UsageError(
                "assign= is for services: a run of the pipeline reads all partitions of its topics",
                remedy="leave it out",
            )
        job = Job(
            definition.name,
            definition.topics,
            HandlersEffect(definition.handlers),
            deferred=definition.mode == "deferred",
            at_end=at_end or definition.start == "end",
            tx=definition.tx,
            alias=definition.using,
            dead_letter_topic=definition.dead_letter_topic,
        )
        return job, definition.database
    if not consumer or not topics:
        raise UsageError(
            "who reads what?", remedy="name an inbox (app:inbox), or give --consumer NAME and --topic TOPIC"
        )
    if apply_sql is not None and apply is not None:
        raise UsageError("--apply-sql and --apply are two ways", remedy="give one of them")
    effect: Effect
    if apply_sql is not None:
        try:
            effect = SqlEffect(apply_sql.read_text(encoding="utf-8"), topics)
        except OSError as error:
            raise UsageError(f"{apply_sql} cannot be read: {error.strerror}") from error
    elif apply is not None:
        from tallymark.cli.appref import function_of

        effect = FunctionEffect(function_of(apply), topics)
    else:
        effect = NoEffect(topics)
    from tallymark.inbox.definition import Definition

    Definition(consumer)  # its name is checked there
    return Job(consumer, tuple(topics), effect, at_end=at_end), None


def plan_of(
    app: str, master: str, conf: Sequence[str], *, report: bool = True, jars: tuple[Path, ...] | None = None
) -> SparkPlan:
    """Java, the connector's jars and the user's settings as a plan for Spark. A job by spark-submit has the first two."""
    from tallymark.local.jars import JarStore, spark_connector
    from tallymark.local.java import find_java
    from tallymark.local.sparkclasses import spark_classes
    from tallymark.pipeline.session import SparkPlan
    from tallymark.pipeline.submit import is_submitted, spark_submit

    if is_submitted(os.environ):
        return SparkPlan(app, master, conf=pairs(conf), submitted=True)
    spark_submit()  # refuses a SPARK_HOME that is none
    java = find_java()
    store = JarStore(java)
    if jars is None:
        store.ensure([spark_connector()], output.remark if report else lambda _line: None)
        jars = tuple(sorted(store.folder(spark_connector()).glob("*.jar")))
    return SparkPlan(
        app,
        master,
        jars,
        conf=pairs(conf),
        java_home=java.executable.resolve().parent.parent,
        jvm_options=spark_classes(java, store).options(),
    )


def pairs(conf: Sequence[str]) -> Mapping[str, str]:
    """`--conf name=value`, several times."""
    found = {}
    for each in conf:
        name, equals, value = each.partition("=")
        if not equals or not name.strip():
            raise UsageError(
                f"--conf {each}: a setting is name=value", remedy="as in --conf spark.executor.memory=2g"
            )
        found[name.strip()] = value.strip()
    return found


def run(
    job: Job,
    plan: SparkPlan,
    config: IngestConfig,
    *,
    database: str | None,
    bootstrap_servers: str | None,
    metrics_port: int | None,
    verbose: bool,
    as_json: bool,
) -> dict[str, object]:
    """Ingest until the backlog is read, or until told to stop. Gives back what was done."""
    from tallymark.broker.reach import reach
    from tallymark.cli.inboxrun import require_topics
    from tallymark.cli.inboxupkeep import upkeep_of
    from tallymark.observe.health import HealthServer
    from tallymark.observe.metrics import Metrics
    from tallymark.pipeline import kafkasource
    from tallymark.pipeline.committing import Committed
    from tallymark.pipeline.ingest import new_checkpoint
    from tallymark.pipeline.progress import Gauges
    from tallymark.pipeline.session import started
    from tallymark.pipeline.station import IngestStation

    # What can be refused is refused before anything is taken or started.
    plan.settings()
    new_checkpoint(config.checkpoint).rmdir()
    settings = connections.load(bootstrap_servers=bootstrap_servers, database=database).settings
    client = connections.kafka_client(settings)
    kafkasource.java_settings(client)
    url = inbox_database(settings)
    reach(client)
    require_topics(client, job.topics)
    total, counted, metrics = Committed(), 0, Metrics()
    gauges = Gauges(metrics, job.consumer)
    with ExitStack() as stack:
        shown = stack.enter_context(display(as_json))

        def note(done: Committed) -> None:
            nonlocal total, counted
            total, counted = total + done, counted + 1
            gauges.note(done)
            shown(_line(counted, total, done))

        station = IngestStation(
            job,
            client,
            url,
            stop=until_told("pipeline.stop"),
            schema=settings.schema_name,
            lease_s=settings.inbox.lease_seconds,
            note=note,
            upkeep=upkeep_of(client, url, settings.schema_name, settings.inbox.retention),
        )
        trouble: str | None = "it ended by itself, which is a fault of ours"
        try:
            # Before Spark is started: whoever is told that another one reads has not waited for a JVM.
            station.take(plan.master)
            gauges.begin(station.positions())
            if metrics_port is not None:
                stack.enter_context(HealthServer(metrics, port=metrics_port))
            with started(plan, verbose=verbose) as spark:
                gauges.listen(spark)
                station.run(spark, config)
            trouble = None
        except TallymarkError as error:
            trouble = str(error)
            raise
        finally:
            station.close(trouble)
    named = {"consumer": job.consumer, "run": station.run_name, "topics": list(job.topics)}
    return {**named, "batches": counted, **total.counts()}


def _line(batches: int, total: Committed, last: Committed) -> str:
    rate = f", {last.rate:,.0f}/s" if last.rate is not None else ""
    waiting = f", {total.queued:,} queued" if total.queued else ""
    dead = f", {total.dead + total.quarantined:,} dead" if total.dead + total.quarantined else ""
    return (
        f"batch {batches}: {total.kept:,} kept, {total.applied:,} applied{waiting}{dead}"
        f" ({total.repeated:,} known before{rate})"
    )
