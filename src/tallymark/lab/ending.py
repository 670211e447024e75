"""The last screen of a demo: what every station has, the twin's row, the certificate, and what to try next."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from tallymark.lab.comparison import Balances, Compared

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tallymark.lab.outcome import Certified, Outcome

_NAMES = {"log": "log", "ledger": "ledger (inbox)", "report": "report (Spark)"}


def ending(outcome: Outcome, *, with_faults: bool) -> list[RenderableType]:
    """For people. Without faults where each was told when it was over."""
    parts: list[RenderableType] = []
    for each in outcome.faults if with_faults else ():
        parts.append(Text.assemble(("✓ ", "green"), each.title, (f"  {each.seconds:.1f} s", "dim")))
        parts.append(Padding(Text(each.result, style="dim", overflow="fold"), (0, 0, 0, 2)))
    parts += [Text(), _told(outcome), _table(outcome)]
    found = outcome.tally
    parts.append(
        f"tally run, on Spark: {found.messages:,} messages, {found.missing} missing, {found.doubled} twice, "
        f"{found.reordered} out of order"
    )
    if found.certificate is not None:
        parts += _certificate(found.certificate)
    return parts


def try_next(outcome: Outcome) -> list[str]:
    """Commands to be copied: whoever prints them must not fold them."""
    said = ["", "Try next:"] if outcome.try_next else []
    for command, why in outcome.try_next:
        said += [f"  # {why}", f"  {command}"]
    return said


def _told(outcome: Outcome) -> Text:
    broken = f"{len(outcome.faults)} faults" if outcome.faults else "no faults"
    told = f"{outcome.messages:,} transfers, {broken}, seed {outcome.seed}, {outcome.seconds:.0f} s: "
    if outcome.clean:
        return Text.assemble(
            told, ("none lost, none twice, every balance right to the cent.", "bold green"), overflow="fold"
        )
    return Text.assemble(told, ("NOT all is well.", "bold red"), overflow="fold")


def _table(outcome: Outcome) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column("station")
    for name in ("has", "missing", "twice", "out of order"):
        table.add_column(name, justify="right")
    table.add_column("balances")
    table.add_row("bank", f"{outcome.messages:,}", "", "", "", "")
    for name, each in outcome.stations.items():
        balances = outcome.balances.get(name)
        table.add_row(*_row(_NAMES.get(name, name), each, balances), style="" if each.equal else "bold red")
    table.add_row(*_row("naive twin", outcome.naive, outcome.naive_balances), style="yellow")
    return table


def _row(name: str, each: Compared, balances: Balances | None) -> tuple[str, ...]:
    counts = (each.found, each.missing, each.doubled, each.reordered)
    return (name, *(f"{count:,}" for count in counts), "" if balances is None else _money(balances))


def _money(balances: Balances) -> str:
    if balances.equal:
        return "equal to the cent"
    return f"off by {balances.cents_off / 100:,.2f} on {balances.accounts_off} accounts"


def _certificate(found: Certified) -> list[str]:
    applied = " = ".join(f"{count:,} applied by {name}" for name, count in sorted(found.applied.items()))
    return [
        f"certificate {found.number}, positions {found.first:,} to {found.last:,}:",
        f"  {found.written:,} written = {found.logged:,} logged",
        f"  = {applied}",
        f"  sha256 {found.hash}",
    ]
