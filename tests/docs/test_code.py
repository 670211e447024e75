"""Every page: its command lines are understood by the real one, its Python compiles against the real package, and what
it names is there. The guides' Python runs."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

import tallymark
from tallymark import Inbox, Outbox
from tallymark.lifecycle import Role
from tallymark.store.postgres.migrations import migrate
from tests.docs.commandline import Wrong, check, command_lines
from tests.docs.pages import PAGES, ROOT, Code, blocks, spans

GUIDES = [ROOT / "docs" / "outbox.md", ROOT / "docs" / "inbox.md"]
PATH = re.compile(r"(?:tests|examples|docs|deploy|bench|src)/[\w./-]*")
METHODS = {
    name: getattr(each, name) for each in (Inbox, Outbox) for name in vars(each) if not name.startswith("_")
} | {"handler": Inbox.handler}


def by_name(page: Path) -> str:
    return str(page.relative_to(ROOT))


# Command lines


@pytest.mark.parametrize("page", PAGES, ids=by_name)
def test_every_command_line_is_understood(page: Path) -> None:
    wrong = []
    for code in (*blocks(page), *spans(page)):
        for line in command_lines(code):
            try:
                check(line, mention=code.kind == "span")
            except Wrong as error:
                wrong.append(f"{code}: {line}: {error}")
    assert wrong == []


def test_command_lines_are_found() -> None:
    found = [line for page in PAGES for code in (*blocks(page), *spans(page)) for line in command_lines(code)]
    assert len(found) > 150
    assert "tallymark inbox run app:inbox" in found
    assert "tallymark local url bank" in found


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("tallymark realy run", "there is no realy"),
        ("tallymark relay walk", "there is no walk"),
        ("tallymark relay run --databse bank", "--databse"),
        ("tallymark demo --messages many", "valid integer"),
        ("tallymark init --role chief", "chief"),
        ("tallymark topics accept TOPIC", "reason"),
        ("tallymark trace ID OTHER", "too much"),
    ],
)
def test_a_wrong_command_line_is_seen(line: str, said: str) -> None:
    with pytest.raises(Wrong, match=said):
        check(line)


# Names


@pytest.mark.parametrize("page", PAGES, ids=by_name)
def test_what_is_named_is_there(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    tests = {each.name for each in (ROOT / "tests").rglob("*.py")}
    missing = []
    for code in (*spans(page), *blocks(page)):
        missing += [f"{code}: {each}" for each in PATH.findall(code.text) if not (ROOT / each).exists()]
        missing += [
            f"{code}: {each}" for each in re.findall(r"\btest_\w+\.py", code.text) if each not in tests
        ]
        made = re.findall(r"(?:^|\$ )make ([a-z-]+)", code.text, re.MULTILINE)
        missing += [f"{code}: make {each}" for each in made if each not in targets]
        modules = re.findall(r"python -m ((?:bench|tests|tallymark)[\w.]*)", code.text)
        missing += [f"{code}: {each}" for each in modules if importlib.util.find_spec(each) is None]
    assert missing == []


# Python


def python_of(page: Path) -> Iterator[Code]:
    return (code for code in blocks(page) if code.is_python)


@pytest.mark.parametrize("page", PAGES, ids=by_name)
def test_python_compiles_and_calls_what_there_is(page: Path) -> None:
    wrong = []
    for code in python_of(page):
        wrong += [f"{code}: {each}" for each in problems(code.text)]
    for code in spans(page):
        if re.match(r"@?\w[\w.]*\(.*\)$", code.text):
            text = code.text.removeprefix("@").replace("…", "...")
            if _parses(text):
                wrong += [f"{code}: {each}" for each in problems(text)]
    assert wrong == []


def problems(text: str) -> Iterator[str]:
    """What does not compile, is imported and not there, or is given to something of ours that does not take it."""
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        yield f"{error.msg}, line {error.lineno}"
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "tallymark":
            module = importlib.import_module(node.module or "")
            for name in node.names:
                # A module that is not imported yet is no attribute of its package.
                below = f"{node.module}.{name.name}"
                if not hasattr(module, name.name) and importlib.util.find_spec(below) is None:
                    yield f"there is no {below}"
        elif isinstance(node, ast.Call) and (called := _ours(node.func)) is not None:
            takes = inspect.signature(called).parameters
            if not any(each.kind is inspect.Parameter.VAR_KEYWORD for each in takes.values()):
                given = {each.arg for each in node.keywords if each.arg}
                yield from (
                    f"{ast.unparse(node.func)} takes no {name}=" for name in sorted(given - set(takes))
                )


def _ours(function: ast.expr) -> Callable[..., Any] | None:
    if isinstance(function, ast.Name) and function.id in tallymark.__all__:
        found: Any = getattr(tallymark, function.id)
        return found if callable(found) else None
    if isinstance(function, ast.Attribute) and ast.unparse(function.value) in ("inbox", "outbox"):
        return METHODS.get(function.attr)
    return None


def _parses(text: str) -> bool:
    try:
        ast.parse(text, mode="eval")
    except SyntaxError:
        return False
    return True


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("from tallymark import Outbx", "there is no tallymark.Outbx"),
        ('Inbox("ledger", databse="ledger")', "takes no databse="),
        ('@inbox.handler("transfers", modle=T)\ndef f(m, tx): ...', "takes no modle="),
        ('outbox.add(tx, "t", …)', "invalid"),
    ],
)
def test_wrong_python_is_seen(text: str, said: str) -> None:
    assert said in " ".join(problems(text))


@pytest.mark.parametrize("page", GUIDES, ids=by_name)
def test_the_guides_run(
    page: Path, make_database: Callable[[], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each block by itself, with `tx`, `inbox` and `outbox` as the sentences around it have them; then its tests."""
    url = make_database()
    migrate(url, role=Role.BOTH)
    monkeypatch.chdir(tmp_path)
    with psycopg.connect(url) as tx:
        tx.execute("create table account (name text primary key, balance integer not null default 0)")
    ran = 0
    for code in blocks(page):
        if code.note.startswith("not run") or not (code.is_python or code.kind == "sql"):
            continue
        with psycopg.connect(url) as tx:
            if code.kind == "sql":
                tx.execute(code.text.encode())
            else:
                names: dict[str, Any] = {"Inbox": Inbox, "tx": tx, "outbox": Outbox("/bank")}
                names |= {"inbox": Inbox("ledger", database=url), "__name__": __name__}
                text = "\n" * (code.line - 1) + textwrap.dedent(code.text)
                exec(compile(text, str(page), "exec", dont_inherit=True), names)  # noqa: S102 - our own pages
                for name, each in names.items():
                    if name.startswith("test_"):
                        each(tx)
                        tx.rollback()
            tx.rollback()
        ran += 1
    assert ran >= 3
