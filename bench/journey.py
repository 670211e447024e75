"""`bench journey`: from the producer's database through Kafka to the consumer's, relay and inbox running at once.

Delay: from commit in the producer's database to the effect seen in the consumer's, at 1,000 messages a second, one
insert for each message. The yardstick is the bare loop from memory (begin, produce, commit; poll, insert, commit) at the
same rate, seen by the same watcher; and once more beside the same writers at work on an outbox that nobody reads. The
first second is left out.

Rate: a backlog sent, received and applied (a batch handler), everything at once. The yardstick is what the stages cost by
themselves: a relay alone, then an inbox alone over the same messages, each with the CPU seconds of its process, of all
brokers and of PostgreSQL; the cores that other work left to us, divided by the sum of the two costs per message.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from bench.arrivals import Arrivals
from bench.backlog import Backlog
from bench.child import start_child
from bench.ground import PARTITIONS, delete_topic, empty_topic, fresh_database, fresh_topic
from bench.inboxchild import running_inboxes
from bench.latency import RATE, Delay, delay_rows, paced, paced_beside_writers
from bench.ledger import Ledger
from bench.meter import Meter, Stretch
from bench.registry import Context, benchmark
from bench.relaychild import ready_relay, running_relay, until
from bench.row import Row, at_least, at_most, row
from tallymark.store.postgres.migrations import DEFAULT_LANES

# The outbox's messages are bytes to it: their handler is told that they are JSON.
APPLYING: dict[str, Any] = {"handler": "batch", "json": True}


@benchmark(
    "journey", "commit in one database to effect in the other, against the bare loop and the stages' cost"
)
def journey(context: Context) -> Sequence[Row]:
    return [*_delays(context), *_rates(context)]


def _delays(context: Context) -> list[Row]:
    seconds, repetitions = (6.0, 3) if context.quick else (15.0, 5)
    found: dict[str, list[Delay]] = {"ours": [], "bare": [], "bare beside writers": []}
    with fresh_database(context.cluster) as url:
        ledger = Ledger(url)
        for turn in range(1, repetitions + 1):
            for side, delays in found.items():
                context.progress(f"delay, {side}: {turn} of {repetitions}")
                delays.append(_delay(context, ledger, side, seconds))
    name = f"commit to effect, {RATE:,.0f}/s, against the bare loop"
    return [
        *delay_rows(name, found["ours"], found["bare"], at_most(2)),
        *delay_rows(f"{name} beside the same writers", found["ours"], found["bare beside writers"]),
    ]


def _delay(context: Context, ledger: Ledger, side: str, seconds: float) -> Delay:
    ledger.reset()
    servers = context.cluster.bootstrap_servers
    with fresh_topic(context.cluster) as topic, Arrivals(ledger.url) as arrivals:
        if side != "ours":
            environment = {"BENCH_BOOTSTRAP": servers, "BENCH_DATABASE": ledger.url}
            with start_child([sys.executable, "-m", "bench.following", topic], env=environment) as child:
                child.read_line()
                if side == "bare":
                    return arrivals.delay(paced("transactional", topic, seconds, servers))
                with _outbox(context, topic, 1, covered=1) as unread:
                    return arrivals.delay(paced_beside_writers(topic, seconds, servers, unread.url))
        with (
            _outbox(context, topic, 1, covered=1) as backlog,
            running_inboxes(ledger, servers, topic, handler="insert") as (child,),
            ready_relay(backlog, context.cluster),
        ):
            until(child, lambda: ledger.owned(PARTITIONS, 1), within=60, what="the inbox reads")
            return arrivals.delay(paced("writers", topic, seconds, servers, backlog.url))


@contextmanager
def _outbox(context: Context, topic: str, count: int, *, covered: int = 0) -> Iterator[Backlog]:
    with fresh_database(context.cluster) as url:
        backlog = Backlog(url, topic, count)
        backlog.rewind(DEFAULT_LANES, covered=covered)
        yield backlog


def _rates(context: Context) -> list[Row]:
    count, repetitions = (200_000, 3) if context.quick else (1_000_000, 5)
    together: list[Stretch] = []
    costs: list[float] = []
    with ExitStack() as stack:
        topic = stack.enter_context(fresh_topic(context.cluster))
        context.progress(f"filling an outbox with {count:,} rows")
        backlog = stack.enter_context(_outbox(context, topic, count))
        ledger = Ledger(stack.enter_context(fresh_database(context.cluster)))
        for turn in range(1, repetitions + 1):
            stages = []
            for stage in ("relay alone", "inbox alone", "together"):
                context.progress(f"rate, {stage}: {turn} of {repetitions}")
                if stage == "relay alone":
                    stages.append(_relay_alone(context, backlog))
                elif stage == "inbox alone":
                    stages.append(_inbox_alone(context, ledger, topic, count))
                    empty_topic(context.cluster, topic)
                else:
                    together.append(_together(context, backlog, ledger, topic))
                    empty_topic(context.cluster, topic)
            costs.append(sum(stage.cpu_seconds for stage in stages) / count)
    allowed = [one.cores / cost for one, cost in zip(together, costs, strict=True)]
    name = "database to database"
    return [
        row(
            f"{name}, against what its CPU cost allows",
            "messages/s",
            [count / one.seconds for one in together],
            allowed,
            at_least(0.8),
        ),
        row(
            f"{name}: CPU, against the stages' sum",
            "µs/message",
            [one.cpu_seconds / count * 1e6 for one in together],
            [cost * 1e6 for cost in costs],
        ),
        row(f"{name}: cores that others left", "cores", [one.cores for one in together]),
    ]


def _relay_alone(context: Context, backlog: Backlog) -> Stretch:
    return _metered_relay(context, backlog, lambda: backlog.sent() >= backlog.count)


def _metered_relay(context: Context, backlog: Backlog, done: Callable[[], bool]) -> Stretch:
    backlog.rewind(DEFAULT_LANES)
    backlog.set_sequence(0)  # as if nothing were written yet, until the relay stands ready
    with running_relay(backlog.url, context.cluster.bootstrap_servers) as child:
        until(child, backlog.owned, within=60, what="every lane is owned")
        meter = Meter(context.cluster)
        backlog.set_sequence(backlog.count)
        until(child, done, within=900, what=f"{backlog.count} messages have come through")
        stretch = meter.read()
        child.stop()
        child.finish(timeout=60)
    delete_topic(context.cluster, backlog.receipts_topic())
    return stretch


def _inbox_alone(context: Context, ledger: Ledger, topic: str, count: int) -> Stretch:
    ledger.reset()
    with running_inboxes(ledger, context.cluster.bootstrap_servers, topic, **APPLYING) as (child,):
        # From its first sign of life: it reads as soon as it has its partitions.
        until(child, lambda: ledger.owned(PARTITIONS, 1), within=60, what="the inbox reads")
        meter = Meter(context.cluster)
        before = ledger.kept()
        until(child, lambda: ledger.kept() >= count, within=900, what=f"{count} messages are kept")
        stretch = meter.read()
        share = count / max(1, count - before)
        return Stretch(stretch.seconds * share, stretch.cpu_seconds * share, stretch.cores)


def _together(context: Context, backlog: Backlog, ledger: Ledger, topic: str) -> Stretch:
    ledger.reset()
    with running_inboxes(ledger, context.cluster.bootstrap_servers, topic, **APPLYING) as (child,):
        until(child, lambda: ledger.owned(PARTITIONS, 1), within=60, what="the inbox reads")
        return _metered_relay(context, backlog, lambda: ledger.kept() >= backlog.count)
