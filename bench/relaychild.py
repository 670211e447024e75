"""`tallymark relay run` as a workload: started, watched through its database, ended, and what it used."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from bench.backlog import Backlog, Drained, now
from bench.child import Child, Usage, start_child
from bench.ground import delete_topic
from bench.harness import Sample
from tallymark.errors import Problem

if TYPE_CHECKING:
    from tallymark.local.cluster import LocalCluster

_LOOK_S = 0.1


@contextmanager
def running_relay(database: str, bootstrap_servers: str, **settings: object) -> Iterator[Child]:
    """A relay that is ended with the block. `settings` are those of [relay]."""
    env = {
        "TALLYMARK_DATABASE": database,
        "TALLYMARK_BOOTSTRAP_SERVERS": bootstrap_servers,
        **{f"TALLYMARK_RELAY__{name.upper()}": str(value) for name, value in settings.items()},
    }
    with start_child([sys.executable, "-m", "tallymark", "relay", "run"], env=env) as child:
        yield child


def until(child: Child, condition: Callable[[], bool], *, within: float, what: str) -> None:
    """Wait for a condition; a relay that ended meanwhile is an error with its last words."""
    deadline = time.monotonic() + within
    while not condition():
        if not child.alive:
            child.finish(timeout=5)
            raise Problem(f"the relay ended before {what}")
        if time.monotonic() > deadline:
            raise Problem(f"not within {within:g} s: {what}")
        time.sleep(_LOOK_S)


@contextmanager
def ready_relay(backlog: Backlog, cluster: LocalCluster, **settings: object) -> Iterator[Child]:
    """A relay that holds every lane and has sent each lane's first receipt."""
    with running_relay(backlog.url, cluster.bootstrap_servers, **settings) as child:
        until(child, backlog.owned, within=60, what="every lane is owned")
        yield child
        child.stop()
        child.finish(timeout=60)
    delete_topic(cluster, backlog.receipts_topic())


def drain(
    backlog: Backlog, cluster: LocalCluster, *, lanes: int, limit: int | None = None, **settings: object
) -> tuple[Drained, Usage, float]:
    """Let a relay work until `limit` messages (or all) are sent; its figures, its usage, and its start-up time."""
    backlog.rewind(lanes)
    goal = min(limit or backlog.count, backlog.count)
    began = now()
    with running_relay(backlog.url, cluster.bootstrap_servers, **settings) as child:
        until(child, lambda: backlog.sent() >= goal, within=600, what=f"{goal} messages are sent")
        child.stop()
        usage = child.finish(timeout=60)
    delete_topic(cluster, backlog.receipts_topic())
    drained = backlog.drained()
    return drained, usage, drained.first_claim - began


def sample_of(drained: Drained, usage: Usage, total: int) -> Sample:
    """The CPU time is the whole process's, its start included, spread over all messages."""
    cpu = usage.cpu_seconds * drained.count / max(1, total)
    return Sample(drained.count, drained.seconds, cpu, usage.peak_rss)
