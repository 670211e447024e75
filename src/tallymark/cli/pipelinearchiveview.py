"""What `tallymark pipeline archive --status` shows: how far each partition is archived, and how long there is time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from tallymark.cli import output
from tallymark.errors import EXIT_PROBLEM

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tallymark.pipeline.archivestatus import ArchiveStatus
    from tallymark.pipeline.manifestlog import ManifestLog


def show(manifests: ManifestLog, client: dict[str, str], *, as_json: bool) -> None:
    from tallymark.pipeline.archivestatus import look

    seen = look(manifests, client)
    output.emit(seen, as_json=as_json, human=lambda: lines(seen))
    if seen.troubles:
        raise typer.Exit(EXIT_PROBLEM)


def lines(seen: ArchiveStatus) -> list[RenderableType]:
    rows = [
        (
            f"{each.topic}/{each.partition}",
            each.archived_from,
            each.archived_upto,
            each.log_end,
            each.behind,
            left(each.left_ms, by_size=each.by_size) if each.behind else "",
        )
        for each in seen.partitions
    ]
    at_work = f"{seen.held_by} is at work" if seen.held_by else "no run is at work"
    lines: list[RenderableType] = [
        f"{seen.folder}: {output.counted(seen.rows, 'message')} in {output.counted(seen.files, 'file')}, "
        f"{seen.bytes / 1e6:,.1f} MB; {at_work}",
        output.table(("partition", "from", "archived up to", "log ends", "behind", "retention leaves"), rows),
    ]
    if seen.left_ms is not None:
        lines.append(f"what is not archived yet may be deleted in {left(seen.left_ms, by_size=False)}")
    if any(each.compacted for each in seen.partitions):
        lines.append(
            "a compacted topic among them: what Kafka compacts before it is archived leaves no trace"
        )
    lines += [
        f"not archived, because it was deleted before: {gap.topic}/{gap.partition} {gap.start} to {gap.end - 1}"
        for gap in seen.gaps
    ]
    return [*lines, *seen.troubles]


def left(left_ms: int | None, *, by_size: bool) -> str:
    size = " (and less, if the topic fills up: it has retention.bytes)" if by_size else ""
    if left_ms is None:
        return f"for ever{size}"
    minutes, hours, days = left_ms // 60_000, left_ms // 3_600_000, left_ms // 86_400_000
    spoken = (
        f"{days} d {hours % 24} h" if days else f"{hours} h {minutes % 60} min" if hours else f"{minutes} min"
    )
    return f"{spoken}{size}"
