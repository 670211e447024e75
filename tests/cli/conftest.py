"""One command line in this process, with a clean environment and an empty working directory."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tallymark.cli.main import main


@dataclass(frozen=True)
class Ran:
    """How a command line ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Run = Callable[..., Ran]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    for name in list(os.environ):
        if name.startswith("TALLYMARK_") and not name.startswith("TALLYMARK_TEST_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)

    def one(*arguments: str) -> Ran:
        capfd.readouterr()
        code = main(arguments)
        written = capfd.readouterr()
        return Ran(code, written.out, written.err)

    return one
