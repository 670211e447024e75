"""`tallymark demo`: transfers between accounts over real parts, while things are broken; and the naive twin beside it."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Annotated

import typer

from tallymark.cli import output
from tallymark.cli.signals import interruptible
from tallymark.errors import EXIT_PROBLEM, UsageError

if TYPE_CHECKING:
    from tallymark.lab.outcome import Outcome

app = typer.Typer(add_completion=False)

MESSAGES = 10_000
# Fewer would be over before all is broken.
_FEWEST, _FEWEST_CALM = 3_000, 100


@app.command()
def demo(
    *,
    messages: Annotated[
        int, typer.Option("--messages", min=_FEWEST_CALM, max=10_000_000, help="Transfers to make.")
    ] = MESSAGES,
    seed: Annotated[
        int | None, typer.Option("--seed", help="Orders, and what breaks when; by chance if left out.")
    ] = None,
    calm: Annotated[bool, typer.Option("--calm", help="Break nothing.")] = False,
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave everything running, for a look around.")
    ] = False,
    json: output.JsonOption = False,
) -> None:
    """Money moves while brokers, relays, consumers, PostgreSQL and Spark are killed: none lost, none twice."""
    from tallymark.lab import demo as lab
    from tallymark.lab.board import Board
    from tallymark.lab.display import shown
    from tallymark.lab.ending import ending, try_next
    from tallymark.lab.stage import Wish

    if messages < _FEWEST and not calm:
        raise UsageError(
            f"--messages {messages} would be over before all is broken",
            remedy=f"give at least {_FEWEST}, or --calm",
        )
    if seed is None:
        import secrets

        seed = secrets.randbelow(10_000)
    home = lab.fresh_home(lab.default_home())
    board = Board(messages, seed)
    # The display goes beside the result: --json leaves stdout to the one document.
    console = output.stderr() if json else output.stdout()
    try:
        with interruptible(signal.SIGTERM, signal.SIGHUP), shown(board, console, quiet=json):
            outcome = lab.run(home, Wish(messages, seed, calm=calm, keep=keep), board)
    except Exception:
        output.remark(f"Seed {seed}. The data and all logs are kept in {home}.")
        raise
    told = not console.is_terminal
    output.emit(outcome.as_json(), as_json=json, human=lambda: ending(outcome, with_faults=not told))
    if not json:
        output.to_be_copied(try_next(outcome))
    finish(outcome)


def finish(outcome: Outcome) -> None:
    """Exit 1 if anything is missing, twice, out of order, or not certified."""
    if not outcome.clean:
        raise typer.Exit(EXIT_PROBLEM)
