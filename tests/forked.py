"""`python -m MODULE ARGUMENTS…` in a process that is forked with other people's packages already imported.

A suite that kills real processes starts many hundreds of them, and half of what each one takes is the same imports. The
fork is the standard library's; nothing of ours is imported before it, because crash points are read at import. Where
packages are missing, the process imports what it needs, as ever.
"""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing
import os
import runpy
import sys
import tempfile
from collections.abc import Mapping, Sequence
from multiprocessing.context import ForkServerProcess
from types import ModuleType

_PACKAGES = [
    *(
        "asyncio",
        "confluent_kafka.admin",
        "fastapi",
        "prometheus_client",
        "psutil",
        "psycopg",
        "psycopg.types.json",
    ),
    *("pydantic", "rich.console", "rich.progress", "rich.table", "tomllib", "typer.main", "typer._adapters"),
    *("uuid_utils", "uvicorn"),
]

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(_PACKAGES)


def start(
    module: str, arguments: Sequence[str], environment: Mapping[str, str], cwd: str, output: str
) -> ForkServerProcess:
    """Start it in a process group of its own; what it says is appended to the file `output`."""
    process = _context.Process(
        target=_run, args=(module, list(arguments), dict(environment), cwd, output), daemon=True
    )
    # Without a main module to import first: that would be pytest's, or one that imports ours.
    main, sys.modules["__main__"] = sys.modules["__main__"], ModuleType("__main__")
    try:
        process.start()
    finally:
        sys.modules["__main__"] = main
    return process


def _run(
    module: str, arguments: Sequence[str], environment: Mapping[str, str], cwd: str, output: str
) -> None:
    os.setpgid(0, 0)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    target = os.open(output, os.O_WRONLY | os.O_APPEND)
    os.dup2(target, 1)
    os.dup2(target, 2)
    os.close(target)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(write_through=True)  # type: ignore[union-attr] # both are text files here
    tempfile.tempdir = None
    sys.argv = [module, *arguments]
    sys.path[0] = cwd
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    finally:
        # What an interpreter does at its end, and a forked process does not.
        with contextlib.suppress(Exception):
            atexit._run_exitfuncs()
