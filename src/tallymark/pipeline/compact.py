"""Few large files in place of many small ones, with the same rows. Which: pure; the rest is one job and one manifest."""

from __future__ import annotations

import logging
import secrets
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING

from tallymark.crashpoint import reached
from tallymark.errors import Inconsistent
from tallymark.pipeline import archivefiles
from tallymark.pipeline.manifest import Archive, Change, Kind, Stored
from tallymark.pipeline.manifestlog import ManifestLog, now_ms

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("tallymark.pipeline")

# One job rewrites at most so many times the size of a good file.
_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class Compaction:
    """When small files are too many."""

    # A day of a topic is compacted by itself when it has so many small files.
    many: int = 32
    # How large a file should be. Small is what is less than an eighth of it; or than half of it, where somebody asks: to
    # write a file once more costs as much as to archive it, which those of a backlog are not worth.
    target: int = 128 * 1024 * 1024


def groups(state: Archive, rule: Compaction, *, at_least: int | None = None) -> list[tuple[Stored, ...]]:
    """What to put together, each of one topic and day; `at_least` 2 takes whatever can be put together."""
    days: dict[tuple[str, str], list[Stored]] = {}
    small_bytes = rule.target // (8 if at_least is None else 2)
    for each in state.files.values():
        if each.bytes < small_bytes:
            days.setdefault((each.topic, each.date), []).append(each)
    found = []
    for _, small in sorted(days.items()):
        if len(small) < max(2, rule.many if at_least is None else at_least):
            continue
        group: list[Stored] = []
        for each in sorted(small, key=lambda one: (one.offsets, one.partitions)):
            if len(group) > 1 and sum(one.bytes for one in group) + each.bytes > _AT_ONCE * rule.target:
                found.append(tuple(group))
                group = []
            group.append(each)
        if len(group) > 1:
            found.append(tuple(group))
    return found


def compact(
    spark: SparkSession,
    manifests: ManifestLog,
    state: Archive,
    run: str,
    rule: Compaction,
    *,
    at_least: int | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Archive:
    """All groups, one manifest each. The old files stay until nobody can be reading them any more."""
    for group in groups(state, rule, at_least=at_least):
        if stop():
            break
        state = _rewritten(spark, manifests, state, run, group, rule)
    return state


def _rewritten(
    spark: SparkSession,
    manifests: ManifestLog,
    state: Archive,
    run: str,
    group: Sequence[Stored],
    rule: Compaction,
) -> Archive:
    token = f"c{secrets.token_hex(8)}"
    staged = manifests.staging / token
    pieces = max(1, ceil(sum(each.bytes for each in group) / rule.target))
    rows = archivefiles.read(spark, manifests.folder, group)
    rows = rows.coalesce(1) if pieces == 1 else rows.repartitionByRange(pieces, "partition", "offset")
    try:
        count = archivefiles.write(rows.sortWithinPartitions("partition", "offset"), staged)
    except Exception:
        shutil.rmtree(staged, ignore_errors=True)
        raise
    new = archivefiles.adopt(staged, manifests.folder, token, count.refuse_other)
    refuse_other_rows(group, new)
    reached("archive.rewritten")
    after = manifests.commit(
        state,
        Change(
            state.number + 1,
            Kind.COMPACTED,
            run,
            now_ms(),
            add=tuple(new),
            remove=tuple(each.path for each in group),
        ),
    )
    reached("archive.replaced")
    log.info(
        "%s of %s: %d files became %d",
        group[0].topic,
        group[0].date,
        len(group),
        len(new),
        extra={"action": "archive.compact"},
    )
    return after


def refuse_other_rows(old: Sequence[Stored], new: Sequence[Stored]) -> None:
    """The same number of rows between the same bounds, or nothing is replaced. Pure."""

    def said(files: Sequence[Stored]) -> tuple[object, ...]:
        return (
            sum(each.rows for each in files),
            {(each.topic, each.date) for each in files},
            min(each.offsets[0] for each in files),
            max(each.offsets[1] for each in files),
            min(each.partitions[0] for each in files),
            max(each.partitions[1] for each in files),
        )

    if not new or said(old) != said(new):
        raise Inconsistent(
            f"compacting {old[0].topic} of {old[0].date} would change what is archived: nothing was replaced",
            remedy="look whether files of the archive were altered",
        )
