"""What a replay is to read, and what is refused before anything is begun: consumer, topics, positions, archive."""

from __future__ import annotations

from dataclasses import dataclass

from tallymark.broker import profiles
from tallymark.broker.offsets import Logs, at_time
from tallymark.broker.reach import admin_client, reach
from tallymark.errors import Problem, UsageError
from tallymark.pipeline import archivefiles
from tallymark.pipeline.archive import bounds_of
from tallymark.pipeline.manifest import Move
from tallymark.pipeline.manifestlog import ManifestLog
from tallymark.pipeline.replayids import since_of
from tallymark.pipeline.replayplan import Source, planned
from tallymark.store.postgres.replay import ReplayStore, refuse_other_topic


@dataclass(frozen=True, slots=True)
class Wish:
    """Which messages, of which topics."""

    since_ms: int | None
    ids: tuple[str, ...] | None
    topics: tuple[str, ...]
    incomplete: bool


@dataclass(frozen=True, slots=True)
class Ground:
    """Where a replay stands before it begins."""

    topics: tuple[str, ...]
    new: bool
    source: Source


def prepared(
    store: ReplayStore, client: profiles.Client, manifests: ManifestLog | None, wish: Wish
) -> Ground:
    """Everything that can be refused is, before Spark is started. A new consumer gets its positions."""
    known = store.topics()
    topics = wish.topics or known
    if not topics:
        raise UsageError(f"there is no consumer {store.consumer}", remedy="give --topic TOPIC to make it")
    if known is not None and (strange := sorted(set(topics) - set(known))):
        raise UsageError(
            f"consumer {store.consumer} reads {', '.join(known)}, not {strange[0]}", remedy="correct --topic"
        )
    cluster = reach(client)
    state = None if manifests is None else manifests.require()
    if state is not None and state.cluster_id != cluster.cluster_id:
        raise Problem(
            f"the archive belongs to the Kafka cluster {state.cluster_id}, this one is {cluster.cluster_id}"
        )
    admin = admin_client(client)
    bounds = bounds_of(Logs(admin), topics)
    topic_ids = {place[0]: each.topic_id for place, each in bounds.items()}
    for name, id_ in topic_ids.items():
        if state is not None and state.topics.get(name, id_) != id_:
            raise Problem(
                f"the archive has another topic of the name {name} (its id was {state.topics[name]}, now {id_})"
            )
    ends = {place: each.end for place, each in bounds.items()}
    for place, position in store.positions().items():
        if place in ends:
            refuse_other_topic(position, topic_ids[place[0]])
            # What lies further on the consumer reads by itself.
            ends[place] = min(ends[place], position.next_offset)
    since_ms = since_of(wish.ids or ()) if wish.since_ms is None else wish.since_ms

    def older(missing: Move) -> bool:
        """Something older than the moment lies behind it: then it is older still."""
        return (
            manifests is not None
            and state is not None
            and archivefiles.has_older(manifests.folder, state.files.values(), missing, since_ms)
        )

    source = planned(
        ends,
        at_time(admin, list(bounds), since_ms),
        bounds,
        archive=state,
        since_ms=since_ms,
        strict=wish.ids is None and not wish.incomplete,
        older=older,
    )
    if known is None:
        store.found(topics, ends, topic_ids)
    return Ground(topics, known is None, source)
