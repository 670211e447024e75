"""`tallymark local up | down | status | env`: the embedded cluster, for development, tests and the demo."""

from __future__ import annotations

import shlex
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from tallymark.cli import connections, output
from tallymark.errors import EXIT_PROBLEM, Problem

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tallymark.local.cluster import LocalCluster
    from tallymark.local.status import ClusterStatus

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="Real Kafka brokers and a real PostgreSQL on this machine, in one folder.",
)

HomeOption = Annotated[
    Path | None,
    typer.Option("--home", metavar="DIR", help="Where the cluster lives. [TALLYMARK_HOME, else .tallymark]"),
]


@app.command()
def up(
    *,
    brokers: Annotated[
        int | None,
        typer.Option(min=1, max=9, help="How many; 3 unless made otherwise. 1 for small machines."),
    ] = None,
    postgres: Annotated[
        int | None,
        typer.Option(metavar="16|18", help="PostgreSQL's major version; 18 unless made otherwise."),
    ] = None,
    home: HomeOption = None,
    json: output.JsonOption = False,
) -> None:
    """Start what is not running, and return when it can be used. Running it again changes nothing."""
    from tallymark.local.cluster import LocalCluster

    cluster = LocalCluster(home, brokers=brokers, postgres=postgres)
    with _ended_like_ctrl_c(), _progress() as report:
        status = cluster.up(report)
    output.emit(status.to_dict(), as_json=json, human=lambda: [*_shown(status), *_next_step(home)])


@app.command()
def down(
    *,
    wipe: Annotated[bool, typer.Option("--wipe", help="Delete the cluster with all of its data.")] = False,
    home: HomeOption = None,
    json: output.JsonOption = False,
) -> None:
    """Stop everything gracefully. The data stays, unless --wipe."""
    cluster = _cluster(home)
    with _progress() as report:
        stopped = cluster.down(wipe=wipe, report=report)
    said = f"stopped {', '.join(stopped)}" if stopped else "nothing was running"
    output.emit(
        {"home": str(cluster.home.path), "stopped": stopped, "wiped": wipe},
        as_json=json,
        human=lambda: [said, f"wiped {cluster.home.path}"] if wipe else [said],
    )


@app.command()
def status(*, home: HomeOption = None, json: output.JsonOption = False) -> None:
    """Show every process and the state of the replicas. Exit code 1 when something is not as it should be."""
    cluster = _cluster(home)
    seen = cluster.status()
    output.emit(seen.to_dict(), as_json=json, human=lambda: _shown(seen))
    if not seen.healthy:
        raise typer.Exit(EXIT_PROBLEM)


@app.command()
def env(*, home: HomeOption = None, json: output.JsonOption = False) -> None:
    """Print export lines for a shell: eval "$(tallymark local env)". They hold the database's password."""
    cluster = _cluster(home)
    if not any(server.is_alive() for server in cluster.processes):
        raise Problem(
            f"no cluster is running in {cluster.home.path}", remedy="Start one with: tallymark local up"
        )
    variables = {"TALLYMARK_HOME": str(cluster.home.path)}
    if cluster.brokers:
        variables["TALLYMARK_BOOTSTRAP_SERVERS"] = cluster.bootstrap_servers
    if cluster.has_postgres:
        variables["TALLYMARK_DATABASE"] = cluster.database_url(connections.LOCAL_DATABASE)
    if json:
        output.emit(variables, as_json=True, human=str)
        return
    for name, value in variables.items():
        # Not through `emit`, which masks passwords: this verb exists to hand this one to a shell.
        sys.stdout.write(f"export {name}={shlex.quote(value)}\n")


def _cluster(home: Path | None) -> LocalCluster:
    from tallymark.local.cluster import LocalCluster

    return LocalCluster(home)


def _shown(status: ClusterStatus) -> list[RenderableType]:
    if not status.processes:
        return [f"no cluster was made in {status.home} yet: tallymark local up"]
    rows = [
        (
            process.name,
            process.state.value,
            process.pid,
            process.port,
            f"{process.rss_bytes / 1e6:.0f} MB" if process.pid else "",
            _duration(process.uptime_s) if process.pid else "",
        )
        for process in status.processes
    ]
    lines: list[RenderableType] = [output.table(("name", "state", "pid", "port", "memory", "up for"), rows)]
    if status.under_replicated is None:
        lines.append("no broker answers" if status.has_brokers else "no brokers in this cluster")
    else:
        lines.append(
            f"{status.brokers_seen} brokers serve; under-replicated partitions: {status.under_replicated}"
        )
    return lines


def _next_step(home: Path | None) -> list[str]:
    option = f" --home {shlex.quote(str(home))}" if home else ""
    return [f'for other programs: eval "$(tallymark local env{option})"']


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"


@contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """The step at hand: a moving line on a terminal, a line each elsewhere. On stderr, beside the result."""
    console = output.stderr()
    if not console.is_terminal:
        yield output.remark
        return
    with console.status("looking") as spinner:
        yield spinner.update


@contextmanager
def _ended_like_ctrl_c() -> Iterator[None]:
    """SIGTERM and a closed terminal end `up` as Ctrl-C does: what it started is stopped.

    One signal is enough: further ones must not interrupt the stopping.
    """
    signs = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def interrupt(_number: int, _frame: object) -> NoReturn:
        for sign in signs:
            signal.signal(sign, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = {sign: signal.signal(sign, interrupt) for sign in signs}
    try:
        yield
    finally:
        for sign, handler in before.items():
            signal.signal(sign, handler)
