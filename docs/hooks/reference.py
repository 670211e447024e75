"""The reference pages, made from the code when the documentation is built: they cannot fall behind it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import typer
from mkdocs.structure.files import File, Files
from pydantic import BaseModel, SecretStr

from tallymark import errors, lifecycle, message
from tallymark.cli.verbs import VERBS
from tallymark.observe.names import ALL
from tallymark.settings.model import Settings
from tallymark.store.postgres.migrations import known

_SIMPLE = (str, int, float, bool)
# A table, and the comment that stands above it.
_TABLE = re.compile(r"((?:^--[^\n]*\n)*)^create table \{schema\}\.(\w+)", re.MULTILINE)


def on_files(files: Files, *, config: Any, **_rest: Any) -> Files:
    """mkdocs calls this: the pages join the written ones."""
    pages = {
        "cli": cli(),
        "settings": settings(),
        "tables": tables(),
        "headers": headers(),
        "metrics": metrics(),
        "errors": error_pages(),
        "states": states(),
    }
    for name, lines in pages.items():
        files.append(File.generated(config, f"reference/{name}.md", content="\n".join(lines) + "\n"))
    return files


def cli() -> Iterator[str]:
    yield "# Command line\n"
    yield "Every verb takes `--json`. Exit codes: 0 done, 1 a problem, 2 wrong usage, 3 a dependency is not there."
    for verb in VERBS:
        command = typer.main.get_command(import_module(verb.module).app)
        yield f"\n## tallymark {verb.name}\n\n{verb.summary}\n"
        subcommands = getattr(command, "commands", None)
        if subcommands:
            for name, each in subcommands.items():
                yield from _command(f"tallymark {verb.name} {name}", each)
        else:
            yield from _command(f"tallymark {verb.name}", command)


def _command(path: str, command: Any) -> Iterator[str]:
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    options = [each for each in command.params if each.param_type_name == "option" and each.name != "help"]
    usage = " ".join((each.metavar or (each.name or "").upper()) for each in arguments)
    yield f"### {path} {usage}".rstrip() + "\n"
    yield f"{(command.help or '').strip()}\n"
    if options:
        yield "| option | | |\n|---|---|---|"
        for each in options:
            default = (
                "" if each.default in (None, False, [], ()) or callable(each.default) else f"`{each.default}`"
            )
            yield f"| `{'`, `'.join(each.opts)}` | {_cell(each.help or '')} | {default} |"
        yield ""


def settings() -> Iterator[str]:
    yield "# Settings\n"
    yield (
        "In tallymark.toml, in the environment (`TALLYMARK_RELAY__MODE`), or by a verb's own option; the later counts. "
        "`tallymark config` shows each with where it came from.\n"
    )
    yield from _section(Settings, "")


def _section(model: type[BaseModel], prefix: str) -> Iterator[str]:
    plain = {n: f for n, f in model.model_fields.items() if not _is_section(f.annotation)}
    if plain:
        yield f"\n## {prefix or 'at the top'}\n\n{(model.__doc__ or '').strip()}\n"
        yield "| name | default | meaning |\n|---|---|---|"
        for name, field in plain.items():
            default = field.default
            shown = (
                f"`{default}`" if isinstance(default, _SIMPLE) else "" if default is None else f"{default}"
            )
            if isinstance(default, SecretStr) or "PydanticUndefined" in shown:
                shown = ""
            yield f"| `{prefix}{'.' if prefix else ''}{name}` | {_cell(shown)} | {_cell(field.description or '')} |"
    for name, field in model.model_fields.items():
        if _is_section(field.annotation):
            yield from _section(field.annotation, name)  # type: ignore[arg-type]


def _is_section(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def tables() -> Iterator[str]:
    yield "# Tables\n\nIn the schema `tallymark` (or the one that the settings name), made by `tallymark init`.\n"
    for migration in known():
        yield f"\n## {migration.version:04} {migration.name} ({migration.role})\n\n| table | |\n|---|---|"
        for comment, name in re.findall(
            r"((?:^--[^\n]*\n)*)^create (?:unlogged )?table \{schema\}\.(\w+)", migration.sql, re.M
        ):
            said = " ".join(line.removeprefix("--").strip() for line in comment.splitlines())
            yield f"| `{name}` | {_cell(said)} |"


def headers() -> Iterator[str]:
    yield "# Headers\n\nOn every message that the relay sends: CloudEvents' Kafka binding in binary mode, and our own.\n"
    yield "| header | constant |\n|---|---|"
    for name, value in vars(message).items():
        if (
            name.isupper()
            and isinstance(value, str)
            and re.fullmatch(r"(ce_|tm_)\w+|content-type|traceparent", value)
        ):
            yield f"| `{value}` | `tallymark.message.{name}` |"


def metrics() -> Iterator[str]:
    yield "# Metrics\n\nIn Prometheus form, on `/metrics` of `--metrics-port` and of `tallymark serve`.\n"
    yield "| name | kind | labels | meaning |\n|---|---|---|---|"
    for each in ALL:
        yield f"| `{each.name}` | {each.kind} | {', '.join(each.labels)} | {_cell(each.help)} |"


def error_pages() -> Iterator[str]:
    yield "# Errors\n\nOne tree; each says what was wrong and what to do.\n"
    yield "| class | exit code | meaning |\n|---|---|---|"
    for each in vars(errors).values():
        if isinstance(each, type) and issubclass(each, errors.TallymarkError):
            yield f"| `{each.__name__}` | {each.exit_code} | {_cell((each.__doc__ or '').strip())} |"


def states() -> Iterator[str]:
    yield "# States\n\nEach is an enum in `tallymark.lifecycle`, and a CHECK constraint where it is a column.\n"
    for each in vars(lifecycle).values():
        if isinstance(each, type) and getattr(each, "__members__", None):
            yield f"\n## {each.__name__}\n\n{(each.__doc__ or '').strip()}\n\n| value | |\n|---|---|"
            for member in each:  # type: ignore[attr-defined]
                yield f"| `{member.value}` | {_cell(getattr(member, 'sentence', ''))} |"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
