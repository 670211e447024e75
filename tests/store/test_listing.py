"""Messages by their state, PostgreSQL and SQLite alike: found wherever they stand, not among the newest alone."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tallymark.lifecycle import MessageState
from tallymark.relay.ports import Exclusion
from tests.store.conftest import Ground, next_batch


def test_each_state_is_found_behind_whatever_came_later(ground: Ground) -> None:
    store = ground.store()
    lane = store.take("a", 60)
    assert lane is not None
    sent, failed, waiting, discarded = (ground.add(1, key=str(at))[0] for at in range(4))
    first = next_batch(lane, 4, messages=4)
    lane = store.advance(lane, claim=first)
    first = store.exclude(
        lane, first, Exclusion(failed={2: "too large", 4: "too large"}, waiting={3: "waits"})
    )
    ground.sql("update ~parked set state = 'discarded' where position = 4")
    held = ground.add(1, topic="held")[0]
    sending = ground.add(1)[0]
    second = next_batch(lane, 6, messages=1, without_topics=("held",))
    lane = store.advance(lane, mark=first, claim=second)
    ground.sql(
        "insert into ~topic_holds (lane, topic, state, from_position, reason) values (0, 'held', 'held', 4, '')"
    )
    pending = ground.add(1)[0]
    with ground.transaction() as tx:
        delayed = str(ground.outbox.add(tx, "t", "x", deliver_after=timedelta(hours=1)))
    assert ground.operators is not None
    for state, expected in (
        (MessageState.DELAYED, [delayed]),
        (MessageState.PENDING, [pending, held]),
        (MessageState.SENDING, [sending]),
        (MessageState.SENT, [sent]),
        (MessageState.FAILED, [waiting, failed]),
        (MessageState.DISCARDED, [discarded]),
    ):
        assert ground.operators.message_ids(state=state, topic=None, key=None, limit=10) == expected, state
        newest = ground.operators.message_ids(state=state, topic=None, key=None, limit=1)
        assert newest == expected[:1], "the limit counts what is of the state"
    counted = [(each.topic, each.messages, each.at_least) for each in ground.operators.status().held_topics]
    assert counted == [("held", 1, False)], "what stands behind the lane's last batch is not passed over yet"
    anything = ground.operators.message_ids(state=None, topic="held", key=b"k", limit=10)
    assert anything == [held]


@pytest.mark.parametrize("state", [MessageState.FAILED, MessageState.PENDING])
def test_of_a_state_and_a_key(ground: Ground, state: MessageState) -> None:
    store = ground.store()
    lane = store.take("a", 60)
    assert lane is not None
    ids = [ground.add(1, key=key)[0] for key in ("a", "b")]
    if state is MessageState.FAILED:
        batch = next_batch(lane, 2, messages=2)
        lane = store.advance(lane, claim=batch)
        store.exclude(lane, batch, Exclusion(failed={1: "bad", 2: "bad"}))
    assert ground.operators is not None
    assert ground.operators.message_ids(state=state, topic=None, key=b"a", limit=1) == ids[:1]
