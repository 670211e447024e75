"""C8: processes join and leave every second while messages come, one of them stopped past its session and woken.

Nothing is missing, nothing twice, the order within each account is kept, balances are right to the cent.
"""

from __future__ import annotations

import time
from collections import deque
from contextlib import ExitStack
from functools import partial

import pytest

from tests.children import Child
from tests.inbox.conftest import MakeInboxGround
from tests.inbox.ground import Ground
from tests.waiting import wait_for

PARTITIONS = 6
AT_ONCE = 4
# Longer than a session (6 s), after which Kafka gives its partitions away, and than it may go without polling (7 s).
ASLEEP_S = 8


@pytest.mark.parametrize(
    ("mode", "turns"),
    [
        ("inline", 6),
        pytest.param("deferred", 6, marks=pytest.mark.full),
        pytest.param("inline", 50, marks=pytest.mark.full),
        pytest.param("deferred", 50, marks=pytest.mark.full),
    ],
)
@pytest.mark.timeout(400)
def test_processes_come_and_go_under_load(make_inbox_ground: MakeInboxGround, mode: str, turns: int) -> None:
    ground = make_inbox_ground(PARTITIONS)
    with ExitStack() as children:
        sleeper: Child = children.enter_context(
            ground.inbox(
                mode=mode, workers=2, takes=0.01, settings={"TALLYMARK_INBOX__MAX_POLL_INTERVAL": "7s"}
            )
        )
        there: deque[Child] = deque()
        left: list[Child] = []
        ground.send(100)
        ground.wait_applied(1, sleeper)
        wakes_at: float | None = None
        while len(left) < turns:
            turn_ends = time.monotonic() + 1
            if len(there) < AT_ONCE:
                there.append(children.enter_context(ground.inbox(mode=mode, workers=2, takes=0.01)))
            if len(there) > 1 and there[0].pid in owners(ground):  # only who has come can go
                left.append(there.popleft())
                left[-1].terminate()
            if wakes_at is None:
                assert sleeper.stop(), sleeper.output
                wakes_at = time.monotonic() + ASLEEP_S
            elif past(wakes_at):
                sleeper.cont()
                wakes_at = None
            ground.send(100, transaction=10)
            wait_for(partial(past, turn_ends), what="the next second")
        if wakes_at is not None:
            wait_for(partial(past, wakes_at), what="it has slept for longer than a session")
            sleeper.cont()
        ground.wait_applied(ground.sent, sleeper, *there, within=90)
        wait_for(
            lambda: owners(ground) == {sleeper.pid, *(child.pid for child in there)},
            what="all have come",
        )
        for child in (sleeper, *there):
            child.terminate()
        for child in (sleeper, *there, *left):
            assert child.wait(40) == 0, child.output
            assert "Traceback" not in child.output, child.output
    found = ground.compare()
    assert found.expected == ground.sent
    assert found.is_clean, found
    assert ground.value("select count(*) from tallymark.dead_letters") == 0


def past(moment: float) -> bool:
    return time.monotonic() > moment


def owners(ground: Ground) -> set[int]:
    """The processes that hold partitions."""
    return {
        int(owner.split(":")[1])
        for (owner,) in ground.query("select distinct owner from tallymark.positions where owner is not null")
    }
