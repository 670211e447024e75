"""The pages of the documentation, taken apart: blocks of code, and code within sentences."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md")))

_FENCE = re.compile(r"^```(\w*)\s*$")
_COMMENT = re.compile(r"^<!--\s*(.*?)\s*-->$")
_PYTHON = re.compile(r"(from|import|def|class|@)\b")
_SPAN = re.compile(r"(?<!`)`([^`]+)`(?!`)")


@dataclass(frozen=True)
class Code:
    """A piece of code, and where it stands. `note` is the HTML comment right above it, which a reader does not see."""

    page: Path
    line: int
    # What its fence says; "indented" without a fence; "span" within a sentence.
    kind: str
    text: str
    note: str = ""

    @property
    def is_python(self) -> bool:
        return self.kind == "python" or (self.kind == "indented" and bool(_PYTHON.match(self.text)))

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(page: Path) -> Iterator[Code]:
    return (each for each in _parts(page) if each.kind != "prose")


def spans(page: Path) -> Iterator[Code]:
    """Code within sentences and tables. One that goes over a line's end is one."""
    for prose in (each for each in _parts(page) if each.kind == "prose"):
        for found in _SPAN.finditer(prose.text):
            line = prose.line + prose.text[: found.start()].count("\n")
            yield Code(page, line, "span", " ".join(found[1].replace("\\|", "|").split()))


def _parts(page: Path) -> Iterator[Code]:
    """All of it, in order: blocks of code, and paragraphs (kind `prose`) between them."""
    kind, first, held, note = "prose", 1, list[str](), ""
    for number, line in enumerate([*page.read_text().splitlines(), ""], 1):
        fence = _FENCE.match(line)
        if kind not in ("prose", "indented"):  # in a fence: up to its end
            if fence:
                yield Code(page, first, kind, "\n".join(held) + "\n", note)
                kind, first, held, note = "prose", number + 1, [], ""
            else:
                held.append(line)
            continue
        indented = line.startswith("    ") and (kind == "indented" or not held)
        going_on = kind == "indented" and not line.strip()
        if held and (fence or not line.strip() or (indented != (kind == "indented"))) and not going_on:
            text = "\n".join(held).rstrip() + "\n"
            yield Code(page, first, kind, text, note)
            note = found[1] if (found := _COMMENT.match(text.strip())) else ""
            kind, held = "prose", []
        if fence:
            kind, first, held = fence[1] or "text", number + 1, []
        elif line.strip() or held:
            if not held:
                first, kind = number, "indented" if indented else "prose"
            held.append(line[4:] if kind == "indented" else line)
    if held:
        yield Code(page, first, kind, "\n".join(held).rstrip() + "\n", note)
