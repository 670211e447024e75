"""`tallymark pipeline submit`: a job by spark-submit, or the line that would do it."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from tallymark.cli import output
from tallymark.cli.sparkoptions import ConfOption, MasterOption
from tallymark.errors import UsageError


def submit(
    job: Annotated[
        list[str],
        typer.Argument(
            metavar="-- JOB [OPTIONS]…", help="ingest, archive, snapshot or replay, with its options."
        ),
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print the line.")] = False,
    master: MasterOption = "local[*]",
    deploy_mode: Annotated[
        str, typer.Option("--deploy-mode", help="Where the driver runs: client (here) or cluster.")
    ] = "client",
    environment: Annotated[
        Path | None,
        typer.Option("--environment", metavar="TAR", help="A packed Python environment for the executors."),
    ] = None,
    py_file: Annotated[
        list[Path] | None,
        typer.Option("--py-file", metavar="FILE", help="A module of yours (.py, .zip); may be repeated."),
    ] = None,
    file: Annotated[
        list[Path] | None,
        typer.Option(
            "--file", metavar="FILE", help="Found by its name where the driver runs; may be repeated."
        ),
    ] = None,
    conf: ConfOption = [],  # noqa: B006 - typer copies it
    as_json: output.JsonOption = False,
) -> None:
    """Jars, package, environment and settings travel with the job."""
    from tallymark.cli.pipelinerun import plan_of
    from tallymark.local.jars import cache_folder
    from tallymark.pipeline.submit import Submission, checked, packed, surroundings
    from tallymark.settings.layers import find_file

    arguments = checked(job)
    if deploy_mode not in ("client", "cluster"):
        raise UsageError(f"--deploy-mode {deploy_mode} is not known", remedy="use client or cluster")
    if environment is not None and not environment.is_file():
        raise UsageError(f"there is no file {environment}", remedy="pack one with venv-pack or conda-pack")
    if missing := [each for each in (*(py_file or ()), *(file or ())) if not each.is_file()]:
        raise UsageError(f"there is no file {missing[0]}", remedy="name one that is to travel with the job")
    plan = plan_of(f"tallymark {arguments[1]}", master, conf, report=not as_json)
    package, main = packed(cache_folder() / "submit")
    made = Submission(
        app=plan.app,
        master=master,
        deploy_mode=deploy_mode,
        jars=plan.jars,
        package=package,
        main=main,
        settings=plan.settings(),
        arguments=(*arguments, "--master", master),
        environment=environment,
        modules=tuple(py_file or ()),
        files=tuple(file or ()),
        settings_file=find_file(None, os.environ, Path.cwd()),
    )
    line = made.command()
    told = surroundings(plan.java_home)
    if dry_run:
        data = {"command": line, "environment": told}
        shown = " ".join(
            [*(f"{name}={shlex.quote(value)}" for name, value in told.items()), shlex.join(line)]
        )
        if as_json:
            output.emit(data, as_json=True, human=str)
        else:
            sys.stdout.write(shown + "\n")  # one line, to be copied
        return
    done = subprocess.run(line, env={**os.environ, **told}, check=False)
    raise typer.Exit(done.returncode)
