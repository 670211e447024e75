"""A replay in the test's own process, and what it has kept, by plain SQL."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from tallymark.pipeline.manifestlog import ManifestLog
from tallymark.pipeline.replay import Replay
from tallymark.pipeline.replayground import Wish, prepared
from tallymark.pipeline.replaypieces import Portion
from tallymark.store.postgres.replay import Redriven, ReplayStore
from tests.inbox.ground import Ground

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def replay(
    ground: Ground,
    spark: SparkSession,
    *,
    consumer: str | None = None,
    since_ms: int | None = None,
    ids: list[str] | None = None,
    topics: tuple[str, ...] = (),
    archive: Path | None = None,
    incomplete: bool = False,
    any_order: bool = False,
    portion: Portion | None = None,
    note: Callable[[Redriven], None] = lambda _total: None,
) -> tuple[Redriven, Replay]:
    """A replay in this process."""
    client = {"bootstrap.servers": ground.servers}
    store = ReplayStore(ground.url, consumer or ground.name)
    try:
        wish = Wish(since_ms, None if ids is None else tuple(ids), topics, incomplete)
        manifests = None if archive is None else ManifestLog(archive)
        start = prepared(store, client, manifests, wish)
        job = Replay(
            spark,
            client,
            archive,
            lambda messages: store.redrive(messages, any_order=any_order),
            since_ms=since_ms,
            ids=wish.ids,
            note=note,
            portion=portion or Portion(),
        )
        return job.run(start.source), job
    finally:
        store.close()


def kept(ground: Ground, consumer: str | None = None) -> set[str]:
    rows = ground.query("select id::text from tallymark.inbox where consumer = %s", consumer or ground.name)
    return {row[0] for row in rows}
