"""The spark-submit line: what travels with a job, and what does not."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from tallymark.cli.pipelinerun import plan_of
from tallymark.errors import UsageError
from tallymark.pipeline.session import SparkPlan
from tallymark.pipeline.submit import Submission, checked, packed


def submission(tmp_path: Path, environment: Path | None = None) -> Submission:
    plan = SparkPlan(
        "tallymark archive", "spark://h:7077", (Path("/j/a.jar"), Path("/j/b.jar")), conf={"x": "y z"}
    )
    return Submission(
        plan.app,
        plan.master,
        "client",
        plan.jars,
        tmp_path / "p.zip",
        tmp_path / "main.py",
        plan.settings(),
        checked(["archive", "--topic", "t"]),
        environment,
    )


def test_the_line(tmp_path: Path) -> None:
    line = submission(tmp_path).command()
    assert line[0].endswith("bin/spark-submit")
    assert line[1:5] == ["--master", "spark://h:7077", "--deploy-mode", "client"]
    assert line[line.index("--jars") + 1] == "/j/a.jar,/j/b.jar"
    assert line[-5:] == [str(tmp_path / "main.py"), "pipeline", "archive", "--topic", "t"]
    settings = {line[n + 1] for n, word in enumerate(line) if word == "--conf"}
    assert {"x=y z", "spark.speculation=false", "spark.sql.session.timeZone=UTC"} <= settings
    assert not [each for each in settings if each.startswith(("spark.master", "spark.jars"))]


def test_an_environment_travels_too(tmp_path: Path) -> None:
    line = submission(tmp_path, Path("/e/env.tar.gz")).command()
    assert line[line.index("--archives") + 1] == "/e/env.tar.gz#environment"
    assert "spark.pyspark.python=./environment/bin/python" in line
    # Here nothing is unpacked; in a cluster it is, for the driver too.
    assert f"spark.pyspark.driver.python={sys.executable}" in line
    elsewhere = replace(submission(tmp_path, Path("/e/env.tar.gz")), deploy_mode="cluster").command()
    assert "spark.pyspark.python=./environment/bin/python" in elsewhere
    assert not [each for each in elsewhere if each.startswith("spark.pyspark.driver.python")]


def test_what_the_user_names_travels_and_settings_where_the_driver_runs_elsewhere(tmp_path: Path) -> None:
    made = replace(
        submission(tmp_path),
        modules=(Path("/u/app.py"),),
        files=(Path("/u/effect.sql"),),
        settings_file=Path("/u/tallymark.toml"),
    )
    line = made.command()
    assert line[line.index("--py-files") + 1] == f"{made.package},/u/app.py"
    # Here the driver finds its settings by itself.
    assert line[line.index("--files") + 1] == "/u/effect.sql"
    line = replace(made, deploy_mode="cluster").command()
    assert line[line.index("--files") + 1] == "/u/effect.sql,/u/tallymark.toml"
    line = replace(made, deploy_mode="cluster", files=(), settings_file=Path("/etc/bank.toml")).command()
    assert line[line.index("--files") + 1] == "/etc/bank.toml#tallymark.toml"
    assert "--files" not in submission(tmp_path).command()


def test_which_python_executors_run() -> None:
    """What spark-submit says of it is in the driver's environment, and must stay."""
    told = {"PYSPARK_PYTHON": "./environment/bin/python"}
    assert SparkPlan("x", "spark://h:7077").python(told) == "./environment/bin/python"
    assert SparkPlan("x", "spark://h:7077").python({}) == sys.executable
    asked = SparkPlan("x", "spark://h:7077", conf={"spark.pyspark.python": "/opt/python"})
    assert asked.python(told) == "/opt/python"
    assert SparkPlan("x").python(told) == sys.executable


def test_a_submitted_driver_fetches_no_jars(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it runs there may be no way to them, and its JVM has them already."""
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    plan = plan_of("x", "yarn", ["a=b"])
    assert (plan.jars, plan.java_home, plan.jvm_options, plan.submitted) == ((), None, (), True)
    assert plan.settings()["a"] == "b"
    assert "spark.jars" not in plan.settings()


@pytest.mark.parametrize("words", [[], ["status"], ["archive", "--master", "x"], ["archive", "--master=x"]])
def test_what_is_no_job(words: list[str]) -> None:
    with pytest.raises(UsageError):
        checked(words)


def test_the_package_runs_from_its_zip(tmp_path: Path) -> None:
    package, main = packed(tmp_path)
    assert packed(tmp_path) == (package, main), "made once"
    with zipfile.ZipFile(package) as opened:
        assert "tallymark/store/postgres/inbox.sql" in opened.namelist()
    code = (
        f"import sys; sys.path.insert(0, {str(package)!r}); import tallymark; "
        "from tallymark.store.queries import load; "
        "assert '.zip' in tallymark.__file__; print(len(load('tallymark.store.postgres', 'inbox.sql', 'x')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) > 10
