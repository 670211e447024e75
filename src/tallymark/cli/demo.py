"""`tallymark demo`: a message's way over real parts on this machine, told step by step.

Brings a cluster up in a folder of its own, creates the schema, sends one message through a real topic and
reads it back. Whatever happens (an error, Ctrl-C, SIGTERM), nothing is left running; after an error the
logs stay.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from tallymark.cli import output
from tallymark.errors import OutcomeUnknown, Problem

if TYPE_CHECKING:
    from tallymark.local.cluster import LocalCluster

app = typer.Typer(add_completion=False)

TOPIC = "demo-transfers"
KEY = b"alice"
VALUE = b'{"from": "alice", "to": "bob", "cents": 500}'
_PARTITIONS = 6
_PATIENCE_S = 30.0


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
    """Real brokers, a real database, one message all the way. Leaves nothing behind."""
    from tallymark.local.cluster import LocalCluster

    story = Story(quiet=json)
    folder = Path(tempfile.mkdtemp(prefix="tallymark-demo-"))
    folder.chmod(0o755)  # PostgreSQL does not run as root: its own user must get to its data
    cluster = LocalCluster(folder, brokers=brokers)
    with _terminated_like_interrupted(), _taken_down(cluster, folder, story):
        story.tell("start a cluster", lambda report: _start(cluster, report))
        story.tell("create the schema", lambda _report: _create_schema(cluster))
        story.tell("create a topic", lambda _report: _create_topic(cluster, copies=brokers))
        story.tell("send a message", lambda _report: _send(cluster))
        story.tell("read it back", lambda _report: _read_back(cluster))
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

    done = migrate(cluster.database_url("bank"))
    return f"schema {done.schema}, version {done.version_after}, in database bank"


def _create_topic(cluster: LocalCluster, *, copies: int) -> str:
    from tallymark.broker.reach import admin_client
    from tallymark.broker.topics import TopicSpec, create

    spec = TopicSpec(TOPIC, partitions=_PARTITIONS, replication_factor=copies)
    create(admin_client(_client(cluster)), spec)
    in_sync = spec.settings["min.insync.replicas"]
    return f"{TOPIC}: {_PARTITIONS} partitions, {copies} copies, at least {in_sync} of them in sync"


def _send(cluster: LocalCluster) -> str:
    """In a Kafka transaction: what `read it back` sees is committed."""
    from tallymark.broker import profiles
    from tallymark.broker.kafka import KafkaError, Message, Producer

    placed: list[tuple[int, int]] = []

    def acknowledged(error: KafkaError | None, message: Message) -> None:
        if error is None:
            placed.append((message.partition() or 0, message.offset() or 0))

    producer = Producer(profiles.transactional_producer(_client(cluster), transactional_id="demo"))
    producer.init_transactions(_PATIENCE_S)
    producer.begin_transaction()
    producer.produce(TOPIC, VALUE, KEY, on_delivery=acknowledged)
    producer.commit_transaction(_PATIENCE_S)
    if not placed:
        raise OutcomeUnknown("the message was not acknowledged", remedy="Run the demo again.")
    return "key {}, committed at partition {}, offset {}".format(KEY.decode(), *placed[0])


def _read_back(cluster: LocalCluster) -> str:
    from tallymark.broker import profiles
    from tallymark.broker.kafka import Consumer, TopicPartition

    consumer = Consumer(profiles.reader(_client(cluster)))
    try:
        consumer.assign([TopicPartition(TOPIC, partition, 0) for partition in range(_PARTITIONS)])
        deadline = time.monotonic() + _PATIENCE_S
        while time.monotonic() < deadline:
            message = consumer.poll(0.5)
            if message is not None and message.error() is None:
                if message.value() != VALUE:
                    raise Problem(f"read back something else: {message.value()!r}")
                return VALUE.decode()
    finally:
        consumer.close()
    raise Problem(f"the message did not come back within {_PATIENCE_S:g} s")


def _client(cluster: LocalCluster) -> dict[str, str]:
    return {"bootstrap.servers": cluster.bootstrap_servers}
