"""What `tallymark pipeline status` shows: each consumer's last run, its batches, and how far behind it is.

And the archive, where one is named: up to where each partition is archived, and how long until retention deletes what is
not.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tallymark.cli import connections, output, pipelinearchiveview
from tallymark.cli.pipelinearchive import folder_of
from tallymark.errors import TallymarkError, UsageError
from tallymark.lifecycle import Role
from tallymark.pipeline import archivestatus
from tallymark.pipeline.archivestatus import ArchiveStatus
from tallymark.pipeline.manifestlog import ManifestLog
from tallymark.store.postgres.inboxoperators import ConsumerStatus, InboxOperators
from tallymark.store.postgres.pipelinestore import RunStatus, statuses

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tallymark.inbox.ports import Place
    from tallymark.settings import Settings


@dataclass(frozen=True, slots=True)
class Lag:
    """How far a consumer is behind its logs."""

    offsets: int
    # The age of the first message that is not kept yet; 0 where only markers, or nothing, lie ahead; None where Kafka
    # does not let us look, or does not answer.
    seconds: float | None


@dataclass(frozen=True, slots=True)
class Look:
    """A run, and what Kafka and the positions add to it."""

    run: RunStatus
    running: bool
    lag: int | None
    lag_s: float | None
    trouble: str | None

    @property
    def rate(self) -> float | None:
        """Messages a second over its last batches, by what took longer: one is loaded while another is committed."""
        spent = sum(max(each.load_s, each.commit_s) for each in self.run.last)
        return sum(each.read for each in self.run.last) / spent if spent else None

    def as_data(self) -> dict[str, Any]:
        return {
            "consumer": self.run.consumer,
            "run": self.run.run,
            "running": self.running,
            "owner": self.run.owner,
            "topics": self.run.topics,
            "master": self.run.master,
            "started_at": self.run.started_at,
            "ended_at": self.run.ended_at,
            "trouble": self.trouble,
            "lag": self.lag,
            "lag_s": self.lag_s,
            "rate": self.rate,
            "totals": self.run.totals,
            "batches": self.run.last,
        }


@dataclass(frozen=True, slots=True)
class PipelineLook:
    """The pipeline as a whole."""

    runs: list[Look]
    # None where none was named, or where it cannot be looked at.
    archive: ArchiveStatus | None = None
    archive_troubles: tuple[str, ...] = ()

    def as_data(self) -> dict[str, Any]:
        return {
            "runs": [each.as_data() for each in self.runs],
            "archive": self.archive,
            "archive_troubles": self.archive_troubles,
        }


def look(settings: Settings, consumer: str | None, archive: Path | None = None) -> PipelineLook:
    """The last run of each consumer in the database, and the archive in this folder."""
    if archive is None:
        return PipelineLook(_runs(settings, consumer))
    manifests = ManifestLog(folder_of(archive))
    # Whoever only archives has no database.
    runs = _runs(settings, consumer) if settings.database or settings.databases or consumer else []
    try:
        seen = archivestatus.look(manifests, connections.kafka_client(settings))
    except TallymarkError as error:
        return PipelineLook(runs, archive_troubles=(f"the archive {manifests.folder}: {error}",))
    return PipelineLook(runs, seen, tuple(seen.troubles))


def _runs(settings: Settings, consumer: str | None) -> list[Look]:
    url = connections.database(settings, role=Role.CONSUMER).url.get_secret_value()
    runs = statuses(url, schema=settings.schema_name, consumer=consumer)
    if consumer is not None and not runs:
        raise UsageError(
            f"the pipeline has not run for {consumer} in this database",
            remedy="`tallymark inbox status` shows who reads, by service or by Spark",
        )
    ran = {each.consumer for each in runs}
    consumers = {
        each.consumer: each
        for each in InboxOperators(url, schema=settings.schema_name).status(None)
        if each.consumer in ran
    }
    lags = _lags(settings, consumers)
    return [_looked(each, consumers.get(each.consumer), lags.get(each.consumer)) for each in runs]


def _looked(run: RunStatus, standing: ConsumerStatus | None, lag: Lag | None) -> Look:
    positions = standing.positions if standing is not None else []
    held = [each for each in positions if each.owner == run.owner and each.alive]
    return Look(
        run,
        running=bool(held),
        lag=None if lag is None else lag.offsets,
        lag_s=None if lag is None else lag.seconds,
        trouble=run.trouble
        if run.ended_at
        else (None if held else "it was killed: it never said that it ended"),
    )


def _lags(settings: Settings, consumers: Mapping[str, ConsumerStatus]) -> dict[str, Lag]:
    """How far each consumer is behind; nothing where Kafka cannot be asked."""
    from tallymark.broker import offsets, peek
    from tallymark.broker.reach import admin_client, reach

    upto = {name: {each.place: each.next_offset for each in one.positions} for name, one in consumers.items()}
    places = {place for positions in upto.values() for place in positions}
    if not places:
        return {name: Lag(0, 0.0) for name in consumers}
    try:
        client = connections.kafka_client(settings)
        reach(client)
        bounds = offsets.bounds(admin_client(client), places)
        return {
            name: Lag(
                sum(
                    max(0, bounds[place][1] - offset)
                    for place, offset in positions.items()
                    if place in bounds
                ),
                _age(positions.keys() & bounds.keys(), peek.oldest_left(client, bounds, positions)),
            )
            for name, positions in upto.items()
        }
    except TallymarkError as error:
        output.remark(f"without Kafka: {error}")
        return {}


def _age(asked: Collection[Place], oldest: Mapping[Place, datetime | None]) -> float | None:
    """Of the oldest; 0 where there is none, None where it is not known of one."""
    if any(place not in oldest for place in asked):
        return None
    now = datetime.now(UTC)
    return max((max(0.0, (now - each).total_seconds()) for each in oldest.values() if each), default=0.0)


def shown(found: PipelineLook) -> list[RenderableType]:
    if found.archive is not None:
        return [*_shown_runs(found.runs), *pipelinearchiveview.lines(found.archive)]
    if not found.runs and not found.archive_troubles:
        return ["the pipeline has not run in this database yet: tallymark pipeline ingest"]
    return [*_shown_runs(found.runs), *found.archive_troubles]


def _shown_runs(runs: list[Look]) -> list[RenderableType]:
    lines: list[RenderableType] = []
    for each in runs:
        totals = each.run.totals
        state = "running" if each.running else "ended"
        lines.append(
            f"{each.run.consumer}: {state} on {each.run.master}, run {each.run.run}, by {each.run.owner}"
        )
        if each.trouble:
            lines.append(f"  {each.trouble}")
        lag = "?" if each.lag is None else f"{each.lag:,}"
        seconds = "" if each.lag_s is None else f" ({each.lag_s:,.1f} s)"
        rate = "" if each.rate is None else f", {each.rate:,.0f}/s"
        lines.append(
            f"  {totals.kept:,} kept and {totals.applied:,} applied in {totals.batches:,} batches{rate}; "
            f"behind by {lag} offsets{seconds}; {totals.queued:,} were queued, {totals.dead:,} died"
        )
        if each.run.last:
            lines.append(
                output.table(
                    ("batch", "read", "kept", "applied", "queued", "dead", "load s", "commit s", "at"),
                    [
                        (
                            batch.batch,
                            batch.read,
                            batch.kept,
                            batch.applied,
                            batch.queued,
                            batch.dead,
                            round(batch.load_s, 2),
                            round(batch.commit_s, 2),
                            f"{batch.committed_at:%H:%M:%S}",
                        )
                        for batch in each.run.last
                    ],
                )
            )
    return lines
