"""`tallymark inbox run` as a workload: started, watched through its database, ended, and what it used."""

from __future__ import annotations

import json
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from bench.child import Child, Usage, measure_child, start_child
from bench.harness import Sample
from bench.ledger import Ledger, Span
from bench.relaychild import until
from tallymark.errors import Problem

_RUN = [sys.executable, "-m", "tallymark", "inbox", "run", "bench.inboxapp:inbox"]


@contextmanager
def running_inboxes(
    ledger: Ledger, bootstrap_servers: str, topic: str, processes: int = 1, **options: Any
) -> Iterator[list[Child]]:
    """Inboxes of one new consumer, ended with the block. `options` are those of inboxapp.py."""
    env = {
        "TALLYMARK_DATABASE": ledger.url,
        "TALLYMARK_BOOTSTRAP_SERVERS": bootstrap_servers,
        # A group of its own: nobody who left a moment ago is waited for.
        "BENCH_OPTIONS": json.dumps({"name": f"bench-{uuid.uuid4().hex[:8]}", "topics": [topic], **options}),
    }
    with ExitStack() as stack:
        yield [stack.enter_context(start_child(_RUN, env=env)) for _ in range(processes)]


def drained(
    ledger: Ledger,
    bootstrap_servers: str,
    topic: str,
    done: Callable[[], bool],
    **options: Any,
) -> tuple[Span, Usage]:
    """Let an inbox work until `done`; when it kept, and what it used."""
    ledger.reset()
    with running_inboxes(ledger, bootstrap_servers, topic, **options) as (child,):
        until(child, done, within=900, what="all is kept")
        span = ledger.span()  # before it is told to stop: giving a position up is a move as well
        child.stop()
        usage = child.finish(timeout=60)
    return span, usage


def ours(ledger: Ledger, bootstrap_servers: str, topic: str, count: int, **options: Any) -> Sample:
    """Keep `count` messages (and apply them, where it is inline)."""
    span, usage = drained(ledger, bootstrap_servers, topic, lambda: ledger.kept() >= count, **options)
    if options["mode"] == "inline" and ledger.applied() < count:
        raise Problem(f"{ledger.applied():,} of {count:,} messages were applied")
    return sample_of(span, usage.cpu_seconds, usage.peak_rss)


def by_hand(ledger: Ledger, bootstrap_servers: str, topic: str, count: int, workload: str) -> Sample:
    """The bare loop over the same log, into the same database."""
    ledger.reset()
    usage = measure_child(
        [sys.executable, "-m", "bench.bareinbox", workload, topic, str(count)],
        env={"BENCH_BOOTSTRAP": bootstrap_servers, "BENCH_DATABASE": ledger.url},
    )
    return sample_of(ledger.span("bare"), json.loads(usage.output)["cpu_seconds"], usage.peak_rss)


def sample_of(span: Span, cpu_seconds: float, peak_rss: int) -> Sample:
    return Sample(span.count, span.seconds, cpu_seconds, peak_rss)
