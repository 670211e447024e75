"""The wheel and the sdist hold what they should, and work outside the repository."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from collections.abc import Iterator, Sequence
from email.parser import Parser
from pathlib import Path

import pytest

from tallymark import __version__

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "tallymark"


def ran(command: Sequence[object], *, cwd: Path, within: float = 120, **environment: str) -> str:
    """Its output. What this run has set for itself is not handed on: outside there is nothing of the kind."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("TALLYMARK_")}
    done = subprocess.run(
        [str(each) for each in command],
        cwd=cwd,
        env={**clean, **environment},
        capture_output=True,
        text=True,
        timeout=within,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with both: the sdist made from the tree, the wheel from the sdist. Without a download."""
    folder = tmp_path_factory.mktemp("dist")
    ran([sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT], cwd=folder)
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    return next(built.glob("*.whl"))


@pytest.fixture
def outside() -> Iterator[Path]:
    """A folder outside the repository, open to PostgreSQL's user, as pytest's own would not be."""
    folder = Path(tempfile.mkdtemp(prefix="tallymark-outside-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def files_of_the_package() -> set[str]:
    found = (each for each in PACKAGE.rglob("*") if each.is_file() and "__pycache__" not in each.parts)
    return {str(each.relative_to(PACKAGE.parent)) for each in found}


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as opened:
        names = set(opened.namelist())
    about = {name for name in names if name.split("/")[0] == f"tallymark-{__version__}.dist-info"}
    assert names - about == files_of_the_package()
    assert {"tallymark/py.typed", "tallymark/testing.sql", "tallymark/lab/bank/report.sql"} <= names


def test_the_sdist_holds_what_its_tests_and_docs_need(built: Path) -> None:
    [sdist] = built.glob("*.tar.gz")
    with tarfile.open(sdist) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    for path in (
        "src/tallymark/lab/bank/bank.py",
        "examples/bank/bank.py",
        "tests/conftest.py",
        "docs/start.md",
    ):
        assert path in names
    assert {
        "Makefile",
        "constraints.txt",
        "mkdocs.yml",
        "LICENSE",
        "CHANGELOG.md",
        "bench/__init__.py",
    } <= names


def test_the_version_is_said_in_one_place(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as opened:
        told = Parser().parsestr(opened.read(f"tallymark-{__version__}.dist-info/METADATA").decode())
    assert (told["Name"], told["Version"], told["License-Expression"]) == (
        "tallymark",
        __version__,
        "Apache-2.0",
    )
    assert "version" not in [
        line.split(" ")[0] for line in (ROOT / "pyproject.toml").read_text().splitlines()
    ]


def test_the_wheel_runs_outside_the_repository(wheel: Path, outside: Path) -> None:
    """With the packages of this environment, and no other file of this repository than those of the wheel."""
    site = outside / "site"
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
        "--target",
        site,
        wheel,
    ]
    ran(pip, cwd=outside)
    python = [sys.executable, "-m", "tallymark"]
    assert ran([*python, "--version"], cwd=outside, PYTHONPATH=str(site)) == f"tallymark {__version__}\n"
    # All that a demo imports, and the files that it reads.
    code = "import tallymark.lab.demo as d, tallymark.lab.stage as s; print(d.__file__, s.REPORT_SQL.stat().st_size > 0)"
    told = ran([sys.executable, "-c", code], cwd=outside, PYTHONPATH=str(site))
    assert told == f"{site / 'tallymark' / 'lab' / 'demo.py'} True\n"


@pytest.mark.full
@pytest.mark.timeout(1500)
def test_a_fresh_environment_runs_the_demo_from_the_wheel(wheel: Path, outside: Path) -> None:
    venv.create(outside / "env", with_pip=True)
    programs = outside / "env" / "bin"
    constraints = ROOT / "constraints.txt"
    pip = [programs / "pip", "install", "--quiet", f"{wheel}[all]", "-c", constraints]
    ran(pip, cwd=outside, within=900, PYTHONPATH="")
    said = ran(
        [programs / "tallymark", "demo", "--calm", "--messages", "500", "--seed", "5", "--json"],
        cwd=outside,
        within=500,
        PYTHONPATH="",
        TMPDIR=str(outside),
    )
    told = json.loads(said.splitlines()[-1])
    assert (told["missing"], told["doubled"], told["balances_equal"]) == (0, 0, True)
    assert told["certificate"]["applied"] == {"ledger": 500, "report": 500}
