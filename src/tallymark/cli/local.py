"""`tallymark local up | down | status | env | url | fetch`: the embedded cluster, for development, tests and the demo."""

from __future__ import annotations

import re
import shlex
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tallymark.cli import connections, output
from tallymark.cli.signals import interruptible
from tallymark.errors import EXIT_PROBLEM, Problem, UsageError

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
    jmx: Annotated[
        bool, typer.Option("--jmx", help="Brokers carry the Prometheus JMX agent, each on a port of its own.")
    ] = False,
    spark: Annotated[
        bool, typer.Option("--spark", help="A Spark master and two workers too, as processes of their own.")
    ] = False,
    home: HomeOption = None,
    json: output.JsonOption = False,
) -> None:
    """Start what is not running, and return when it can be used. Running it again changes nothing."""
    from tallymark.local.cluster import LocalCluster

    cluster = LocalCluster(home, brokers=brokers, postgres=postgres, jmx=jmx, spark=spark)
    with _stoppable(), _progress() as report:
        status = cluster.up(report)
    agents = cluster.agents.addresses()
    told = [f"the brokers' metrics: {', '.join(agents)}"] if agents else []
    told += [f"Spark: --master {cluster.spark.url}"] if cluster.spark.servers else []
    output.emit(
        {**status.to_dict(), "jmx": agents},
        as_json=json,
        human=lambda: [*_shown(status), *told, *_next_step(home)],
    )


@app.command()
def down(
    *,
    wipe: Annotated[bool, typer.Option("--wipe", help="Delete the cluster with all of its data.")] = False,
    home: HomeOption = None,
    json: output.JsonOption = False,
) -> None:
    """Stop everything gracefully. The data stays, unless --wipe."""
    cluster = _cluster(home)
    there = cluster.home.record_file.exists()
    with _progress() as report:
        stopped = cluster.down(wipe=wipe, report=report)
    wiped = wipe and there
    said = [f"stopped {', '.join(stopped)}" if stopped else "nothing was running"]
    if not there:
        said = [f"there is no cluster in {cluster.home.path}: nothing to stop, nothing to delete"]
    output.emit(
        {"home": str(cluster.home.path), "stopped": stopped, "wiped": wiped},
        as_json=json,
        human=lambda: [*said, f"wiped {cluster.home.path}"] if wiped else said,
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
def fetch(*, json: output.JsonOption = False) -> None:
    """Fetch all jars and prepare Java's archives now: later starts are quick, and need no network."""
    from tallymark.local.fetching import fetch as fetch_all

    with _stoppable(), _progress() as report:
        there = [str(path) for path in fetch_all(report)]
    output.emit({"there": there}, as_json=json, human=lambda: there)


@app.command()
def env(*, home: HomeOption = None, json: output.JsonOption = False) -> None:
    """Print export lines for a shell: eval "$(tallymark local env)". They hold the database's password."""
    from tallymark.local.spark import environment_of

    cluster = _cluster(home)
    _require_running(cluster)
    variables = {"TALLYMARK_HOME": str(cluster.home.path)}
    if cluster.brokers:
        variables["TALLYMARK_BOOTSTRAP_SERVERS"] = cluster.bootstrap_servers
    # Where databases were made under names of their own, verbs find those; a third, empty one would hide them.
    if cluster.has_postgres and not set(cluster.postgres.marked_databases()) - {connections.LOCAL_DATABASE}:
        variables["TALLYMARK_DATABASE"] = cluster.database_url(connections.LOCAL_DATABASE)
    variables |= environment_of(cluster.spark)
    if json:
        output.emit(variables, as_json=True, human=str)
        return
    if "TALLYMARK_DATABASE" not in variables:
        sys.stdout.write("unset TALLYMARK_DATABASE\n")  # as an earlier look may have set it
    for name, value in variables.items():
        # Not through `emit`, which masks passwords: this verb exists to hand this one to a shell.
        sys.stdout.write(f"export {name}={shlex.quote(value)}\n")


@app.command()
def url(
    database: Annotated[str, typer.Argument(metavar="DATABASE", help="Its name.")],
    *,
    home: HomeOption = None,
    json: output.JsonOption = False,
) -> None:
    """Print the URL of a database on the local server, for a program of your own. It holds the password."""
    if not re.fullmatch(r"[A-Za-z_][\w-]*", database):
        raise UsageError(f"{database!r} is no name of a database", remedy="letters, digits, _ and -")
    cluster = _cluster(home)
    _require_running(cluster)
    if not (cluster.has_postgres and cluster.postgres.is_alive()):
        raise Problem(f"no PostgreSQL is running in {cluster.home.path}", remedy="tallymark local status")
    if not cluster.postgres.has_database(database):
        there = ", ".join(cluster.postgres.marked_databases())
        raise Problem(
            f"there is no database {database} on the local server"
            + (f"; there are: {there}" if there else ""),
            remedy=f"tallymark init --database {database} makes it",
        )
    there = cluster.postgres.url(database)
    if json:
        output.emit({"url": there}, as_json=True, human=str)
        return
    # Not through `emit`, which masks passwords: as with `env`.
    sys.stdout.write(f"{there}\n")


def _require_running(cluster: LocalCluster) -> None:
    if not any(server.is_alive() for server in cluster.processes):
        raise Problem(
            f"no cluster is running in {cluster.home.path}", remedy="Start one with: tallymark local up"
        )


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
    from tallymark.local.shell import put_on_path

    option = f" --home {shlex.quote(str(home))}" if home else ""
    line = put_on_path()
    return [
        *([f"for your shell to find tallymark: {line}"] if line else []),
        *(
            [f"for other verbs to find it: export TALLYMARK_HOME={shlex.quote(str(home.absolute()))}"]
            if home
            else []
        ),
        f'for other programs: eval "$(tallymark local env{option})"',
        f"the URL of a database that `init` made: tallymark local url NAME{option}",
    ]


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


def _stoppable() -> AbstractContextManager[None]:
    """SIGTERM and a closed terminal end it as Ctrl-C does, and once told, nothing disturbs the stopping."""
    return interruptible(signal.SIGINT, signal.SIGTERM, signal.SIGHUP, once=True)
