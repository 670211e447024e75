"""How people see a demo while it runs: a live screen on a terminal, plain lines elsewhere."""

from __future__ import annotations

import textwrap
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from tallymark.lab.board import Board, Picture

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult

_WIDE = 120
_LEFT = 78
_SIGN = 3  # a sign may take two columns
_AROUND = 3  # lines above, and one for the cursor
_TOTALS_EVERY_S = 10.0

# Station, field of Counts, what it does.
_OURS = (
    ("bank", "bank", "transfer and message, one commit"),
    ("relays", "log", "to the log, once"),
    ("ledger", "ledger", "inbox: effect and id, one commit"),
    ("report", "report", "the same, on Spark"),
)
_NAIVE = (
    ("bank", "naive_bank", "commits, then sends"),
    ("ledger", "naive_ledger", "auto-commit consumer"),
)


class Screen:
    """Draws the board anew each time it is asked; fits itself to the terminal."""

    def __init__(self, board: Board) -> None:
        self._board = board

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield screen(self._board.picture(), options.max_width, console.size.height)


def screen(picture: Picture, width: int, height: int) -> RenderableType:
    """One moment, for a terminal of this size."""
    minutes, seconds = divmod(int(picture.elapsed_s), 60)
    title = Table.grid(expand=True, padding=(0, 1))
    title.add_column()
    title.add_column(justify="right")
    title.add_row(
        Text.assemble(("Tallymark", "bold"), f"  {picture.messages:,} transfers, seed {picture.seed}"),
        f"{minutes}:{seconds:02}",
    )
    rule = Rule(Text(picture.phase), style="dim", align="left")
    left = _stations(picture, min(width, _LEFT))
    if width < _WIDE:
        return Group(title, rule, left, Text(), _faults(picture))
    both = Table.grid(padding=(0, 2))
    both.add_column(width=_LEFT)
    both.add_column(width=width - _LEFT - 2)
    both.add_row(left, _faults(picture, width=width - _LEFT - 2, height=height - _AROUND))
    return Group(title, rule, both)


def _stations(picture: Picture, width: int) -> RenderableType:
    parts: list[RenderableType] = []
    for heading, style, stations in (("ours", "green", _OURS), ("naive twin", "yellow", _NAIVE)):
        table = Table.grid(padding=(0, 1))
        table.add_column(width=7)
        table.add_column(width=32, no_wrap=True)
        table.add_column(width=max(8, width - 62))
        table.add_column(width=10, justify="right")
        table.add_column(width=8, justify="right")
        for name, field, does in stations:
            count, rate = getattr(picture.counts, field), picture.rates.get(field, 0.0)
            bar = ProgressBar(picture.messages, min(count, picture.messages), complete_style=style)
            table.add_row(f" {name}", Text(does, style="dim"), bar, f"{count:,}", f"{rate:,.0f}/s")
        parts += [Text(heading, style=f"bold {style}"), table]
    return Group(*parts)


def _faults(picture: Picture, *, width: int = 0, height: int = 0) -> RenderableType:
    """What was broken, and what is being broken now. With a width also what came of each, the newest first, for as long
    as there is room: what goes on now must not be what is cut off."""
    titles = [f"{each.title}  {each.seconds:.1f} s" for each in picture.faults]
    room = height - _lines(width, *titles, picture.breaking, picture.note) if width else 0
    told: set[int] = set()
    for number, each in reversed(list(enumerate(picture.faults))):
        room -= _lines(width, each.result)
        if room < 0:
            break
        told.add(number)
    table = Table.grid()
    table.add_column(width=_SIGN)
    table.add_column(overflow="fold")
    for number, each in enumerate(picture.faults):
        title = Text.assemble(each.title, (f"  {each.seconds:.1f} s", "dim"))
        table.add_row(Text("✓", style="green"), title)
        if number in told:
            table.add_row("", Text(each.result, style="dim"))
    if picture.breaking:
        table.add_row(Text("⚡", style="bold red"), Text(picture.breaking, style="bold red"))
    if picture.note:
        table.add_row("", Text(picture.note, style="italic"))
    return table


def _lines(width: int, *texts: str) -> int:
    """How many lines they take, beside a sign."""
    return sum(len(textwrap.wrap(each, max(1, width - _SIGN))) for each in texts)


@contextmanager
def shown(board: Board, console: Console, *, quiet: bool = False) -> Iterator[None]:
    """Show the board for as long as the block lasts. With `quiet` nothing is written where there is no terminal."""
    if console.is_terminal:
        with Live(Screen(board), console=console, refresh_per_second=4, transient=True):
            yield
        return
    if quiet:
        yield
        return
    board.listener = lambda line: console.print(_stamped(board, line), markup=False)
    over = threading.Event()
    ticking = threading.Thread(target=_totals, args=(board, console, over), name="totals", daemon=True)
    ticking.start()
    try:
        yield
    finally:
        over.set()
        ticking.join()


def _totals(board: Board, console: Console, over: threading.Event) -> None:
    while not over.wait(_TOTALS_EVERY_S):
        if board.sampler is not None:
            console.print(_stamped(board, totals(board.picture())), markup=False)


def totals(picture: Picture) -> str:
    """The counts in one line."""
    ours = ", ".join(f"{name} {getattr(picture.counts, field):,}" for name, field, _ in _OURS)
    naive = ", ".join(f"{name} {getattr(picture.counts, field):,}" for name, field, _ in _NAIVE)
    return f"  {ours}; naive twin: {naive}"


def _stamped(board: Board, line: str) -> str:
    minutes, seconds = divmod(int(board.elapsed_s), 60)
    return f"{minutes}:{seconds:02}  {line}"
