"""Command lines of the documentation, tried against the real command line without running them.

A name in capitals (ID, TOPIC/PARTITION, N) or with … in it stands for any value; … alone stands for more options; what
is in brackets may be left out; `list | show` stands for one of the two.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from typing import Any

import typer

from tallymark.cli.main import app
from tests.docs.pages import Code

_ENDS = {"|", "||", "&&", ";", "&", ">", ">>", "<"}
_ANY = re.compile(r"[A-Z][A-Z0-9_]*([:/.,-]?[A-Z][A-Z0-9_]*)*")
_SHOWN = re.compile(r"(?:^|\$\(|\s)(?:\w+=\S+ )*tallymark (?=[a-z-])")
_EXPLAINED = re.compile(r"\s{2,}.*|\s#\s.*")
_ROOT = typer.main.get_command(app)


class Wrong(Exception):
    """The command line does not take this."""


def command_lines(code: Code) -> Iterator[str]:
    """Each `tallymark …` of a block or of a span, without what is said about it."""
    if code.kind == "span":
        if _SHOWN.match(code.text):
            yield code.text[code.text.index("tallymark ") :]
        return
    if code.is_python:
        return
    for line in code.text.replace("\\\n", " ").splitlines():
        said = line.removeprefix("$ ")
        # What a command answered stands below it, without the sign of a prompt.
        if (code.kind == "console" and said == line) or code.kind == "text":
            continue
        for found in _SHOWN.finditer(said):
            rest = said[found.end() - len("tallymark ") :]
            if found[0].startswith("$("):
                rest = rest.partition(")")[0]
            elif found.start() and not _is_command(said[: found.start()]):
                continue
            yield _EXPLAINED.sub("", rest)


def _is_command(before: str) -> bool:
    """Whether what stands before `tallymark` lets a command follow."""
    return before.strip() == "" or before.rstrip().endswith(("&&", ";", "|", "or:"))


def check(line: str, *, mention: bool = False) -> None:
    """Raises Wrong with what is not there. As a `mention` a verb may stand without what it needs to run."""
    words = shlex.split(line.replace("[/", "/").replace("[", " ").replace("]", " "))
    for each, all_of_it in _alternatives(words[1:]):
        _follow(_ROOT, each, mention=mention or not all_of_it)


def _alternatives(words: Sequence[str]) -> Iterator[tuple[list[str], bool]]:
    """`a b | c D` is `a b` and `a c D` where c is a verb beside b; any other | or > ends the command."""
    for at, word in enumerate(words):
        if word not in _ENDS:
            continue
        if word == "|" and at < len(words) - 1 and words[at + 1] in _beside(words[: at - 1]):
            yield list(words[:at]), False
            yield from _alternatives([*words[: at - 1], *words[at + 1 :]])
        else:
            yield list(words[:at]), True
        return
    yield list(words), True


def _beside(words: Sequence[str]) -> list[str]:
    """The verbs that can follow these."""
    command: Any = _ROOT
    for word in words:
        command = command.get_command(_context(command), word) if hasattr(command, "get_command") else None
    return list(command.list_commands(_context(command))) if hasattr(command, "list_commands") else []


def _follow(command: Any, words: list[str], *, mention: bool) -> None:
    context = _context(command)
    try:
        given, rest, _ = command.make_parser(context).parse_args(args=list(words))
        for parameter in command.params:
            value = given.get(parameter.name)
            if isinstance(value, str) and not _is_any(value) and _is_plain(parameter.type_descriptor):
                parameter.get_runtime_param().coerce(value, param=parameter, ctx=context)
    except typer.TyperException as error:
        raise Wrong(str(error) or getattr(error, "message", "")) from error
    if hasattr(command, "get_command"):
        if rest and rest[0] != "…":
            below = command.get_command(context, rest[0])
            if below is None:
                raise Wrong(f"there is no {rest[0]}")
            _follow(below, rest[1:], mention=mention)
        return
    if rest and rest != ["…"]:
        raise Wrong(f"too much: {' '.join(rest)}")
    missing = [each.name for each in command.params if each.required and not given.get(each.name)]
    if missing and not ("…" in words or (mention and not words)):
        raise Wrong(f"not given: {', '.join(missing)}")


def _context(command: Any) -> Any:
    return command.context_class(command, info_name=command.name)


def _is_plain(descriptor: Any) -> bool:
    """A number or one of a few words. What depends on the machine (a path that must be there) is not looked at."""
    return descriptor.is_choice or descriptor.annotation in (int, float, int | None, float | None)


def _is_any(value: str) -> bool:
    return "…" in value or bool(_ANY.fullmatch(value))
