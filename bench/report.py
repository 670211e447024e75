"""A finished run as data first, then as a table for people."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.row import Row


@dataclass(frozen=True)
class Report:
    """What was measured, and on what."""

    name: str
    machine: dict[str, Any]
    rows: Sequence[Row]

    @property
    def missed(self) -> list[Row]:
        """The rows whose goal was not met."""
        return [row for row in self.rows if row.met is False]

    def as_json(self) -> dict[str, Any]:
        return {"name": self.name, "machine": self.machine, "rows": [row.as_json() for row in self.rows]}

    def render(self, console: Console) -> None:
        table = Table(
            title=f"bench {self.name}", title_justify="left", caption=self._caption(), caption_justify="left"
        )
        table.add_column("metric", no_wrap=True)
        table.add_column("unit")
        for heading in ("ours", "against", "ratio", "95 %"):
            table.add_column(heading, justify="right", no_wrap=True)
        table.add_column("goal", no_wrap=True)
        for row in self.rows:
            ratio = row.ratio
            table.add_row(
                row.metric,
                row.unit,
                figure(row.ours),
                figure(row.against),
                f"{ratio.value:.2f}" if ratio else "",
                f"{ratio.low:.2f}–{ratio.high:.2f}" if ratio else "",
                _goal(row),
            )
        console.print(table)

    def _caption(self) -> str:
        machine = self.machine
        return (
            f"{machine['cpus']} × {machine['cpu']}, {machine['memory_gb']:g} GB, {machine['system']}, "
            f"Python {machine['python']}; load before the start: {machine['load_1m']:g}"
        )


def figure(value: float | None) -> str:
    """A number as a person reads it."""
    if value is None:
        return ""
    if abs(value) >= 1_000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def _goal(row: Row) -> str:
    if row.goal is None:
        return ""
    return f"[green]met[/] {row.goal}" if row.met else f"[red]missed[/] {row.goal}"
