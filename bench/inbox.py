"""`bench inbox`: keeping and applying, against the same work by hand in one thread over the bare clients.

The inbox is `tallymark inbox run` in a process of its own. Both sides' rates count from the beginning of the first
batch's transaction to the last move of a position, read from their tables (ledger.py). CPU time of the inbox is that of
the whole process, its start included; of the loop by hand, the loop's alone.

Keeping is measured in deferred mode with the workers held off: one worker, and a handler that may be called once in
100 seconds. What is left of it is what counts: the message, its place in the queue and the position, in one transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

from bench.filled import fill
from bench.ground import fresh_database, fresh_topic
from bench.harness import Sample, interleave, rows_for
from bench.inboxchild import by_hand, ours
from bench.inboxcrowd import processes, slow_key
from bench.ledger import Ledger
from bench.registry import Context, benchmark
from bench.row import Row, at_least, at_most, row

NEAR = 50_000
KEEPING: dict[str, Any] = {"mode": "deferred", "handler": "each", "workers": 1, "max_rate": 0.01}


@benchmark("inbox", "keeping and applying, against the same work by hand")
def inbox(context: Context) -> Sequence[Row]:
    return [*_kept_and_applied(context), *processes(context), *slow_key(context), *_depth(context)]


def _kept_and_applied(context: Context) -> list[Row]:
    many, few, repetitions = (200_000, 30_000, 3) if context.quick else (1_000_000, 100_000, 5)
    servers = context.cluster.bootstrap_servers
    with ExitStack() as stack:
        topic = stack.enter_context(fresh_topic(context.cluster))
        short = stack.enter_context(fresh_topic(context.cluster))
        ledger = Ledger(stack.enter_context(fresh_database(context.cluster)))
        context.progress(f"filling topics with {many:,} and {few:,} messages")
        fill(servers, topic, many)
        fill(servers, short, few)

        def inline(handler: str, where: str, count: int) -> Callable[[], Sample]:
            return lambda: ours(ledger, servers, where, count, mode="inline", handler=handler)

        def hand(workload: str, where: str, count: int) -> Callable[[], Sample]:
            return lambda: by_hand(ledger, servers, where, count, workload)

        samples = interleave(
            {
                "keeping": lambda: ours(ledger, servers, topic, many, **KEEPING),
                "keeping by hand": hand("keep", topic, many),
                "batch handler": inline("batch", topic, many),
                "batch by hand": hand("batch", topic, many),
                "one statement each": inline("each", short, few),
                "each by hand": hand("each", short, few),
            },
            repetitions,
            warm_up=not context.quick,
            progress=context.progress,
        )
    return [
        *rows_for(
            "keeping (deferred), against by hand",
            samples["keeping"],
            samples["keeping by hand"],
            goal=at_least(0.8),
        ),
        *rows_for(
            "inline, one statement each, against by hand",
            samples["one statement each"],
            samples["each by hand"],
            goal=at_least(0.8),
        ),
        *rows_for(
            "inline, batch handler, against by hand",
            samples["batch handler"],
            samples["batch by hand"],
            goal=at_least(0.7),
        ),
    ]


def _depth(context: Context) -> list[Row]:
    """The same inbox with little and with much behind it."""
    deep, repetitions = (1_000_000, 3) if context.quick else (5_000_000, 5)
    servers = context.cluster.bootstrap_servers
    with ExitStack() as stack:
        near = stack.enter_context(fresh_topic(context.cluster))
        far = stack.enter_context(fresh_topic(context.cluster))
        ledger = Ledger(stack.enter_context(fresh_database(context.cluster)))
        context.progress(f"filling topics with {NEAR:,} and {deep:,} messages")
        fill(servers, near, NEAR)
        fill(servers, far, deep)

        def at(topic: str, limit: int) -> Callable[[], Sample]:
            return lambda: ours(ledger, servers, topic, limit, mode="inline", handler="batch")

        # Ten times as much is read of the deep one as is there with the other: enough for memory to show.
        samples = interleave(
            {"deep": at(far, 10 * NEAR), "near": at(near, NEAR)},
            repetitions,
            warm_up=not context.quick,
            progress=context.progress,
        )
    name = f"{deep:,} messages behind, against {NEAR:,}"
    deeply, nearly = samples["deep"], samples["near"]
    return [
        row(name, "messages/s", [one.rate for one in deeply], [one.rate for one in nearly]),
        row(
            f"{name}: peak memory",
            "MB",
            [one.peak_rss / 1e6 for one in deeply],
            [one.peak_rss / 1e6 for one in nearly],
            at_most(1.1),
        ),
    ]
