"""The verbs and where each lives. One is imported when it is used: `--help` is quick whatever a verb needs.

A verb's module offers `app`, a Typer: one command makes a verb, several make a group.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from tallymark.errors import UsageError


@dataclass(frozen=True, slots=True)
class Verb:
    """A word of the command line, its module under tallymark.cli, and the line that --help shows."""

    name: str
    summary: str

    @property
    def module(self) -> str:
        return f"tallymark.cli.{self.name}"


VERBS: tuple[Verb, ...] = (
    Verb("local", "The embedded cluster: real Kafka brokers and a real PostgreSQL on this machine."),
    Verb("init", "Create or migrate Tallymark's schema in a database."),
    Verb("config", "Show the effective settings, and where each came from."),
    Verb("topics", "Create topics with safe settings; check those there are."),
    Verb("outbox", "Look at messages in the outbox."),
    Verb("relay", "Run the relay from the outbox to Kafka; see, pause and resume it."),
    Verb("inbox", "Run an inbox from Kafka to its database; see, pause, resume and move it."),
    Verb("pipeline", "The inbox at Spark's width: ingest, archive, snapshot, replay."),
    Verb("failed", "Messages that failed: look, retry, discard."),
    Verb("trace", "The whole life of one message, from its transaction to its effects."),
    Verb("tally", "Account for every message: compare the stations, certify, resend what is missing."),
    Verb("serve", "The query interface: where any message is, over HTTP; metrics; actions."),
    Verb("tokens", "Who may use the query interface: make, list and revoke tokens."),
    Verb("demo", "The whole journey on this machine, broken on purpose and counted."),
)


@cache
def present() -> dict[str, Verb]:
    """The verbs whose module is there."""
    return {verb.name: verb for verb in VERBS if find_spec(verb.module) is not None}


def closest_verb(complaint: str) -> str | None:
    """The verb that was most likely meant, where the complaint is that there is none of that name."""
    word = re.match(r"No such command '([^']+)'", complaint)
    near = difflib.get_close_matches(word.group(1), present(), n=1) if word else []
    return near[0] if near else None


class Verbs(TyperGroup):
    """A group whose commands are imported on first use."""

    _listing = False

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - the group's signature
        return list(present())

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002 - the group's signature
        verb = present().get(cmd_name)
        if verb is None:
            return None
        if self._listing:
            return TyperCommand(verb.name, help=verb.summary, callback=None)
        try:
            app = import_module(verb.module).app
        except ModuleNotFoundError as error:
            if (error.name or "").startswith("tallymark"):
                raise
            raise UsageError(
                f"`tallymark {verb.name}` needs the package {error.name}",
                remedy="install Tallymark with its extra [all], or with the one that brings it",
            ) from error
        command = typer.main.get_command(app)
        command.name = verb.name
        return command

    def format_help(self, ctx: Any, formatter: Any) -> None:
        # The list of verbs shows one line of each, which is known without importing it.
        self._listing = True
        try:
            super().format_help(ctx, formatter)
        finally:
            self._listing = False
