"""`bench api`: the query interface over tables of ten million messages (a million with --quick).

By id, a search's first page, and the stream of what was sent to a consumer against psycopg's own COPY of the same rows:
bytes against bytes, and rows in Python against rows in Python. The service is a process of its own, asked over HTTP.
"""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import httpx
import psutil
import psycopg

from bench.ground import fresh_database
from bench.harness import Sample, interleave, measure_here
from bench.ratio import percentile
from bench.registry import Context, benchmark
from bench.row import Row, at_least, at_most, row
from tallymark.console.client import Client
from tallymark.errors import Problem
from tallymark.lifecycle import Role, TokenRole
from tallymark.store.postgres.migrations import migrate
from tallymark.store.postgres.tokens import Tokens

_BATCH = 10_000
_FILL = """
insert into tallymark.outbox (id, topic, key, value, headers)
select tallymark.new_id(), case when n %% 50 = 0 then 'notes' else 'transfers' end,
       convert_to('account-' || (n %% 5000), 'utf8'),
       decode(md5(n::text) || md5((n + 1)::text) || md5((n + 2)::text) || md5((n + 3)::text), 'hex')
         || decode(md5((n + 4)::text) || md5((n + 5)::text) || md5((n + 6)::text) || md5((n + 7)::text), 'hex'),
       '{"ce_source":"/bank","ce_type":"transfer","content-type":"application/json"}'
  from generate_series(%(first)s::bigint, %(last)s::bigint) n
"""
_REST = """
insert into tallymark.batches (covered, lane, number, token, kind, after_position, upto, messages, mode, state, owner,
                               epoch, claimed_at, sent_at)
select b * %(size)s, 0, b, gen_random_uuid(), 'range', (b - 1) * %(size)s, b * %(size)s, %(size)s, 'transactional',
       'sent', 'relay', 1, now(), now()
  from generate_series(1, %(rows)s / %(size)s) b;
update tallymark.lanes set covered = %(rows)s, last_number = %(rows)s / %(size)s;
insert into tallymark.consumers (name, topics, mode) values ('ledger', '{transfers}', 'inline');
insert into tallymark.positions (consumer, topic, partition, next_offset) values ('ledger', 'transfers', 0, %(rows)s);
insert into tallymark.inbox (id, source, topic, partition, "offset", position, key, value, headers, logged_at, consumer)
select id, '/bank', topic, 0, position, position, key, value, headers, created_at, 'ledger' from tallymark.outbox;
insert into tallymark.applications (id, source, consumer, topic, partition, "offset", attempt, outcome)
select id, source, consumer, topic, partition, "offset", 1, 'applied' from tallymark.inbox order by position;
"""
_COPY = """copy (select position, id, topic, partition, created_at, key, value, headers from tallymark.outbox
                  where position <= {rows} and topic = 'transfers' order by position) to stdout (format binary)"""
_TYPES = ["int8", "uuid", "text", "int4", "timestamptz", "bytea", "bytea", "json"]
_PAGES: dict[str, dict[str, Any]] = {
    "no filter": {},
    "a topic": {"topic": "notes"},
    "a key": {"key": "account-77"},
    "a key that is rare": {"key": "nobody"},
    "a state": {"state": "pending"},
    "a time": {"from": "2020-01-01T00:00:00Z", "topic": "notes"},
}


@benchmark("api", "by id, a search's first page, and the stream against COPY, over ten million messages")
def api(context: Context) -> Sequence[Row]:
    rows = 1_000_000 if context.quick else 10_000_000
    asked, repetitions = (300, 3) if context.quick else (1_000, 5)
    streamed = 200_000 if context.quick else 2_000_000
    with fresh_database(context.cluster) as url:
        _fill(url, rows, context.progress)
        with _service(url) as (address, token, process):
            http = httpx.Client(base_url=address, headers={"Authorization": f"Bearer {token}"}, timeout=60)
            context.progress("by id")
            by_id = _times(http, [f"/v1/messages/{id_}" for id_ in _some_ids(url, rows, asked)])
            pages = {}
            for name, query in _PAGES.items():
                context.progress(f"a page by {name}")
                pages[name] = _times(http, ["/v1/messages"] * 20, query)
            before = process.memory_info().rss
            samples = interleave(
                {
                    "stream": lambda: measure_here(lambda: _bytes(http, streamed)),
                    "copy": lambda: measure_here(lambda: _copy_bytes(url, streamed)),
                    "client": lambda: measure_here(lambda: _client(address, token, streamed)),
                    "copy rows": lambda: measure_here(lambda: _copy_rows(url, streamed)),
                },
                repetitions,
                progress=context.progress,
            )
            grown = process.memory_info().rss - before
            idle = _at_rest(url)
    rates = {name: [_rate(one) for one in each] for name, each in samples.items()}
    return [
        _worst("by id, p99", by_id, 50.0),
        _worst("by id, p50", by_id, None, share=0.5),
        *(_worst(f"first page by {name}, p99", times, 300.0) for name, times in pages.items()),
        row("stream: bytes, against COPY's bytes", "rows/s", rates["stream"], rates["copy"], at_least(0.3)),
        row(
            "stream: the typed client, against COPY's rows",
            "rows/s",
            rates["client"],
            rates["copy rows"],
            at_least(0.3),
        ),
        row("memory that the service grew by", "MB", [grown / 1e6], goal=at_most(100, of_ratio=False)),
        row("statements in 5 s at rest", "", [idle], goal=at_most(0, of_ratio=False)),
    ]


def _worst(metric: str, seconds: Sequence[float], bound: float | None, *, share: float = 0.99) -> Row:
    figure = percentile(sorted(seconds), share) * 1000
    return row(metric, "ms", [figure], goal=None if bound is None else at_most(bound, of_ratio=False))


def _rate(sample: Sample) -> float:
    return sample.rate


def _fill(url: str, rows: int, progress: Callable[[str], None]) -> None:
    migrate(url, role=Role.BOTH, lanes=1)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("set synchronous_commit = off")
        piece = 500_000
        for first in range(1, rows + 1, piece):
            progress(f"filling the outbox: {first:,} of {rows:,}")
            connection.execute(_FILL, {"first": first, "last": min(first + piece - 1, rows)})
        progress("filling batches, inbox and applications")
        for statement in _REST.split(";\n")[:-1]:
            connection.execute(statement, {"rows": rows, "size": _BATCH})
        progress("vacuum analyze")
        connection.execute("vacuum analyze")


@contextmanager
def _service(url: str) -> Iterator[tuple[str, str, psutil.Process]]:
    token, _ = Tokens(url).create("bench", TokenRole.OPERATOR, who="bench")
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "tallymark", "serve", "--database", url, "--port", "0"],
            stdout=output,
            stderr=output,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        try:
            yield _address(process, output), token, psutil.Process(process.pid)
        finally:
            process.terminate()
            process.wait(30)


def _address(process: subprocess.Popen[bytes], output: Any) -> str:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        output.seek(0)
        if found := re.search(r"serving on (\S+)", output.read()):
            return f"http://{found.group(1)}"
        time.sleep(0.05)
    raise Problem("the service did not start")


def _some_ids(url: str, rows: int, count: int) -> list[str]:
    drawn = random.Random(8).sample(range(1, rows), count)
    with psycopg.connect(url) as connection:
        found = connection.execute(
            "select id::text from tallymark.outbox where position = any(%s)", [drawn]
        ).fetchall()
    return [row[0] for row in found]


def _times(http: httpx.Client, paths: Sequence[str], query: dict[str, Any] | None = None) -> list[float]:
    times = []
    for path in paths:
        began = time.perf_counter()
        answer = http.get(path, params=query)
        times.append(time.perf_counter() - began)
        if answer.status_code != 200:
            raise Problem(f"{path}: {answer.status_code}")
    return times


def _bytes(http: httpx.Client, rows: int) -> int:
    """The stream as bytes; counted by its lines."""
    lines = 0
    with http.stream(
        "GET",
        "/v1/consumers/ledger/messages",
        params={"to": rows + 1},
        headers={"Accept-Encoding": "identity"},
    ) as answer:
        for piece in answer.iter_raw():
            lines += piece.count(b"\n")
    return lines - 1


def _copy_bytes(url: str, rows: int) -> int:
    with psycopg.connect(url) as connection, connection.cursor() as cursor:
        size = 0
        with cursor.copy(_COPY.format(rows=rows)) as copy:
            for block in copy:
                size += len(block)
        return max(cursor.rowcount, 1)


def _client(address: str, token: str, rows: int) -> int:
    with Client(address, token, timeout_s=60) as client:
        return sum(1 for _ in client.sent_to("ledger", until=rows + 1))


def _copy_rows(url: str, rows: int) -> int:
    with (
        psycopg.connect(url) as connection,
        connection.cursor() as cursor,
        cursor.copy(_COPY.format(rows=rows)) as copy,
    ):
        copy.set_types(_TYPES)
        return sum(1 for _ in copy.rows())


def _at_rest(url: str) -> float:
    """Statements of the service while nobody asks it anything, for five seconds."""
    query = (
        "select count(*) from pg_stat_activity where application_name = 'tallymark serve' "
        "and datname = current_database() and query_start > now() - interval '5 s'"
    )
    time.sleep(6)
    with psycopg.connect(url) as connection:
        found = connection.execute(query).fetchone()
    return float(found[0]) if found else 0.0
