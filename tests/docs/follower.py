"""Follows a page of the documentation as a reader would: writes its files, types its commands, in one folder.

A Python block that begins with `# name.py` is a file. `relay run` and `inbox run` get a terminal of their own and stay.
ID is the id that was printed last. A block with the note `not run` is passed over; one with the note `full` is for the
slow pass.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.children import Child, start_child
from tests.docs.pages import Code, blocks
from tests.waiting import wait_for

_NAME = re.compile(r"# (\w+\.py)\n")
_ID = re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}\b")
_STAYS = ("tallymark relay run", "tallymark inbox run")
_GETS_THERE = {"tallymark outbox show": "sent", "tallymark trace": "applied"}
_PATIENCE_S = 60.0


@dataclass
class Reader:
    folder: Path
    # Words of the page that must be others here: a topic's name, which the cluster shares.
    instead: Mapping[str, str]
    environment: dict[str, str]
    slow: bool = False
    id: str = ""
    said: dict[str, str] = field(default_factory=dict)
    terminals: list[Child] = field(default_factory=list)

    def follow(self, page: Path) -> None:
        for code in blocks(page):
            if code.note.startswith("not run") or (code.note == "full" and not self.slow):
                continue
            text = re.sub(r"\b\w+\b", lambda word: self.instead.get(word[0], word[0]), code.text)
            if code.is_python and (named := _NAME.match(text)):
                (self.folder / named[1]).write_text(text)
            elif code.kind == "sh":
                for line in _lines(text):
                    self._type(line, code)

    def _type(self, line: str, code: Code) -> None:
        line = re.sub(r"\bID\b", self.id, line)
        if line.startswith(_STAYS):
            arguments = ["-m", *shlex.split(line)]
            self.terminals.append(start_child(arguments, environment=self.environment, cwd=self.folder))
            return
        if line.startswith("export "):
            told = self._run(f"{line}; env -0", code)
            self.environment |= dict(each.split("=", 1) for each in told.split("\0") if "=" in each)
            return
        wanted = next((word for start, word in _GETS_THERE.items() if line.startswith(start)), "")
        told = wait_for(
            lambda: said if wanted in (said := self._run(line, code)) else "",
            within=_PATIENCE_S,
            what=f"{code}: {line} says {wanted}",
        )
        self.said[line] = told
        if line.startswith("python ") and (found := _ID.search(told)):
            self.id = found[0]

    def _run(self, line: str, code: Code) -> str:
        ran = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", line],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )
        assert ran.returncode == 0, f"{code}: {line}\n{ran.stdout}{ran.stderr}"
        return ran.stdout or " "

    def close(self) -> None:
        for terminal in self.terminals:
            terminal.terminate()
        for terminal in self.terminals:
            with terminal:
                assert terminal.wait() == 0, terminal.output


def _lines(text: str) -> Iterator[str]:
    for line in text.replace("\\\n", " ").splitlines():
        said = re.sub(r"\s+#\s.*", "", line.removeprefix("$ ")).strip()
        if said:
            yield said


def reader_environment(home: Path) -> dict[str, str]:
    """A shell in which the package is installed and the cluster is up, and nothing else is known."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TALLYMARK_")}
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**kept, "PATH": programs, "TALLYMARK_HOME": str(home)}
