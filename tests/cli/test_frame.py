"""The frame around every verb: help, version, errors and exit codes, quick to start, quiet to stop."""

from __future__ import annotations

import importlib
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from tallymark import __version__
from tallymark.cli import verbs
from tallymark.cli.main import main
from tallymark.errors import AccessDenied, Inconsistent, TallymarkError, UsageError
from tests.cli.conftest import Run

# Verbs themselves are in the list: whatever one of them may come to need, --help does not wait for it.
HEAVY = (
    "pydantic",
    "confluent_kafka",
    "psycopg",
    "pyspark",
    "pandas",
    "prometheus_client",
    "psutil",
    "tallymark.cli.topics",
    "tallymark.cli.local",
)


def test_version_and_help(run: Run) -> None:
    assert run("--version").out == f"tallymark {__version__}\n"
    shown = run("--help")
    assert shown.code == 0
    for verb in verbs.present():
        assert f" {verb} " in shown.out


def test_help_imports_nothing_heavy(tmp_path: Path) -> None:
    code = (
        "import sys; from tallymark.cli.main import main; main(['--help']); "
        f"sys.exit(', '.join(set({HEAVY!r}) & set(sys.modules)) or 0)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stderr) == (0, "")


@pytest.mark.parametrize("verb", sorted(verbs.present()))
def test_every_verb_explains_itself(run: Run, verb: str) -> None:
    shown = run(verb, "--help")
    assert shown.code == 0
    assert f"tallymark {verb}" in shown.out
    assert "--install-completion" not in shown.out


def test_piped_tables_are_wide_unless_columns_are_given(tmp_path: Path) -> None:
    """For programs no line is folded; who sets COLUMNS reads along."""

    def widest(**more: str) -> int:
        environment = {k: v for k, v in os.environ.items() if k != "COLUMNS"} | more
        shown = subprocess.run(
            [sys.executable, "-m", "tallymark", "config"],
            capture_output=True,
            text=True,
            check=True,
            cwd=tmp_path,
            env=environment,
        )
        return max(len(line.rstrip()) for line in shown.stdout.splitlines())

    assert widest(COLUMNS="40") <= 40 < widest()
    assert widest(COLUMNS="0") == widest()


def test_no_arguments_show_the_help(run: Run) -> None:
    ran = run()
    assert (ran.code, "Commands" in ran.out + ran.err) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["confg"], "Did you mean `tallymark config`?"),
        (["config", "--jsn"], "--json"),
        (["--log-format", "xml", "config"], "--log-format"),
        (["--log-level", "loud", "config"], "'loud'"),
        (["--config", "absent.toml", "config"], "there is no file absent.toml"),
        (["topics"], "create"),
    ],
)
def test_wrong_usage_is_exit_2_in_few_words(run: Run, arguments: list[str], said: str) -> None:
    ran = run(*arguments)
    assert (ran.code, said in ran.out + ran.err) == (2, True), ran.err
    assert "Traceback" not in ran.err


def test_wrong_usage_with_json_is_json(run: Run) -> None:
    ran = run("config", "--nope", "--json")
    assert ran.code == 2
    assert set(ran.json) == {"error", "remedy"}
    assert ran.err == ""


def failing(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    app = typer.Typer(add_completion=False)

    @app.command()
    def config(json: bool = False) -> None:
        raise error

    monkeypatch.setattr(importlib.import_module("tallymark.cli.config"), "app", app)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UsageError("w", remedy="r"), 2),
        (AccessDenied("w", remedy="r"), 3),
        (Inconsistent("w", remedy="r"), 1),
    ],
)
def test_errors_are_two_lines_and_their_exit_code(
    run: Run, monkeypatch: pytest.MonkeyPatch, error: TallymarkError, code: int
) -> None:
    failing(monkeypatch, error)
    ran = run("config")
    assert (ran.code, ran.out, ran.err) == (code, "", "error: w\n  r\n")
    ran = run("config", "--json")
    assert (ran.code, ran.json, ran.err) == (code, {"error": "w", "remedy": "r"}, "")


def test_an_unexpected_error_is_one_line_unless_debugging(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    failing(monkeypatch, RuntimeError("lost postgresql://u:s3cretpw@h/d"))
    ran = run("config")
    assert ran.code == 1
    assert ran.err.startswith("error: unexpected RuntimeError: lost postgresql://u:********@h/d\n")
    assert "Traceback" not in ran.err
    monkeypatch.setenv("TALLYMARK_DEBUG", "1")
    ran = run("config")
    assert "Traceback" in ran.err
    assert "s3cretpw" not in ran.err


def test_interrupted_in_process(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    failing(monkeypatch, KeyboardInterrupt())
    ran = run("config")
    assert (ran.code, ran.out, ran.err) == (130, "", "")


def test_ctrl_c_is_quiet(tmp_path: Path) -> None:
    """A verb that waits (for a server that never answers) is interrupted as a terminal would."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        environ = {key: value for key, value in os.environ.items() if not key.startswith("TALLYMARK_")}
        child = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tallymark",
                "topics",
                "check",
                "--bootstrap-servers",
                f"127.0.0.1:{silent.getsockname()[1]}",
            ],
            cwd=tmp_path,
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        silent.settimeout(20)
        connection, _ = silent.accept()  # it is waiting now
        with connection:
            child.send_signal(signal.SIGINT)
            out, err = child.communicate(timeout=20)
    assert (child.returncode, out, err) == (130, "", "")


def test_a_reader_that_goes_away_is_no_error(tmp_path: Path) -> None:
    ran = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {sys.executable} -m tallymark config --json | true"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.stderr == ""


def test_a_missing_extra_says_what_to_install(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise ModuleNotFoundError("No module named 'confluent_kafka'", name="confluent_kafka")

    monkeypatch.setattr(verbs, "import_module", absent)
    ran = run("topics", "check")
    assert ran.code == 2
    assert "needs the package confluent_kafka" in ran.err
    assert "install Tallymark with its extra [all]" in ran.err


def test_completion_of_verbs(tmp_path: Path) -> None:
    environ = {
        **os.environ,
        "_TALLYMARK_COMPLETE": "complete_bash",
        "COMP_WORDS": "tallymark co",
        "COMP_CWORD": "1",
    }
    ran = subprocess.run(
        [str(Path(sys.executable).with_name("tallymark"))],
        cwd=tmp_path,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.stdout.split() == ["config"]


def in_bash(script: str, home: Path) -> str:
    """What a user's bash says, with `tallymark` on its path and a home of its own."""
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    ran = subprocess.run(
        ["bash", "-c", f"set -e; {script}; true"],
        cwd=home,
        env={**os.environ, "HOME": str(home), "PATH": programs},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    return ran.stdout


ASK = "COMP_WORDS=(tallymark local st) COMP_CWORD=2; _tallymark_completion tallymark; echo ${COMPREPLY[@]}"


def test_completion_that_is_shown_works_in_a_real_shell(tmp_path: Path) -> None:
    assert in_bash(f'eval "$(tallymark --show-completion)"; {ASK}', tmp_path) == "status\n"


def test_completion_that_is_installed_works_in_the_next_shell(tmp_path: Path) -> None:
    assert "completion installed" in in_bash("tallymark --install-completion", tmp_path)
    assert in_bash(f". ~/.bashrc; {ASK}", tmp_path) == "status\n"


def test_python_m_tallymark_is_tallymark(tmp_path: Path) -> None:
    assert in_bash("python -m tallymark --version", tmp_path) == f"tallymark {__version__}\n"
    assert in_bash("tallymark --version", tmp_path) == f"tallymark {__version__}\n"


def test_main_returns_and_never_exits() -> None:
    assert main(["--version"]) == 0


def test_json_error_is_one_document(run: Run) -> None:
    ran = run("topics", "check", "--json")
    assert ran.code == 2
    assert json.loads(ran.out)["error"] == "no Kafka is given"
