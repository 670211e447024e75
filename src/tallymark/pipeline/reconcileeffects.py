"""Effects by window, and messages that a consumer keeps under another position than a window's: of what was sent again.

Effects know no position. Where as much was applied as was kept of a stretch of the log, by the sums of ids, each of its
messages was applied once, and those of a window are those that were kept of it. Only where they differ are effects
looked up one by one: each message counts once, and what was applied more than once is counted beside it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tallymark.inbox.identity import saved_id
from tallymark.pipeline.reconcilecells import BUCKET, Bucket, Cells, Resent, digest_of
from tallymark.pipeline.reconcileframes import inbox_sources
from tallymark.pipeline.reconcileground import Ground
from tallymark.pipeline.reconcileports import Stations
from tallymark.store.postgres.tallycells import Stretch
from tallymark.tally.digest import Digest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Ids in one query.
_IDS = 5000
_LIMB = 2**32 - 1


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """Copies of a window's that a consumer had before: how many, their contents and their ids."""

    count: int = 0
    contents: Digest = field(default_factory=Digest)
    ids: Digest = field(default_factory=Digest)


def count_effects(spark: SparkSession, sources: Stations, ground: Ground, cells: Cells) -> None:
    """Whose effects there are, by window; and where they stand elsewhere than their messages were kept from."""
    unlike = set(cells.unlike())
    alike_effects(cells, unlike)
    places: dict[str, set[Stretch]] = defaultdict(set)
    for label, topic, partition, bucket in unlike:
        stretch = ((topic, partition), bucket * BUCKET, (bucket + 1) * BUCKET)
        places[ground.consumers[label].database].add(stretch)
    ours = None if ground.sources is None else inbox_sources(ground)
    for database, found in places.items():
        tables = sources.tables(database)
        queries = tables.queries(rows=ground.rows, bucket=BUCKET)
        rows = tables.read(spark, [queries.window_effects(sorted(found))]).collect()
        add_window_effects(cells, rows, ground.labels_in(database), unlike, ours)


def alike_effects(cells: Cells, unlike: Collection[Bucket]) -> None:
    for bucket, by_window in cells.kept_ids.items():
        if bucket not in unlike:
            for number, digest in by_window.items():
                _add(cells, bucket[0], number, digest)


def add_window_effects(
    cells: Cells,
    rows: Iterable[Any],
    labels: Mapping[str, str],
    unlike: Collection[Bucket],
    ours: Collection[str] | None,
) -> None:
    """Of single messages. `labels`: what consumers are called in this run; `ours`: whose positions count, or all."""
    for row in rows:
        bucket = (labels.get(row.consumer, ""), row.topic, row.partition, row.bucket)
        if bucket not in unlike or (ours is not None and row.source not in ours):
            continue
        _add(cells, bucket[0], row.w, digest_of(row, "i"))
        cells.twice[bucket[0], row.w] += row.twice
        if row.strays:
            cells.misapplied_in.add(row.w)
            if row.low is not None:
                cells.stood_at(row.w, (row.topic, row.partition), row.low, row.high)


def look_up_resent(spark: SparkSession, sources: Stations, ground: Ground, cells: Cells) -> None:
    """Where each consumer keeps what was sent again, from the windows of this run or into them."""
    place_resent(ground, cells)
    touched = {id_ for at, of, id_ in ground.view.resends if id_ and max(at, of) >= ground.first}
    wanted = sorted({saved_id(each) for each in touched})
    ours = None if ground.sources is None else inbox_sources(ground)
    for database in sources.inboxes() if wanted else ():
        if not (labels := ground.labels_in(database)):
            continue
        tables = sources.tables(database)
        queries = tables.queries(rows=ground.rows, bucket=BUCKET)
        parts = [wanted[at : at + _IDS] for at in range(0, len(wanted), _IDS)]
        for row in tables.read(spark, [queries.inbox_among(part) for part in parts]).collect():
            if row.consumer in labels and (ours is None or row.source in ours):
                limbs = (row.c >> 32 & _LIMB, row.c & _LIMB, row.d >> 32 & _LIMB, row.d & _LIMB)
                kept = Resent(row.position, Digest.of([row.digest]), Digest(1, limbs))
                cells.resent[labels[row.consumer]][row.id] = kept


def place_resent(ground: Ground, cells: Cells) -> None:
    """Which positions of a window were sent again, or are resends; those that left their batch stand nowhere."""
    unsent = ground.unsent
    for at, of, id_ in ground.view.resends:
        for position in {at, of} - unsent:
            cells.resent_in[position // ground.rows].setdefault(id_, set()).add(position)


def elsewhere(cells: Cells, label: str, number: int) -> Elsewhere:
    """Copies of a window's messages that the consumer keeps under another position. Looked up, not inferred."""
    found = Elsewhere()
    for id_, positions in cells.resent_in.get(number, {}).items():
        if (kept := cells.resent.get(label, {}).get(id_)) is not None:
            for _ in positions - {kept.position}:
                found = Elsewhere(found.count + 1, found.contents + kept.contents, found.ids + kept.ids)
    return found


def _add(cells: Cells, label: str, number: int, digest: Digest) -> None:
    cells.effects[label, number] = cells.effects.get((label, number), Digest()) + digest
