"""How a job on Spark shows its progress."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tallymark.cli import output


@contextmanager
def display(as_json: bool) -> Iterator[Callable[[str], None]]:
    """A line that moves on a terminal, a line per batch elsewhere; with --json nothing but the result."""
    console = output.stderr()
    if as_json:
        yield lambda _line: None
    elif not console.is_terminal:
        yield output.remark
    else:
        with console.status("starting Spark") as status:
            yield status.update
