"""How the questions are answered: by indexes, whatever is asked. No table that grows is read from end to end."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from tallymark.store.postgres.tracing import Tracer
from tallymark.store.queries import load

# Small by nature: one row, one per lane, per consumer, per topic that is held.
SMALL = {"lanes", "outbox_identity", "topic_holds", "consumers", "relays", "outbox_position", "instances"}
NOBODY = uuid.UUID("01941f29-7c00-7000-8000-0123456789ab")
ANY = {"lanes": 1, "topic": None, "key": None, "since": None, "until": None, "state": None}
PAGE = {**ANY, "after": 1_000, "before": 3_000, "limit": 50}
SLICE = {
    "after": 1_000,
    "upto": 4_000,
    "topics": ["transfers"],
    "since": None,
    "until": None,
    "rows": 500,
    "bytes": 2**20,
    "payload": True,
    "lanes": 1,
    "covered": [5_000],
    "held_lanes": [0],
    "held_topics": ["notes"],
    "held_after": [100],
}
NONE_HELD: dict[str, list[Any]] = {"held_lanes": [], "held_topics": [], "held_after": []}
STATES = ["dead", "retrying"]
QUESTIONS: list[tuple[str, str, dict[str, Any]]] = [
    ("search.sql", "probe", {"position": 2_000}),
    ("search.sql", "page", PAGE),
    ("search.sql", "page", {**PAGE, "topic": "notes", "key": b"key-7", "state": "sent"}),
    ("search.sql", "parked_page", {**ANY, "states": ["failed"], "before": 2**62, "limit": 50}),
    ("search.sql", "sending", {}),
    (
        "search.sql",
        "batches",
        {"covered": 4_000, "lane_before": 1, "number": 2**60, "lane": None, "state": None, "limit": 50},
    ),
    ("search.sql", "parked_messages", {"after": 0, "states": ["failed"], "topic": None, "limit": 50}),
    ("search.sql", "payload", {"id": NOBODY}),
    ("search.sql", "kept_payload", {"id": NOBODY}),
    (
        "search.sql",
        "dead_letters",
        {"consumer": "ledger", "after": 2, "states": STATES, "topic": None, "limit": 50},
    ),
    ("search.sql", "parked_keys", {"consumer": "ledger", "after": -(2**63), "limit": 50}),
    ("search.sql", "audit_page", {"at": "2030-01-01", "seq": 0, "limit": 50}),
    ("streaming.sql", "slice", SLICE),
    ("streaming.sql", "slice", {**SLICE, **NONE_HELD, "payload": False}),
    ("streaming.sql", "standing", {}),
    ("tokens.sql", "bearer", {"hash": b"x" * 32}),
    ("audit.sql", "earlier", {"who": "x", "key": "y"}),
    ("tracing.sql", "written", {"id": NOBODY}),
    ("tracing.sql", "kept", {"id": NOBODY, "name": "x"}),
    ("tracing.sql", "deeds", {"name": "x"}),
    ("tracing.sql", "unfinished", {"id": NOBODY}),
    ("tracing.sql", "dead", {"id": NOBODY}),
]


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for inner in plan.get("Plans", []):
        yield from nodes(inner)


@pytest.mark.parametrize(
    ("file", "name", "parameters"),
    QUESTIONS,
    ids=[f"{file}-{name}-{at}" for at, (file, name, _) in enumerate(QUESTIONS)],
)
def test_no_table_that_grows_is_read_from_end_to_end(
    shared_database: str, file: str, name: str, parameters: dict[str, Any]
) -> None:
    query = load("tallymark.store.postgres", file, "tallymark")[name]
    with psycopg.connect(shared_database) as connection:
        # A table of a page or two is read as a whole by any planner: here it has to say how it would with more.
        connection.execute("set local enable_seqscan = off")
        row = connection.execute(f"explain (format json) {query}", parameters).fetchone()
        assert row is not None
        told = row[0] if isinstance(row[0], list) else json.loads(row[0])
    scans = [node for node in nodes(told[0]["Plan"]) if node["Node Type"] == "Seq Scan"]
    read = {node["Relation Name"] for node in scans}
    # Partitions that are empty may be read: there is nothing in them.
    with psycopg.connect(shared_database) as connection:
        full = {
            relation
            for relation in read - SMALL
            if connection.execute(f"select exists (select from tallymark.{relation})").fetchone() == (True,)
        }
    assert not full, f"{file} {name} reads {', '.join(sorted(full))}"


@pytest.mark.parametrize(("name", "index"), [("unfinished", "queue_id"), ("dead", "dead_letters_id")])
def test_one_message_is_looked_up_by_its_id(shared_database: str, name: str, index: str) -> None:
    """Another index, read from end to end, would be no sequential scan either."""
    query = load("tallymark.store.postgres", "tracing.sql", "tallymark")[name]
    with psycopg.connect(shared_database) as connection:
        connection.execute("set local enable_seqscan = off")
        row = connection.execute(f"explain (format json) {query}", {"id": NOBODY}).fetchone()
    assert row is not None
    scans = [node for node in nodes(row[0][0]["Plan"]) if "Index Name" in node]
    assert scans[0]["Index Name"] == index
    assert "(id = " in scans[0]["Index Cond"]
    # What stands before it in its queue is found by its key.
    behind = ["key_hash = " in node["Index Cond"] for node in scans[1:]]
    assert behind == ([True] if name == "unfinished" else []), scans[1:]


def test_the_trace_asks_what_was_looked_at_here() -> None:
    assert {"written", "kept", "deeds", "unfinished", "dead"} <= Tracer({"x": "postgresql://x"})._sql.keys()
