"""One refused message takes its whole record batch with it: the others of that are not parked, nor sent for ever."""

from __future__ import annotations

import dataclasses
import uuid

import pytest

from tallymark.lifecycle import Mode
from tests.conftest import MakeTopic
from tests.relay.ground import QUICK, Ground, idle_in_the_end
from tests.relay.toolarge import add_large, parked
from tests.waiting import wait_for

KEYS = 5


def add_without_key(ground: Ground) -> str:
    """What no compacted topic takes."""
    id_ = str(uuid.uuid4())
    ground.query(
        "insert into tallymark.outbox (id, topic, value) values (%s, %s, 'no key')", id_, ground.topic
    )
    return id_


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize("batch_messages", [100, pytest.param(20, marks=pytest.mark.full)])
def test_what_stood_beside_a_refused_message_goes(
    ground: Ground, make_topic: MakeTopic, mode: Mode, batch_messages: int
) -> None:
    """In `callback` mode the next batch is on its way by then, with later messages of the same keys."""
    ground.topics[:] = [make_topic(1, cleanup_policy="compact")]
    config = dataclasses.replace(
        QUICK, mode=mode, batch_messages=batch_messages, accepted=("cleanup.policy",)
    )
    bad = set()
    for _ in range(2):
        ground.add(12, keys=KEYS)
        bad.add(add_without_key(ground))
    ground.add(36, keys=KEYS)
    with ground.worker(config) as worker:
        wait_for(lambda: idle_in_the_end(worker), what="all that can be sent is")
        ground.add(12, keys=KEYS)
        wait_for(lambda: idle_in_the_end(worker), what="and it goes on")
    assert {row[0] for row in ground.query("select id::text from tallymark.parked")} == bad
    assert parked(ground) == {"failed": 2}
    found = ground.compare()
    assert (found.expected, found.missing, found.strangers) == (74, frozenset(bad), frozenset())
    if mode is Mode.TRANSACTIONAL:
        assert (sum(found.doubled.values()), found.reordered) == (0, ())
    # Each key ends on its last message, and is in order where the last copy of each counts.
    last = {record.id: record for record in ground.log()}
    for key in {record.key for record in last.values()}:
        ours = sorted((r for r in last.values() if r.key == key), key=lambda r: r.offset)
        assert [r.position for r in ours] == sorted(r.position for r in ours)


@pytest.mark.parametrize("mode", Mode)
def test_what_the_client_itself_does_not_take_is_parked(ground: Ground, mode: Mode) -> None:
    """Five megabytes by plain SQL, where nobody raised a limit: it is refused before anything is on its way."""
    ground.add(15)
    large = add_large(ground, "key-3", size=5_000_000)
    ground.add(25)
    with ground.worker(dataclasses.replace(QUICK, mode=mode)) as worker:
        wait_for(lambda: idle_in_the_end(worker), what="all that can be sent is")
    ((id_, reason),) = ground.query("select id::text, reason from tallymark.parked where state = 'failed'")
    assert id_ == large
    assert "too large" in reason.lower()
    waiting = {
        row[0] for row in ground.query("select id::text from tallymark.parked where state = 'waiting'")
    }
    found = ground.compare()
    assert (found.expected, found.missing) == (41, frozenset({large, *waiting}))
    # Without transactions nobody waits: the others are in the log when the one is parked.
    assert len(waiting) == (2 if mode is Mode.TRANSACTIONAL else 0)
    assert not found.doubled
