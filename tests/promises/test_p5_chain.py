"""P5 in a chain of services: what a handler adds to the outbox shares the fate of its effect.

Consume, transform, add: the next service's message is there if and only if the effect is, whatever is killed in between.
"""

from __future__ import annotations

import json
import signal

import pytest

from tallymark.lifecycle import Role
from tests import journal
from tests.children import Child, start_child
from tests.conftest import MakeTopic
from tests.inbox.conftest import MakeInboxGround
from tests.inbox.ground import Ground
from tests.waiting import wait_for

MESSAGES = 120


@pytest.mark.parametrize(
    ("mode", "at_inbox", "at_relay"),
    [
        ("inline", "apply.mid_handler:50", "relay.before_mark:3"),
        pytest.param(
            "deferred", "worker.before_commit:3", "relay.after_kafka_commit:3", marks=pytest.mark.full
        ),
    ],
)
def test_a_chain_of_services_stays_exactly_once(
    make_inbox_ground: MakeInboxGround, make_topic: MakeTopic, mode: str, at_inbox: str, at_relay: str
) -> None:
    ground = make_inbox_ground(role=Role.BOTH)
    onward = make_topic(3)
    ground.send(MESSAGES)
    with ground.inbox(mode=mode, chain=onward, crash_point=at_inbox) as first:
        assert first.wait() == -signal.SIGKILL, first.output
    with _relay(ground, crash_point=at_relay) as relay, ground.inbox(mode=mode, chain=onward) as second:
        ground.wait_applied(MESSAGES, second)
        assert relay.wait() == -signal.SIGKILL, relay.output
    with _relay(ground) as relay:
        wait_for(lambda: journal.all_sent(ground.url) or not relay.is_alive(), what="all is sent on")
        assert relay.is_alive(), relay.output
    assert ground.compare().is_clean
    sent_on = [json.loads(record.value or b"{}") for record in ground.log(onward)]
    # Each message of the first topic once in the second, by the id of what it was made of.
    assert sorted(each["of"] for each in sent_on) == sorted(record.id for record in ground.log())
    logged = ground.log(onward)
    for account in {record.key for record in logged}:
        numbers = [json.loads(record.value or b"{}")["n"] for record in logged if record.key == account]
        assert numbers == sorted(numbers)


def _relay(ground: Ground, *, crash_point: str | None = None) -> Child:
    return start_child(
        [
            *("-m", "tallymark", "relay", "run", "--database", ground.url),
            *("--bootstrap-servers", ground.servers),
        ],
        crash_point=crash_point,
        environment={"TALLYMARK_RELAY__LEASE_SECONDS": "1", "TALLYMARK_RELAY__BATCH_MESSAGES": "20"},
    )
