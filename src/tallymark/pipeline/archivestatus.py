"""How an archive stands: what it holds, how far it is behind, and when retention would take what it does not hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tallymark.broker import peek, profiles, topics
from tallymark.broker.offsets import Logs
from tallymark.broker.reach import admin_client, reach
from tallymark.errors import Problem
from tallymark.inbox.gaps import Bounds
from tallymark.pipeline.archiveplan import Retention, Standing, standing
from tallymark.pipeline.manifest import Archive, Move, Place
from tallymark.pipeline.manifestlog import ManifestLog, is_held, now_ms


@dataclass(frozen=True, slots=True)
class ArchiveStatus:
    """One archive at one moment."""

    folder: str
    archive_id: str
    cluster_id: str
    manifest: int
    topics: list[str]
    files: int
    rows: int
    bytes: int
    # Who archives into it now.
    held_by: str | None
    behind: int
    # Milliseconds until retention may delete something that is not archived; None where there is no such thing.
    left_ms: int | None
    partitions: list[Standing]
    gaps: list[Move]
    troubles: list[str]


def look(manifests: ManifestLog, client: profiles.Client) -> ArchiveStatus:
    """The archive beside its topics."""
    state = manifests.require()
    reached = reach(client)
    if reached.cluster_id != state.cluster_id:
        raise Problem(
            f"the archive {manifests.folder} belongs to the Kafka cluster {state.cluster_id}, "
            f"this one is {reached.cluster_id}",
            remedy="give the servers that it was made from",
        )
    admin = admin_client(client)
    logs = Logs(admin)
    names = sorted(state.topics)
    facts = topics.describe(admin, names)
    ids = logs.topic_ids(names)
    bounds = {
        place: Bounds(*ends, ids[place[0]])
        for place, ends in logs.bounds(logs.partitions(sorted(ids))).items()
    }
    oldest = _oldest(client, state, bounds)
    now = now_ms()
    rules = {
        name: Retention(each.retention_ms, each.retention_bytes, each.cleanup_policy)
        for name, each in facts.items()
    }
    partitions = [
        standing(
            place,
            state.extents.get(place),
            state.topics[place[0]],
            each,
            rules[place[0]],
            oldest_ms=oldest.get(place),
            now_ms=now,
        )
        for place, each in sorted(bounds.items())
        if place[0] in rules
    ]
    return summed_up(manifests, state, partitions, [name for name in names if name not in ids])


def summed_up(
    manifests: ManifestLog, state: Archive, partitions: list[Standing], missing: list[str]
) -> ArchiveStatus:
    """All partitions as one."""
    return ArchiveStatus(
        folder=str(manifests.folder),
        archive_id=state.archive_id,
        cluster_id=state.cluster_id,
        manifest=state.number,
        topics=sorted(state.topics),
        files=len(state.files),
        rows=state.rows,
        bytes=state.bytes,
        held_by=is_held(manifests.folder),
        behind=sum(each.behind for each in partitions),
        left_ms=min((each.left_ms for each in partitions if each.left_ms is not None), default=None),
        partitions=partitions,
        gaps=list(state.gaps),
        troubles=[
            *(f"there is no topic {name} any more" for name in missing),
            *(each.trouble for each in partitions if each.trouble),
        ],
    )


def _oldest(client: profiles.Client, state: Archive, bounds: Mapping[Place, Bounds]) -> dict[Place, int]:
    """Kafka's time of the first message of each partition that is not archived."""
    ends = {place: (each.first, each.end) for place, each in bounds.items()}
    upto = {place: state.extents[place].next if place in state.extents else 0 for place in bounds}
    oldest = peek.oldest_left(client, ends, upto)
    return {place: int(at.timestamp() * 1000) for place, at in oldest.items() if at is not None}
