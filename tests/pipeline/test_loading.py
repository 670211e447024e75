"""What a task does when PostgreSQL lets it down: in words that the driver understands."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import psycopg
import pyarrow as pa
import pytest

from tallymark.errors import Problem, Unreachable
from tallymark.message import new_id
from tallymark.pipeline import failures
from tallymark.pipeline.loading import load_part
from tallymark.pipeline.runs import new_run
from tallymark.store.postgres.inboxstore import PostgresInboxStore
from tallymark.store.postgres.pipelinestore import PipelineStore
from tallymark.store.postgres.staged import StagingLost
from tests.inbox.ground import Ground

SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
        ("logged_ms", pa.int64()),
    ]
)


@pytest.fixture
def table(inbox_ground: Ground) -> Iterator[str]:
    """A staging table of a run."""
    inbox = PostgresInboxStore(inbox_ground.url, inbox_ground.name)
    store = PipelineStore(
        inbox_ground.url, lambda: inbox, schema="tallymark", consumer=inbox_ground.name, run=new_run()
    )
    store.begin("tests:1:x", [inbox_ground.topic], "local")
    yield store.stagings[0]
    store.end(None)
    inbox.close()


def batches(meanwhile: Callable[[], object]) -> Iterator[pa.RecordBatch]:
    """Two batches of rows, larger than what a client holds back; something happens between them."""
    for number in range(2):
        rows = [
            {
                "topic": "t",
                "partition": 0,
                "offset": number * 200 + offset,
                "key": b"k",
                "value": bytes(10_000),
                "headers": [{"key": "ce_id", "value": str(new_id()).encode()}],
                "logged_ms": 1,
            }
            for offset in range(200)
        ]
        yield pa.RecordBatch.from_pylist(rows, schema=SCHEMA)
        if number == 0:
            meanwhile()


def execute(url: str, statement: str) -> None:
    with psycopg.connect(url) as connection:
        connection.execute(statement.encode())


def end_session(url: str) -> None:
    with psycopg.connect(url) as connection:
        ended = connection.execute(
            "select pg_terminate_backend(pid, 5000) from pg_stat_activity"
            " where application_name = 'tallymark pipeline task' and datname = current_database()"
        )
        assert ended.fetchall() == [(True,)]


def test_a_session_that_is_ended_in_mid_load_is_a_database_that_is_away(
    inbox_ground: Ground, table: str
) -> None:
    """A restart, a failover: the driver tries again, for as long as its patience lasts."""
    url = inbox_ground.url
    with pytest.raises(Unreachable, match="PostgreSQL cannot be reached") as caught:
        list(load_part(url, table, batches(lambda: end_session(url))))
    # As the driver sees it: a line in the text of Spark's own error.
    kind = type(caught.value)
    text = (
        f"Traceback (most recent call last):\n{kind.__module__}.{kind.__qualname__}: {caught.value}\n\tat x.y"
    )
    assert isinstance(failures.explain(RuntimeError(text)), Unreachable)


def test_a_table_that_was_dropped_is_made_and_loaded_again(inbox_ground: Ground, table: str) -> None:
    """By a run that had the positions meanwhile."""
    execute(inbox_ground.url, f"drop table {table}")
    with pytest.raises(StagingLost):
        list(load_part(inbox_ground.url, table, batches(lambda: None)))


def test_what_is_wrong_with_the_rows_is_no_outage(inbox_ground: Ground, table: str) -> None:
    execute(inbox_ground.url, f"alter table {table} add check (partition > 0)")
    with pytest.raises(Problem, match=r"PostgreSQL says: .*check constraint"):
        list(load_part(inbox_ground.url, table, batches(lambda: None)))
