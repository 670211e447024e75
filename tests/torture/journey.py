"""The torture of the consuming half, alone (`inbox`) or behind outbox and relay (`journey`): everything killed at random.

Afterwards: what the producers committed, what a read_committed reader of the log sees, and the effects in the consumer's
database must be the same messages, each once, in order within its key, and the sums right.
"""

from __future__ import annotations

import random
import shutil
import tempfile
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
from confluent_kafka.admin import AdminClient, NewTopic

from tallymark.lifecycle import Role
from tallymark.local.cluster import LocalCluster
from tallymark.store.postgres.migrations import migrate
from tests.torture import effects, ends, writers
from tests.torture.app import TABLES
from tests.torture.chaos import KILLS, Chaos
from tests.torture.effects import Effects
from tests.torture.fleet import BY_ITSELF, INBOX, RELAY, Fleet, crashed
from tests.torture.producers import Producing
from tests.torture.verdict import NAMED, Logged, compare
from tests.waiting import wait_for

_SETTLE_S = 240.0
_FAILED_STARTS = 20


@dataclass(frozen=True)
class JourneyPlan:
    """What to do, reproducible as far as the machine is."""

    seconds: float
    seed: int
    # Whether messages come through an outbox and relays, or from producers of Kafka's own.
    with_relay: bool
    mode: str = "inline"
    relays: int = 2
    inboxes: int = 3
    writers: int = 3
    spare: Collection[str] = ()


@dataclass
class JourneyResult:
    """What came of it."""

    plan: JourneyPlan
    blows: Counter[str]
    applied: Effects
    sent: dict[str, list[str]] = field(default_factory=dict)
    stuck: list[str] = field(default_factory=list)
    settled_s: float = 0.0
    folder: Path | None = None

    @property
    def kills(self) -> int:
        return sum(count for blow, count in self.blows.items() if blow in KILLS)

    @property
    def faults(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {name: list(names) for name, names in self.applied.faults.items()}
        for name, names in self.sent.items():
            found[name] = found.get(name, []) + names
        return {**found, **({"stuck": self.stuck} if self.stuck else {})}

    def as_json(self) -> dict[str, Any]:
        faults = self.faults
        return {
            "seed": self.plan.seed,
            "seconds": self.plan.seconds,
            "mode": self.plan.mode,
            "kills": self.kills,
            "messages": self.applied.messages,
            **{name: len(faults.get(name, [])) for name in ("missing", "doubled", "reordered", "phantoms")},
            "wrong_sums": len(faults.get("wrong_sums", [])),
            "stuck": len(self.stuck),
            "settled_seconds": round(self.settled_s, 1),
            "blows": dict(self.blows),
            "examples": {name: names[:NAMED] for name, names in faults.items()},
            "logs": str(self.folder) if self.folder else None,
        }


def torture_journey(
    cluster: LocalCluster, plan: JourneyPlan, say: Callable[[str], None] = lambda _text: None
) -> JourneyResult:
    """One run on this cluster, in databases and a topic of its own; all servers run when it returns."""
    name = f"journey_{plan.seed}_{uuid.uuid4().hex[:8]}"
    topic = name.replace("_", "-")
    folder = Path(tempfile.mkdtemp(prefix="tallymark-torture-"))
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
    bank, ledger = cluster.database_url(f"{name}_bank"), cluster.database_url(f"{name}_ledger")
    clean = False
    try:
        migrate(ledger, role=Role.CONSUMER)
        with psycopg.connect(ledger) as connection:
            connection.execute(TABLES.encode())
        migrate(bank, role=Role.PRODUCER, lanes=2)
        writers.prepare(bank)
        config = {"min.insync.replicas": "2"}
        admin.create_topics([NewTopic(topic, 6, 3, config=config)])[topic].result(30)
        result = _run(cluster, plan, bank, ledger, topic, folder, say)
        clean = not result.faults
        return result
    finally:
        for server in cluster.processes:
            if not server.is_alive():
                server.start()
        if clean:  # what went wrong stays to be looked at
            for database in (f"{name}_bank", f"{name}_ledger"):
                cluster.drop_database(database)
            admin.delete_topics([topic])
            admin.poll(1)
            if result.folder is None:
                shutil.rmtree(folder, ignore_errors=True)


def _run(
    cluster: LocalCluster,
    plan: JourneyPlan,
    bank: str,
    ledger: str,
    topic: str,
    folder: Path,
    say: Callable[[str], None],
) -> JourneyResult:
    servers = cluster.bootstrap_servers
    rng = random.Random(plan.seed)  # noqa: S311 - a seed that can be given again is the point
    shared = {"TALLYMARK_BOOTSTRAP_SERVERS": servers, "TALLYMARK_HOME": str(folder / "none")}
    consuming = {
        **shared,
        "TALLYMARK_DATABASE": ledger,
        "TORTURE_TOPIC": topic,
        "TORTURE_MODE": plan.mode,
        "TALLYMARK_INBOX__SESSION_TIMEOUT": "6s",
    }
    stop = threading.Event()
    team: list[writers.Writer | Producing]
    with ExitStack() as stack:
        fleets = [stack.enter_context(Fleet(INBOX, plan.inboxes, ledger, consuming, folder, rng))]
        if plan.with_relay:
            team = [writers.Writer(bank, topic, f"{plan.seed}-{n}", stop) for n in range(plan.writers)]
            relaying = {**shared, "TALLYMARK_DATABASE": bank}
            fleets.append(stack.enter_context(Fleet(RELAY, plan.relays, bank, relaying, folder, rng)))
        else:
            team = [Producing(servers, topic, f"{plan.seed}-{n}", stop) for n in range(plan.writers)]
        chaos = Chaos(cluster, fleets, lambda: effects.applied(ledger), plan.seed, spare=plan.spare, say=say)
        try:
            for thread in team:
                thread.start()
            chaos.run(plan.seconds)
        finally:
            chaos.put_back()
            stop.set()
            for thread in team:
                thread.join(90)
        for thread in team:
            if thread.failure is not None:
                raise thread.failure
        say("settling")
        began = time.monotonic()
        stuck, logged = _settle(plan, fleets, bank, ledger, servers, topic)
        settled_s = time.monotonic() - began
        for fleet in fleets:
            stuck += [f"{fleet.trade.name} ended with {code}" for code in fleet.retire() if code]
        blows = Counter(chaos.counts)
        for fleet in fleets:
            blows.update(fleet.counts)
    stuck += effects.stuck(ledger)
    sent = compare(ends.read_outbox(bank), logged).faults if plan.with_relay else {}
    applied = effects.judge(logged, *effects.read(ledger))
    kept = applied.faults or sent or stuck or crashed(blows)
    return JourneyResult(plan, blows, applied, sent, stuck, settled_s, folder if kept else None)


def _settle(
    plan: JourneyPlan, fleets: list[Fleet], bank: str, ledger: str, servers: str, topic: str
) -> tuple[list[str], list[Logged]]:
    """Until all that was committed is in the log, and all of the log applied; what never came to an end."""
    failures = sum(fleet.counts[BY_ITSELF] for fleet in fleets)

    def tended(condition: Callable[[], bool]) -> Callable[[], bool]:
        def look() -> bool:
            for fleet in fleets:
                fleet.tend(arm=False)
            if sum(fleet.counts[BY_ITSELF] for fleet in fleets) > failures + _FAILED_STARTS:
                raise AssertionError("\n".join(fleet.last_words for fleet in fleets))
            with suppress(psycopg.OperationalError):
                return condition()
            return False

        return look

    try:
        if plan.with_relay:
            wait_for(
                tended(lambda: not ends.unfinished(bank) or bool(ends.stuck(bank))),
                within=_SETTLE_S,
                what="all is sent",
            )
        logged = ends.read_log(servers, topic)
        wanted = {message.id for message in logged}
        wait_for(
            tended(lambda: wanted <= _ids(ledger) and not effects.unfinished(ledger)),
            within=_SETTLE_S,
            what="all of the log is applied",
        )
    except AssertionError as why:
        return [str(why)], ends.read_log(servers, topic)
    return (ends.stuck(bank) if plan.with_relay else []), logged


def _ids(ledger: str) -> set[str]:
    with psycopg.connect(ledger, connect_timeout=60) as connection:
        return {row[0] for row in connection.execute("select distinct message_id from effect").fetchall()}
