"""What was parked on SQLite is never sent by the back door: it is known for as long as the outbox has its row."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from tallymark import MessageState
from tallymark.relay.ports import Batch, Exclusion, Hold, Lane, RelayStore
from tallymark.store.sqlite.retention import SqliteRetention
from tallymark.store.stores import message_status
from tests.store.conftest import Ground, next_batch, sqlite

HOUR = timedelta(hours=1)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "outbox.db"


@pytest.fixture
def ground(path: Path) -> Iterator[Ground]:
    made = sqlite(path)
    yield made
    made.close()


def held(lane: Lane, store: RelayStore, batch: Batch) -> Callable[[], list[int]]:
    """Its topic goes, and the batch is marked without it: what the catch-up would send."""
    batch = store.exclude(lane, batch, Exclusion(topics={"t": "there is no such topic"}))
    lane = store.advance(lane, mark=batch)
    (hold,) = store.holds(lane)
    return lambda: caught_up(store, lane, hold)


def caught_up(store: RelayStore, lane: Lane, hold: Hold) -> list[int]:
    return [row[0] for row in store.read(lane, hold.start, 3, 100, 1 << 20, hold).rows]


def in_doubt(_lane: Lane, store: RelayStore, batch: Batch) -> Callable[[], list[int]]:
    """It was sent, and nobody knows whether Kafka has committed: what would be sent again."""
    return lambda: [row[0] for row in store.contents(batch)]


@pytest.mark.parametrize("left", [held, in_doubt])
@pytest.mark.parametrize("parked", ["discarded", "sent"])
def test_what_is_done_with_is_not_sent_while_the_outbox_keeps_its_row(
    ground: Ground,
    path: Path,
    left: Callable[[Lane, RelayStore, Batch], Callable[[], list[int]]],
    parked: str,
) -> None:
    ids = ground.add(3)
    store = ground.store()
    lane = store.take("relay", 60)
    assert lane is not None
    batch = next_batch(lane, 3, messages=3)
    lane = store.advance(lane, claim=batch)
    batch = store.exclude(lane, batch, Exclusion(failed={2: "too large"}))
    to_send = left(lane, store, batch)
    ground.sql(f"update ~parked set state = '{parked}', retry_batch = 0, changed_at = changed_at - 7200")
    ground.sql("update ~outbox set created_at = created_at - 7200")
    retention = SqliteRetention(str(path), keep=HOUR)
    assert retention.run_once() == 0, "its rows are needed still"
    assert to_send() == [1, 3]
    status = message_status(f"sqlite:///{path}", uuid.UUID(ids[1]))
    assert status is not None
    assert status.state is MessageState(parked)

    ground.sql("delete from ~topic_holds")
    ground.sql("update ~batches set state = 'sent', sent_at = 0")
    assert retention.run_once() == 3
    assert ground.sql("select position from ~parked") == [], "nobody needs it any more"
