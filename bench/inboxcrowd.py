"""Many at once: four processes on twelve partitions against one, and one slow key among a thousand."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

from bench.filled import fill
from bench.ground import fresh_database, fresh_topic
from bench.harness import Sample, interleave
from bench.inboxchild import running_inboxes
from bench.ledger import SLOW, Ledger
from bench.registry import Context
from bench.relaychild import until
from bench.row import Row, at_least, row

PARTITIONS = 12
PROCESSES = 4


def processes(context: Context) -> list[Row]:
    """Inline, with a handler that waits 1 ms: how much more four processes do than one.

    All stand ready, each with its share of the partitions, before the messages come, in Kafka transactions of 10,000;
    the time runs from there to the last move of a position.
    """
    count, repetitions = (10_000, 3) if context.quick else (30_000, 5)
    servers = context.cluster.bootstrap_servers
    with fresh_database(context.cluster) as url:
        ledger = Ledger(url)

        def crowd(number: int) -> Callable[[], Sample]:
            def measure() -> Sample:
                ledger.reset()
                with (
                    fresh_topic(context.cluster, partitions=PARTITIONS) as topic,
                    running_inboxes(ledger, servers, topic, number, handler="wait") as children,
                ):
                    until(
                        children[0],
                        lambda: ledger.owned(PARTITIONS, number),
                        within=60,
                        what="all partitions are shared",
                    )
                    fill(servers, topic, count)
                    until(children[0], lambda: ledger.kept() >= count, within=600, what="all is applied")
                    span = ledger.span()
                    for child in children:
                        child.stop()
                    usages = [child.finish(timeout=60) for child in children]
                return Sample(
                    span.count,
                    span.seconds,
                    sum(usage.cpu_seconds for usage in usages),
                    max(usage.peak_rss for usage in usages),
                )

            return measure

        samples = interleave(
            {"four": crowd(PROCESSES), "one": crowd(1)},
            repetitions,
            warm_up=False,
            progress=context.progress,
        )
    return [
        row(
            f"{PROCESSES} processes against 1, a handler that waits 1 ms",
            "messages/s",
            [one.rate for one in samples["four"]],
            [one.rate for one in samples["one"]],
            at_least(3.5),
        )
    ]


def slow_key(context: Context) -> list[Row]:
    """Deferred, one statement each: the other 999 keys' rate where one key's messages take 0.2 s, and where none does."""
    count, repetitions = (50_000, 3) if context.quick else (150_000, 5)
    servers = context.cluster.bootstrap_servers
    with ExitStack() as stack:
        topic = stack.enter_context(fresh_topic(context.cluster))
        ledger = Ledger(stack.enter_context(fresh_database(context.cluster)))
        fill(servers, topic, count)
        others = count - count // 1_000

        def with_handler(handler: str) -> Callable[[], Sample]:
            def measure() -> Sample:
                ledger.reset()
                with running_inboxes(ledger, servers, topic, mode="deferred", handler=handler) as (child,):
                    until(
                        child,
                        lambda: ledger.applied(without=SLOW) >= others,
                        within=600,
                        what="all is applied",
                    )
                    child.stop()
                    usage = child.finish(timeout=60)
                span = ledger.span_applied(without=SLOW)
                return Sample(span.count, span.seconds, usage.cpu_seconds, usage.peak_rss)

            return measure

        samples = interleave(
            {"slow": with_handler("slow"), "even": with_handler("each")},
            repetitions,
            warm_up=False,
            progress=context.progress,
        )
    return [
        row(
            "deferred: the others beside one slow key, against none slow",
            "messages/s",
            [one.rate for one in samples["slow"]],
            [one.rate for one in samples["even"]],
            at_least(0.95),
        )
    ]
