"""`bench cluster`: the raw ceilings on the local cluster, the yardsticks for everything else.

Bare confluent-kafka and bare psycopg, each workload in a process of its own (raw.py). The peak memory of
the producers and of COPY in holds the payloads too, which are made before the clock starts.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import nullcontext

from bench.child import measure_child
from bench.ground import fresh_database, fresh_topic
from bench.harness import Sample, interleave, rows_for
from bench.registry import Context, benchmark
from bench.row import Row


@benchmark("cluster", "raw ceilings: idempotent and transactional produce, consume, COPY in and out")
def cluster(context: Context) -> Sequence[Row]:
    count, repetitions = (50_000, 3) if context.quick else (300_000, 5)
    with fresh_database(context.cluster) as database, fresh_topic(context.cluster) as filled:

        def sample(workload: str, topic: str | None = None) -> Sample:
            """One run of a workload; a producer gets a new topic, so that none meets another's data."""
            with nullcontext(topic) if topic is not None else fresh_topic(context.cluster) as used:
                return _sample(context, workload, used, count, database)

        context.progress("filling a topic to consume from")
        sample("transactional", filled)
        samples = interleave(
            {
                "idempotent": lambda: sample("idempotent"),
                "transactional": lambda: sample("transactional"),
                "consume": lambda: sample("consume", filled),
                "copy-in": lambda: sample("copy-in", ""),
                "copy-out": lambda: sample("copy-out", ""),
            },
            repetitions,
            progress=context.progress,
        )
    return [
        *rows_for("idempotent produce, callback each", samples["idempotent"]),
        *rows_for(
            "transactional produce (against idempotent)",
            samples["transactional"],
            samples["idempotent"],
        ),
        *rows_for("consume, read_committed", samples["consume"]),
        *rows_for("COPY in", samples["copy-in"], things="rows"),
        *rows_for("COPY out (against COPY in)", samples["copy-out"], samples["copy-in"], things="rows"),
    ]


def _sample(context: Context, workload: str, topic: str, count: int, database: str) -> Sample:
    usage = measure_child(
        [sys.executable, "-m", "bench.raw", workload, topic, str(count)],
        env={"BENCH_BOOTSTRAP": context.cluster.bootstrap_servers, "BENCH_DATABASE": database},
    )
    figures = json.loads(usage.output)
    return Sample(figures["count"], figures["seconds"], figures["cpu_seconds"], usage.peak_rss)
