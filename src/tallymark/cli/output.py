"""The one way a verb prints: its result on stdout, for people or as one JSON document; the rest on stderr.

    emit(report, as_json=json, human=lambda: table(("topic", "partitions"), rows))

Secrets are masked on both ways out. With --json an error is JSON on stdout too: a script reads
one stream.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from enum import Enum
from functools import cache
from typing import TYPE_CHECKING, Annotated

import typer

from tallymark.errors import TallymarkError
from tallymark.observe.masking import mask, masked

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

# Piped output is read by programs and logs: no line may be cut or folded to a window that is not there.
_PIPED_WIDTH = 400

JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


@cache
def stdout() -> Console:
    """The console that results go to."""
    return _console(stderr=False)


@cache
def stderr() -> Console:
    """The console that progress and remarks go to."""
    return _console(stderr=True)


def _console(*, stderr: bool) -> Console:
    from rich.console import Console

    piped = not (sys.stderr if stderr else sys.stdout).isatty()
    # Who sets COLUMNS has a window in mind all the same, for tables; Rich takes it from there.
    wide = piped and not os.environ.get("COLUMNS", "").strip("0").isdecimal()
    return Console(stderr=stderr, highlight=False, width=_PIPED_WIDTH if wide else None, soft_wrap=piped)


def emit(
    data: object, *, as_json: bool, human: Callable[[], RenderableType | Iterable[RenderableType]]
) -> None:
    """Print a verb's result. `human` is only called when it is wanted; its text is shown as it is."""
    if as_json:
        sys.stdout.write(json.dumps(masked(plain(data)), ensure_ascii=False) + "\n")
        sys.stdout.flush()
        return
    shown = human()
    items = [shown] if isinstance(shown, str) or not isinstance(shown, Sequence) else shown
    for item in items:
        if isinstance(item, str):
            stdout().print(mask(item), markup=False)
        else:
            stdout().print(item)


def to_be_copied(lines: Iterable[str]) -> None:
    """Commands, on stdout: never folded, for a folded one would not run."""
    for line in lines:
        stdout().print(mask(line), markup=False, soft_wrap=True)


def remark(text: str) -> None:
    """Something to know beside the result, on stderr."""
    stderr().print(mask(text), markup=False)


@contextmanager
def progress(*, quiet: bool = False) -> Iterator[Callable[[str], None]]:
    """The step at hand, as a moving line on a terminal; elsewhere nothing."""
    console = stderr()
    if quiet or not console.is_terminal:
        yield lambda _: None
        return
    with console.status("") as status:
        yield status.update


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, title: str = "") -> Table:
    """A table for people. Numbers stand to the right; text is shown as it is."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    kept = [list(row) for row in rows]
    made = Table(
        box=SIMPLE_HEAD, title=title or None, title_justify="left", pad_edge=False, show_header=any(columns)
    )
    for position, column in enumerate(columns):
        values = [row[position] for row in kept]
        numeric = bool(values) and all(isinstance(each, int | float) or each is None for each in values)
        made.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in kept:
        made.add_row(*(Text("" if cell is None else mask(str(cell))) for cell in row))
    return made


def counted(number: int, noun: str) -> str:
    """`1 message`, `2,000 messages`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def plain(value: object) -> object:  # noqa: PLR0911 - one return per kind of value
    """Values of ours as JSON's own types: dataclasses by field, enums by value, times in ISO form."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Enum):
        return plain(value.value)
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, datetime):
        return value.isoformat()
    return value


def report(error: TallymarkError, *, as_json: bool) -> None:
    """Tell the user what was wrong and what to do."""
    what, remedy = mask(str(error)), mask(error.remedy)
    if as_json:
        sys.stdout.write(json.dumps({"error": what, "remedy": remedy}, ensure_ascii=False) + "\n")
        return
    sys.stderr.write(f"error: {what}\n")
    if remedy:
        sys.stderr.write(f"  {remedy}\n")
