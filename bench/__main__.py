"""python -m bench list | NAME [--quick] [--json] (NAME may be `all`)

Progress goes to stderr, the report to stdout. Exit 0: done and every goal met; 1: a goal was missed or a
workload failed; 2: wrong usage; 3: a dependency is not there.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from rich.console import Console

from bench.ground import open_cluster
from bench.machine import machine
from bench.registry import Benchmark, Context, find, load
from bench.report import Report
from tallymark.errors import EXIT_DONE, EXIT_PROBLEM, TallymarkError


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse, run, print; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure against a yardstick.")
    parser.add_argument("name", help="a benchmark, `all`, or `list`")
    parser.add_argument("--quick", action="store_true", help="fewer messages and repetitions")
    parser.add_argument("--json", action="store_true", help="the report as JSON, one object a benchmark")
    options = parser.parse_args(arguments)
    try:
        if options.name == "list":
            return _list(as_json=options.json)
        return _run(find(options.name), quick=options.quick, as_json=options.json)
    except TallymarkError as error:
        print(f"error: {error.sentence}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130


def _list(*, as_json: bool) -> int:
    known = load().values()
    if as_json:
        print(json.dumps([{"name": one.name, "summary": one.summary} for one in known]))
    else:
        for one in known:
            print(f"{one.name:12} {one.summary}")
    return EXIT_DONE


def _run(benchmarks: Sequence[Benchmark], *, quick: bool, as_json: bool) -> int:
    facts = machine()  # before the cluster starts: its load is not the machine's mood
    aside = Console(stderr=True)
    missed = 0
    with aside.status("starting the cluster") as status, open_cluster(status.update) as cluster:
        for one in benchmarks:

            def progress(text: str, name: str = one.name) -> None:
                status.update(f"bench {name}: {text}")

            report = Report(one.name, facts, one.run(Context(cluster, quick, progress)))
            missed += len(report.missed)
            if as_json:
                print(json.dumps(report.as_json()), flush=True)
            else:
                report.render(_console())
            status.update("stopping the cluster")
    return EXIT_PROBLEM if missed else EXIT_DONE


def _console() -> Console:
    """A file or a pipe has no width: wide enough that no figure is cut."""
    return Console() if sys.stdout.isatty() else Console(width=140)


if __name__ == "__main__":
    sys.exit(main())
