"""A command that is suggested runs as it stands: by a path that the shell has, or gets first."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tallymark.local.shell import put_on_path

HERE = Path(sys.executable).parent


def test_what_is_on_the_path_needs_no_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{HERE}:/usr/bin:/bin")
    assert put_on_path() is None


@pytest.mark.parametrize("inside", [True, False])
def test_the_line_puts_this_one_on_the_path(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, inside: bool
) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.chdir(HERE.parent if inside else tmp_path)
    line = put_on_path()
    assert line is not None
    bash = shutil.which("bash") or "bash"
    found = subprocess.run(
        [bash, "-c", f"{line}; command -v tallymark"], capture_output=True, text=True, check=True
    )
    assert Path(found.stdout.strip()).samefile(HERE / "tallymark")
    if (HERE / "activate").exists():
        assert (str(HERE) in line) is not inside
