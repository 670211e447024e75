"""`tallymark demo`: a message's way over real parts on this machine, told step by step.

Brings a cluster up in a folder of its own, writes transfers and their messages in the same transactions, kills the
relay at the worst moment, lets another go on, and compares outbox and log by id. Whatever happens (an error,
Ctrl-C, SIGTERM), nothing is left running; after an error the logs stay.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, cast

import typer

from tallymark.cli import output
from tallymark.crashpoint import VARIABLE
from tallymark.errors import Problem
from tallymark.lifecycle import Role

if TYPE_CHECKING:
    from tallymark.broker.kafka import Message
    from tallymark.local.cluster import LocalCluster

app = typer.Typer(add_completion=False)

TOPIC = "demo-transfers"
TRANSFERS = 1000
# What one broker cannot keep: accepted by name, as anyone would have to.
SETTINGS_OF_ONE_BROKER = ("replication.factor", "min.insync.replicas")
_PARTITIONS = 6
_PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True)
class Step:
    """Something that was done, and what came of it."""

    name: str
    result: str
    seconds: float


@dataclass(slots=True)
class Story:
    """Tells each step when it is done; with `quiet` only remembers it."""

    quiet: bool
    steps: list[Step] = field(default_factory=list)

    def tell(self, name: str, work: Callable[[Callable[[str], None]], str]) -> None:
        """Do `work`, showing what it reports meanwhile, and tell its result."""
        started = time.monotonic()
        with output.stderr().status(name) as status:
            result = work(lambda doing: status.update(f"{name}: {doing}"))
        step = Step(name, result, round(time.monotonic() - started, 1))
        self.steps.append(step)
        if not self.quiet:
            output.stdout().print(f"[green]✓[/] {name:<24} {result} [dim]({step.seconds:g} s)[/]")


@app.command()
def demo(
    *,
    brokers: Annotated[int, typer.Option(min=1, max=3, help="1 on a small machine.")] = 3,
    json: output.JsonOption = False,
) -> None:
    """Real brokers, a real database, a relay killed at the worst moment: none lost, none twice. Leaves nothing behind."""
    from tallymark.local.cluster import LocalCluster

    story = Story(quiet=json)
    folder = Path(tempfile.mkdtemp(prefix="tallymark-demo-"))
    folder.chmod(0o755)  # PostgreSQL does not run as root: its own user must get to its data
    cluster = LocalCluster(folder, brokers=brokers)
    with _terminated_like_interrupted(), _taken_down(cluster, folder, story):
        story.tell("start a cluster", lambda report: _start(cluster, report))
        story.tell("create the schema", lambda _report: _create_schema(cluster))
        story.tell("create a topic", lambda _report: _create_topic(cluster, copies=brokers))
        story.tell("transfer money", lambda _report: _transfer(cluster))
        story.tell("relay, and kill it", lambda _report: _relay_killed(cluster))
        story.tell("relay again", lambda _report: _relay_again(cluster))
        story.tell("compare by id", lambda _report: _compare(cluster))
    output.emit({"steps": story.steps}, as_json=json, human=lambda: "Nothing is left running.")


@contextlib.contextmanager
def _terminated_like_interrupted() -> Iterator[None]:
    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def _taken_down(cluster: LocalCluster, folder: Path, story: Story) -> Iterator[None]:
    failed = False
    try:
        yield
    except Exception:
        failed = True
        raise
    finally:
        # A second Ctrl-C must not leave brokers behind.
        impatient = [
            (number, signal.signal(number, signal.SIG_IGN)) for number in (signal.SIGINT, signal.SIGTERM)
        ]
        try:
            story.tell("take everything down", lambda report: _stop(cluster, report, wipe=not failed))
            if failed:
                output.remark(f"The logs are kept in {folder}.")
            else:
                shutil.rmtree(folder, ignore_errors=True)
        finally:
            for number, handler in impatient:
                signal.signal(number, handler)


def _start(cluster: LocalCluster, report: Callable[[str], None]) -> str:
    status = cluster.up(report)
    megabytes = sum(process.rss_bytes or 0 for process in status.processes) / 1e6
    names = ", ".join(process.name for process in status.processes)
    return f"{names}: {megabytes:,.0f} MB"


def _stop(cluster: LocalCluster, report: Callable[[str], None], *, wipe: bool) -> str:
    stopped = cluster.down(wipe=wipe, report=report)
    return f"stopped {', '.join(stopped)}" if stopped else "nothing was running"


def _create_schema(cluster: LocalCluster) -> str:
    from tallymark.store.postgres.migrations import migrate

    done = migrate(cluster.database_url("bank"), role=Role.PRODUCER, lanes=1)
    return f"schema {done.schema}, version {done.version_after}, in database bank"


def _create_topic(cluster: LocalCluster, *, copies: int) -> str:
    from tallymark.broker.reach import admin_client
    from tallymark.broker.topics import TopicSpec, create

    spec = TopicSpec(TOPIC, partitions=_PARTITIONS, replication_factor=copies)
    create(admin_client(_client(cluster)), spec)
    in_sync = spec.settings["min.insync.replicas"]
    return f"{TOPIC}: {_PARTITIONS} partitions, {copies} copies, at least {in_sync} of them in sync"


def _transfer(cluster: LocalCluster) -> str:
    """Business rows and messages in the same transactions; one in ten rolls back, and its message with it."""
    import psycopg

    from tallymark import Outbox

    outbox = Outbox("/bank")
    with psycopg.connect(cluster.database_url("bank"), autocommit=True) as bank:
        bank.execute("create table transfer (number integer primary key, payer text, cents integer)")
        for number in range(TRANSFERS):
            payer = f"account-{number % 7}"
            with bank.transaction():
                bank.execute("insert into transfer values (%s, %s, %s)", [number, payer, 100 + number])
                outbox.add(bank, TOPIC, {"number": number, "payer": payer, "cents": 100 + number}, key=payer)
                if number % 10 == 9:
                    raise psycopg.Rollback
    return f"{TRANSFERS} transactions, {TRANSFERS // 10} of them rolled back"


def _relay_killed(cluster: LocalCluster) -> str:
    """The worst moment: the messages are in the log, and the database does not know it."""
    relay = _relay(cluster, crash_point="relay.after_kafka_commit:2")
    try:
        code = relay.wait(_PATIENCE_S)
    finally:
        relay.kill()
    if code != -signal.SIGKILL:
        raise Problem(f"the relay was to be killed and ended by itself, with exit code {code}")
    return "killed with -9 after Kafka's commit, before it was marked: in doubt"


def _relay_again(cluster: LocalCluster) -> str:
    """The next relay finds out from the receipt; it does not send again."""
    from tallymark.store.postgres.operators import Operators

    operators = Operators(cluster.database_url("bank"))
    relay = _relay(cluster)
    try:
        deadline = time.monotonic() + _PATIENCE_S
        while time.monotonic() < deadline:
            status = operators.status()
            if not status.backlog and not any(lane.sending_for_s for lane in status.lanes):
                return (
                    f"{sum(lane.in_doubt_resolved for lane in status.lanes)} batch resolved from its receipt"
                )
            time.sleep(0.1)
    finally:
        relay.terminate()
        relay.wait(_PATIENCE_S)
    raise Problem("the relay did not send everything in time")


def _compare(cluster: LocalCluster) -> str:
    """Outbox and log by id, with plain SQL and a plain consumer."""
    import psycopg

    with psycopg.connect(cluster.database_url("bank")) as bank:
        written = [str(row[0]) for row in bank.execute("select id from tallymark.outbox")]
        transfers = bank.execute("select count(*) from transfer").fetchone()
    logged = _ids_in_the_log(cluster)
    missing, twice = len(set(written) - set(logged)), len(logged) - len(set(logged))
    told = (
        f"{transfers[0] if transfers else 0} transfers = {len(written)} in the outbox = {len(logged)} in the log, "
        f"{missing} missing, {twice} twice"
    )
    if missing or twice or not transfers or len(written) != transfers[0] or set(logged) - set(written):
        raise Problem(f"outbox and log differ: {told}")
    return told


def _ids_in_the_log(cluster: LocalCluster) -> list[str]:
    from tallymark.broker import profiles
    from tallymark.broker.kafka import Consumer, KafkaError, TopicPartition

    consumer = Consumer(profiles.reader(_client(cluster)))
    ids: list[str] = []
    ended: set[int] = set()
    try:
        consumer.assign([TopicPartition(TOPIC, partition, 0) for partition in range(_PARTITIONS)])
        deadline = time.monotonic() + _PATIENCE_S
        while len(ended) < _PARTITIONS and time.monotonic() < deadline:
            message = consumer.poll(0.5)
            error = message.error() if message is not None else None
            if message is None or (error and error.code() != KafkaError._PARTITION_EOF):
                continue
            if error:
                ended.add(message.partition() or 0)
            else:
                ids += [value.decode() for value in _header(message, "ce_id")]
    finally:
        consumer.close()
    if len(ended) < _PARTITIONS:
        raise Problem(f"the topic could not be read to its end within {_PATIENCE_S:g} s")
    return ids


def _header(message: Message, wanted: str) -> list[bytes]:
    # The client's types know of a dictionary too, which it never gives.
    return [
        bytes(value)
        for name, value in cast("list[tuple[str, bytes]]", message.headers() or [])
        if name == wanted
    ]


def _relay(cluster: LocalCluster, crash_point: str = "") -> subprocess.Popen[bytes]:
    """A relay as a process of its own, as anyone would run it."""
    return subprocess.Popen(
        [sys.executable, "-m", "tallymark", "relay", "run"],
        env={
            **os.environ,
            "TALLYMARK_BOOTSTRAP_SERVERS": cluster.bootstrap_servers,
            "TALLYMARK_DATABASE": cluster.database_url("bank"),
            "TALLYMARK_RELAY__LEASE_SECONDS": "2",
            "TALLYMARK_RELAY__ACCEPT_RISK": ""
            if len(cluster.brokers) > 1
            else ",".join(SETTINGS_OF_ONE_BROKER),
            VARIABLE: crash_point,
        },
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def _client(cluster: LocalCluster) -> dict[str, str]:
    return {"bootstrap.servers": cluster.bootstrap_servers}
