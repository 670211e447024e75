"""The relay's torture: writers and relays under a rain of kills, then everything settled and compared."""

from __future__ import annotations

import random
import shutil
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from confluent_kafka.admin import AdminClient, NewTopic

from tallymark.local.cluster import LocalCluster
from tallymark.store.postgres.migrations import migrate
from tests.torture import ends, writers
from tests.torture.chaos import KILLS, Chaos
from tests.torture.fleet import BY_ITSELF, RELAY, Fleet, crashed
from tests.torture.verdict import NAMED, Verdict, compare
from tests.waiting import wait_for

_SETTLE_S = 180.0
_FAILED_STARTS = 20


@dataclass(frozen=True)
class Plan:
    """What to do, reproducible as far as the machine is."""

    seconds: float
    seed: int
    relays: int = 3
    writers: int = 4
    lanes: int = 4
    spare: Collection[str] = ()


@dataclass(frozen=True)
class Result:
    """What came of it."""

    plan: Plan
    kills: int
    blows: dict[str, int]
    verdict: Verdict
    commits: dict[str, int]
    settled_s: float
    stuck: Sequence[str]
    ledger_faults: Sequence[str]
    folder: Path | None

    @property
    def faults(self) -> dict[str, list[str]]:
        more = {"stuck": list(self.stuck), "ledger_faults": list(self.ledger_faults)}
        return {**self.verdict.faults, **{name: found for name, found in more.items() if found}}

    def as_json(self) -> dict[str, Any]:
        v = self.verdict
        return {
            "seed": self.plan.seed,
            "seconds": self.plan.seconds,
            "kills": self.kills,
            "messages": v.messages,
            "missing": len(v.missing),
            "doubled": len(v.doubled),
            "reordered": len(v.reordered),
            "phantoms": len(v.phantoms),
            "altered": len(v.altered),
            "split_keys": len(v.split_keys),
            "stuck": len(self.stuck),
            "ledger_faults": len(self.ledger_faults) + len(v.misplaced),
            "settled_seconds": round(self.settled_s, 1),
            "blows": self.blows,
            "transactions": self.commits,
            "examples": {name: found[:NAMED] for name, found in self.faults.items()},
            "relay_logs": str(self.folder) if self.folder else None,
        }


def torture(cluster: LocalCluster, plan: Plan, say: Callable[[str], None] = lambda _text: None) -> Result:
    """One run on this cluster, in a database and a topic of its own; all servers run when it returns."""
    name = f"torture_{plan.seed}_{uuid.uuid4().hex[:8]}"
    topic = name.replace("_", "-")
    url = cluster.database_url(name)
    folder = Path(tempfile.mkdtemp(prefix="tallymark-torture-"))
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
    clean = False
    try:
        migrate(url, lanes=plan.lanes)
        writers.prepare(url)
        config = {"min.insync.replicas": "2"}
        admin.create_topics([NewTopic(topic, 6, 3, config=config)])[topic].result(30)
        result = _run(cluster, plan, url, topic, folder, say)
        clean = not result.faults
        return result
    finally:
        for server in cluster.processes:
            if not server.is_alive():
                server.start()
        if clean:  # what went wrong stays to be looked at
            receipts = _receipts_topic(url)
            cluster.drop_database(name)
            admin.delete_topics([topic, *receipts])
            admin.poll(1)
            if result.folder is None:
                shutil.rmtree(folder, ignore_errors=True)


def _run(
    cluster: LocalCluster, plan: Plan, url: str, topic: str, folder: Path, say: Callable[[str], None]
) -> Result:
    rng = random.Random(plan.seed)  # noqa: S311 - a seed that can be given again is the point
    environment = {
        "TALLYMARK_DATABASE": url,
        "TALLYMARK_BOOTSTRAP_SERVERS": cluster.bootstrap_servers,
        "TALLYMARK_HOME": str(folder / "none"),
    }
    stop = threading.Event()
    team = [writers.Writer(url, topic, f"{plan.seed}-{n}", stop) for n in range(plan.writers)]
    bystander = writers.Bystander(url, stop)
    with Fleet(RELAY, plan.relays, url, environment, folder, rng) as fleet:
        chaos = Chaos(cluster, [fleet], lambda: ends.sent(url), plan.seed, spare=plan.spare, say=say)
        try:
            for thread in (*team, bystander):
                thread.start()
            chaos.run(plan.seconds)
        finally:
            chaos.put_back()
            stop.set()
            for thread in (*team, bystander):
                thread.join(60)
        for writer in team:
            if writer.failure is not None:
                raise writer.failure
        say("settling")
        settled_s, unfinished = _settle(url, fleet)
        codes = fleet.retire()
        say(f"relays ended with {codes}")
    written = ends.read_outbox(url)
    say("reading the log")
    logged = ends.read_log(cluster.bootstrap_servers, topic)
    blows = {**chaos.counts, **fleet.counts}
    stuck = ends.stuck(url) + unfinished + [f"a relay ended with {code}" for code in codes if code]
    verdict = compare(written, logged)
    faults = _judge_ledger({row.id for row in written}, [writer.record for writer in team])
    records = [writer.record for writer in team]
    kept = verdict.faults or stuck or faults or crashed(blows)
    return Result(
        plan=plan,
        kills=sum(count for blow, count in blows.items() if blow in KILLS),
        blows=blows,
        verdict=verdict,
        commits={
            "committed": sum(len(record.committed) for record in records),
            "rolled_back": sum(len(record.rolled_back) for record in records),
            "savepoints_undone": sum(len(record.undone) for record in records),
            "unknown": sum(len(record.unknown) for record in records),
            "deadlocks": sum(record.deadlocks for record in records),
        },
        settled_s=settled_s,
        stuck=stuck,
        ledger_faults=faults,
        folder=folder if kept else None,
    )


def _settle(url: str, fleet: Fleet) -> tuple[float, list[str]]:
    """Until every committed row is in a marked batch; how long that took, and what never came to an end."""
    began, failures = time.monotonic(), fleet.counts[BY_ITSELF]

    def done() -> bool:
        fleet.tend(arm=False)
        if fleet.counts[BY_ITSELF] > failures + _FAILED_STARTS:
            raise AssertionError(f"relays do not start any more:\n{fleet.last_words}")
        with suppress(psycopg.OperationalError):
            return not ends.unfinished(url) or bool(ends.stuck(url))
        return False

    try:
        wait_for(done, within=_SETTLE_S, what="everything is sent and marked")
        left = ends.unfinished(url)
    except AssertionError as why:
        left = f"{why}: {ends.unfinished(url)}"
    return time.monotonic() - began, [left] if left else []


def _judge_ledger(present: set[str], records: Sequence[writers.Record]) -> list[str]:
    """The outbox against what its writers know: all of what committed, nothing of what did not, never a part."""
    found = []
    for record in records:
        found += [
            f"{id_} was committed, and is not there"
            for ids in record.committed
            for id_ in ids
            if id_ not in present
        ]
        found += [
            f"{id_} was rolled back, and is there"
            for ids in record.rolled_back + record.undone
            for id_ in ids
            if id_ in present
        ]
        for ids in record.unknown:
            there = sum(id_ in present for id_ in ids)
            if there not in (0, len(ids)):
                found.append(f"{there} of {len(ids)} messages of one transaction are there: {ids}")
    return found


def _receipts_topic(url: str) -> list[str]:
    with psycopg.connect(url) as connection:
        row = connection.execute("select outbox_id::text from tallymark.outbox_identity").fetchone()
    return [f"tallymark.receipts.{row[0]}"] if row else []
