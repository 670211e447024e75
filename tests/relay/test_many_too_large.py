"""Several messages of a batch that are too large are found together: the rest of it is not produced anew for each."""

from __future__ import annotations

import dataclasses

import pytest

from tallymark.broker.kafka import AdminClient
from tallymark.lifecycle import Mode
from tests.conftest import MakeTopic
from tests.relay.ground import QUICK, Ground, idle_in_the_end
from tests.relay.toolarge import SMALL, add_large, parked, set_limit
from tests.waiting import wait_for

COUNT = 8


# Each look in a transaction is aborted, which takes Kafka and its client most of a second.
@pytest.mark.parametrize("mode", [pytest.param(Mode.TRANSACTIONAL, marks=pytest.mark.full), Mode.CALLBACK])
def test_all_that_are_too_large_are_found_in_one_round(
    ground: Ground, admin: AdminClient, make_topic: MakeTopic, mode: Mode
) -> None:
    # The client takes as much as the lane's other topic does, and asks Kafka.
    set_limit(admin, ground.topic, SMALL)
    large = set()
    for number in range(COUNT):
        ground.add(10)
        large.add(add_large(ground, f"large-{number}"))
    ground.add(10)
    with ground.worker(dataclasses.replace(QUICK, mode=mode, batch_messages=200)) as worker:
        wait_for(lambda: idle_in_the_end(worker), what="all that can be sent is")
    assert {row[0] for row in ground.query("select id::text from tallymark.parked")} == large
    assert parked(ground) == {"failed": COUNT}
    found = ground.compare()
    assert (found.missing, found.strangers) == (frozenset(large), frozenset())
    assert not found.doubled
    copies = len(ground.log(committed=False))
    # Once as it was claimed, once to learn what was refused, once without them: not twice for each.
    assert copies <= 4 * 10 * (COUNT + 1), copies
