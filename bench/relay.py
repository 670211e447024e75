"""`bench relay`: draining an outbox, against the bare clients sending the same messages from memory.

The relay is `tallymark relay run` in a process of its own; its rate counts from the first batch's mark to the last's,
the bare clients' from the end of the first batch to the end of the last. CPU time of the relay is that of the whole
process, its start included. The bare clients' peak memory holds the messages.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack

from bench.backlog import Backlog
from bench.child import measure_child
from bench.ground import empty_topic, fresh_database, fresh_topic
from bench.harness import Sample, interleave, rows_for
from bench.registry import Context, benchmark
from bench.relaychild import drain, ready_relay, sample_of
from bench.row import Goal, Row, at_least, at_most, row
from tallymark.relay.config import RelayConfig

BATCH = RelayConfig().batch_messages
NEAR = 50_000
# As many lanes as one relay would hold where others stand by.
MANY_LANES = 4


@benchmark("relay", "draining an outbox, against the raw transactional and the raw idempotent client")
def relay(context: Context) -> Sequence[Row]:
    return [*_drains(context), *_depth(context), *_writers(context)]


def _drains(context: Context) -> list[Row]:
    count, repetitions = (200_000, 3) if context.quick else (1_000_000, 5)
    starts: list[float] = []

    with ExitStack() as stack:
        topic = stack.enter_context(fresh_topic(context.cluster))
        context.progress(f"filling an outbox with {count:,} rows")
        backlog = Backlog(stack.enter_context(fresh_database(context.cluster)), topic, count)

        def ours(lanes: int, mode: str) -> Callable[[], Sample]:
            def measure() -> Sample:
                drained, usage, start = drain(backlog, context.cluster, lanes=lanes, mode=mode)
                starts.append(start)
                empty_topic(context.cluster, topic)
                return sample_of(drained, usage, count)

            return measure

        samples = interleave(
            {
                "one lane": ours(1, "transactional"),
                "many lanes": ours(MANY_LANES, "transactional"),
                "raw transactional": lambda: _raw(context, "transactional", count),
                "raw alternating": lambda: _raw(context, "alternating", count),
                "callback": ours(1, "callback"),
                "raw idempotent": lambda: _raw(context, "idempotent", count),
            },
            repetitions,
            warm_up=not context.quick,
            progress=context.progress,
        )
    one, many = samples["one lane"], samples["many lanes"]
    raw, fastest = samples["raw transactional"], samples["raw idempotent"]
    return [
        *rows_for("transactional, 1 lane, against raw transactional", one, raw, goal=at_least(0.85)),
        _rate("transactional, 1 lane, against raw idempotent", one, fastest, at_least(0.6)),
        *rows_for(
            f"transactional, {MANY_LANES} lanes, against raw transactional", many, raw, goal=at_least(0.85)
        ),
        _rate(f"transactional, {MANY_LANES} lanes, against raw idempotent", many, fastest, at_least(0.6)),
        *rows_for("callback, 1 lane, against raw idempotent", samples["callback"], fastest),
        # What two ids in turn win in rate: theirs is mostly latency (bench latency).
        row(
            "raw transactional with two ids in turn, against one",
            "messages/s",
            [one.rate for one in samples["raw alternating"]],
            [one.rate for one in raw],
        ),
        row("from the process's start to its first claim", "s", starts),
    ]


def _depth(context: Context) -> list[Row]:
    """The same relay with little and with much behind it."""
    # A rate of less than a second is mostly noise: more of them.
    deep, repetitions = (1_000_000, 3) if context.quick else (5_000_000, 11)
    batch = NEAR // 25
    with ExitStack() as stack:
        topic = stack.enter_context(fresh_topic(context.cluster))
        context.progress(f"filling outboxes with {NEAR:,} and {deep:,} rows")
        near = Backlog(stack.enter_context(fresh_database(context.cluster)), topic, NEAR)
        far = Backlog(stack.enter_context(fresh_database(context.cluster)), topic, deep)

        def at(backlog: Backlog, limit: int) -> Callable[[], Sample]:
            def measure() -> Sample:
                _, usage, _ = drain(backlog, context.cluster, lanes=1, limit=limit, batch_messages=batch)
                empty_topic(context.cluster, topic)
                # The first transaction of each of the lane's two ids is a start, as long as ten others (a third of a
                # second) or not; and beside the near one's last batch nothing is left to be read.
                drained = backlog.drained(after=2, first=NEAR - batch)
                return sample_of(drained, usage, limit)

            return measure

        # The rate is that of as many messages on both sides. Of the deep one ten times as many are sent: enough for
        # memory to show.
        samples = interleave(
            {"deep": at(far, 10 * NEAR), "near": at(near, NEAR)},
            repetitions,
            warm_up=not context.quick,
            progress=context.progress,
        )
    name = f"{deep:,} rows behind, against {NEAR:,}"
    return [
        _rate(name, samples["deep"], samples["near"], at_least(0.9)),
        row(
            f"{name}: peak memory",
            "MB",
            [one.peak_rss / 1e6 for one in samples["deep"]],
            [one.peak_rss / 1e6 for one in samples["near"]],
            at_most(1.1),
        ),
    ]


def _writers(context: Context) -> list[Row]:
    """Sixteen writers with the relay on their outbox, against the relay doing the same work on a twin of it."""
    # Commits wait for a disk that the brokers share: single pairs lie a fifth to either side, so there are many.
    seconds, rows, repetitions = (5, 100_000, 3) if context.quick else (15, 300_000, 11)
    with ExitStack() as stack:
        topic = stack.enter_context(fresh_topic(context.cluster))
        context.progress("filling the twin outbox")
        own = Backlog(stack.enter_context(fresh_database(context.cluster)), topic, 1)
        twin = Backlog(stack.enter_context(fresh_database(context.cluster)), topic, rows)

        def crowd(beside: Backlog) -> Callable[[], Sample]:
            def measure() -> Sample:
                own.rewind(MANY_LANES, covered=own.last_position())
                twin.rewind(MANY_LANES)
                twin.set_sequence(0)
                with ready_relay(beside, context.cluster):
                    usage = measure_child(
                        [sys.executable, "-m", "bench.crowd", str(seconds), topic],
                        env={"BENCH_DATABASE": own.url, "BENCH_TWIN": twin.url},
                    )
                return _sample(usage.output, usage.peak_rss)

            return measure

        samples = interleave(
            {"own": crowd(own), "twin": crowd(twin)},
            repetitions,
            warm_up=not context.quick,
            progress=context.progress,
        )
    return [
        _rate(
            "16 writers beside their relay, against one on a twin outbox",
            samples["own"],
            samples["twin"],
            at_least(0.95),
            "transactions/s",
        )
    ]


def _raw(context: Context, workload: str, count: int) -> Sample:
    with fresh_topic(context.cluster) as topic:
        usage = measure_child(
            [sys.executable, "-m", "bench.published", workload, topic, str(count), str(BATCH)],
            env={"BENCH_BOOTSTRAP": context.cluster.bootstrap_servers},
        )
    return _sample(usage.output, usage.peak_rss)


def _sample(output: str, peak_rss: int) -> Sample:
    figures = json.loads(output)
    return Sample(figures["count"], figures["seconds"], figures["cpu_seconds"], peak_rss)


def _rate(
    metric: str, ours: Sequence[Sample], against: Sequence[Sample], goal: Goal, unit: str = "messages/s"
) -> Row:
    return row(metric, unit, [one.rate for one in ours], [one.rate for one in against], goal)
