"""The relay's store, PostgreSQL and SQLite alike: how far may be read, and slices that end where they say they end."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from tallymark.errors import Inconsistent
from tallymark.lifecycle import HoldState
from tallymark.relay.ports import Hold, Lane, RelayStore
from tests.store.conftest import Ground
from tests.waiting import wait_for


@pytest.fixture
def store(ground: Ground) -> RelayStore:
    return ground.store()


@pytest.fixture
def lane(store: RelayStore) -> Lane:
    lane = store.take("a", 60)
    assert lane is not None
    return lane


def test_an_empty_outbox(store: RelayStore, lane: Lane) -> None:
    assert store.frontier(0) == 0
    assert list(store.read(lane, 0, 10, 5, 1000).rows) == []


def test_rows_are_told_as_they_were_added(ground: Ground, store: RelayStore, lane: Lane) -> None:
    with ground.transaction() as tx:
        first = ground.outbox.add(tx, "t", b"\x00\xff", key=b"\x80", headers={"h": "ü"}, partition=2)
        second = ground.outbox.add(tx, "t", None)
    rows = store.read(lane, 0, store.frontier(0), 10, 10_000).rows
    assert rows[0][:5] == (1, str(first), "t", b"\x80", b"\x00\xff")
    assert '"h":"ü"' in rows[0][5]
    assert rows[0][6] == 2
    assert rows[1][:5] == (2, str(second), "t", None, None)


def test_a_rolled_back_message_is_not_there(ground: Ground, store: RelayStore, lane: Lane) -> None:
    connection = ground.connect()
    ground.outbox.add(connection, "t", b"gone")
    connection.rollback()
    connection.close()
    kept = ground.add(1)
    assert [row[1] for row in store.read(lane, 0, store.frontier(0), 10, 10_000).rows] == kept


def test_uncommitted_messages_hold_the_frontier(ground: Ground, store: RelayStore, lane: Lane) -> None:
    """A bound that was safe once stays safe: rows up to it cannot appear later."""
    ground.add(2)
    connection = ground.connect()
    late = ground.outbox.add(connection, "t", b"late")
    safe = store.frontier(0)
    assert safe == 2
    assert len(store.read(lane, 0, safe, 10, 10_000).rows) == 2
    connection.commit()
    connection.close()
    assert store.frontier(safe) == 3
    assert [row[1] for row in store.read(lane, safe, 3, 10, 10_000).rows] == [str(late)]


def test_a_slice_is_bounded_by_count(ground: Ground, store: RelayStore, lane: Lane) -> None:
    added = ground.add(5)
    piece = store.read(lane, 0, 5, 2, 1 << 20)
    assert ([row[1] for row in piece.rows], piece.upto, piece.more) == (added[:2], 2, True)
    piece = store.read(lane, 4, 5, 2, 1 << 20)
    assert ([row[1] for row in piece.rows], piece.upto, piece.more) == (added[4:], 5, False)


def test_slices_bounded_by_bytes_give_each_row_once(ground: Ground, store: RelayStore, lane: Lane) -> None:
    """A cut that is taken for an end would lose rows, whatever the bound: several bounds, ASCII and not."""
    with ground.transaction() as tx:
        for number in range(60):
            ground.outbox.add(
                tx, "t", b"x" * (number * 7), key="schlüssel", headers={"größe": "ä" * (number % 5)}
            )
    for size in range(600, 12_000, 211):
        after, seen = 0, []
        while after < 60:
            piece = store.read(lane, after, 60, 1000, size)
            assert piece.rows, "a slice that moves nothing"
            assert piece.upto == (piece.rows[-1][0] if piece.more else 60)
            seen += [row[0] for row in piece.rows]
            after = piece.upto
        assert seen == list(range(1, 61)), size


def test_a_giant_alone_still_moves(ground: Ground, store: RelayStore, lane: Lane) -> None:
    ground.add(1, value=b"x" * 100_000)
    ground.add(1)
    piece = store.read(lane, 0, 2, 10, 1000)
    assert [row[0] for row in piece.rows] == [1]
    assert (piece.upto, piece.more) == (1, True)


def test_topics_are_chosen_or_left_out(ground: Ground, store: RelayStore, lane: Lane) -> None:
    ground.add(1, topic="a")
    ground.add(1, topic="b")
    hold = Hold("b", HoldState.CATCHING_UP, 0, "")
    assert [row[2] for row in store.read(lane, 0, 2, 10, 1000, hold).rows] == ["b"]
    assert [row[2] for row in store.read(lane, 0, 2, 10, 1000, without=["b"]).rows] == ["a"]


def test_a_sequence_behind_the_relay_names_the_range(ground: Ground, store: RelayStore) -> None:
    """Pitfall 4: positions already covered would come again, and never be sent."""
    ground.add(3)
    with pytest.raises(Inconsistent, match="rows added as 4 to 10 would never be sent"):
        store.frontier(10)
    if ground.kind == "postgres":
        ground.sql("truncate ~outbox")
        ground.sql("alter sequence ~outbox_position restart")
    else:
        ground.sql("delete from ~outbox")
        ground.sql("delete from sqlite_sequence")
    with pytest.raises(Inconsistent, match="rows added as 1 to 3 would never be sent"):
        store.frontier(3)


def test_delayed_messages_are_moved_when_due_in_the_order_of_their_times(
    ground: Ground, store: RelayStore, lane: Lane
) -> None:
    with ground.transaction() as tx:
        never = ground.outbox.add(tx, "t", b"", deliver_after=timedelta(hours=1))
        second = ground.outbox.add(tx, "t", b"", deliver_after=timedelta(milliseconds=-5))
        first = ground.outbox.add(tx, "t", b"", deliver_after=timedelta(seconds=-5))
    wait_for(lambda: store.move_due(10) == 2, what="two are due at once")
    assert store.move_due(10) == 0
    assert [row[1] for row in store.read(lane, 0, store.frontier(0), 10, 1000).rows] == [
        str(first),
        str(second),
    ]
    with ground.transaction() as tx:
        assert str(ground.outbox.state(tx, never)) == "delayed"
        assert str(ground.outbox.state(tx, first)) == "pending"


def test_delayed_messages_of_one_time_are_moved_in_the_order_of_their_adding(
    ground: Ground, store: RelayStore, lane: Lane
) -> None:
    noon = datetime.now(UTC) - timedelta(seconds=1)
    with ground.transaction() as tx:
        added = [ground.outbox.add(tx, "t", b"", key="k", deliver_after=noon) for _ in range(30)]
    assert store.move_due(10) == 10
    assert store.move_due(100) == 20
    rows = store.read(lane, 0, store.frontier(0), 100, 100_000).rows
    assert [row[1] for row in rows] == [str(id_) for id_ in added]
