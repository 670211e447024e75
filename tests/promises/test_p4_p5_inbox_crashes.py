"""P4, P5: an inbox killed at each of its crash points, then another one; the log and its effects are compared by id.

Each point has a database and a consumer of its own, all of one topic: those of one stage are killed side by side,
because what takes long is Kafka's wait for the dead.
"""

from __future__ import annotations

import signal
from contextlib import ExitStack
from typing import Any

import pytest

from tests.inbox.conftest import MakeInboxGround
from tests.inbox.ground import Ground

MESSAGES = 300

# How often each is reached before it kills: in mid-stream, with some messages kept and some not.
RECEIVING = {
    "inbox.after_poll": 4,
    "inbox.before_keep": 3,
    "inbox.after_keep": 3,
    "apply.mid_handler": 100,
}
COMMITTING = {
    "inbox.before_commit": 3,
    "inbox.after_commit": 3,
    "inbox.before_kafka_commit": 1,
    "inbox.after_kafka_commit": 1,
}
WORKING = {"worker.after_claim": 4, "worker.before_commit": 4, "worker.after_commit": 3}
STAGES = {"receiving": RECEIVING, "committing": COMMITTING, "working": WORKING}

CASES = [
    pytest.param(
        mode,
        stage,
        scheme,
        marks=() if scheme == "saved-id" else pytest.mark.full,
        id=f"{mode}-{stage}-{scheme}",
    )
    for scheme in ("saved-id", "unique-constraint", "version")
    for mode, stage in [
        ("inline", "receiving"),
        ("inline", "committing"),
        ("deferred", "receiving"),
        ("deferred", "committing"),
        ("deferred", "working"),
    ]
]


@pytest.mark.parametrize(("mode", "stage", "scheme"), CASES)
def test_each_effect_is_there_once_whatever_kills_the_inbox(
    make_inbox_ground: MakeInboxGround, mode: str, stage: str, scheme: str
) -> None:
    grounds = killed(make_inbox_ground, STAGES[stage], mode=mode, scheme=scheme)
    for point, ground in grounds.items():
        assert ground.applied() < MESSAGES, f"{point}: the crash came too late to show anything"
    finish(grounds, mode=mode, scheme=scheme)


@pytest.mark.full
@pytest.mark.parametrize("mode", ["inline", "deferred"])
def test_positions_in_kafka_keep_once_by_saved_id(make_inbox_ground: MakeInboxGround, mode: str) -> None:
    """The position follows after the commit: what was kept and not followed is read again, and known."""
    grounds = killed(make_inbox_ground, COMMITTING, mode=mode, positions="kafka")
    assert all(ground.applied() < MESSAGES for ground in grounds.values())
    finish(grounds, mode=mode, positions="kafka")
    assert all(ground.value("select count(*) from tallymark.positions") == 0 for ground in grounds.values())


@pytest.mark.full
@pytest.mark.parametrize("tx", ["sqlalchemy", "django"])
def test_handlers_with_sessions_of_their_own_kind(make_inbox_ground: MakeInboxGround, tx: str) -> None:
    points = {"apply.mid_handler": 100, "inbox.before_commit": 3, "inbox.after_commit": 3}
    finish(killed(make_inbox_ground, points, tx=tx), tx=tx)


@pytest.mark.full
def test_crash_after_crash_after_crash(make_inbox_ground: MakeInboxGround) -> None:
    """One after the other, in both modes in turn, while messages keep coming."""
    ground = make_inbox_ground()
    for mode, point in [
        ("deferred", "worker.before_commit:2"),
        ("inline", "inbox.after_keep:2"),
        ("deferred", "inbox.before_commit:1"),
    ]:
        ground.send(MESSAGES // 3)
        with ground.inbox(mode=mode, crash_point=point) as child:
            assert child.wait() == -signal.SIGKILL, child.output
    finish({"all": ground}, mode="inline")


def killed(make: MakeInboxGround, points: dict[str, int], **options: Any) -> dict[str, Ground]:
    """A consumer for each point, all dead."""
    first = make()
    first.send(MESSAGES)
    grounds = {point: make(like=first) if number else first for number, point in enumerate(points)}
    # Kafka's own offsets follow once a second (and perhaps only once): there, messages must take long enough.
    with ExitStack() as children:
        started = {
            point: children.enter_context(
                ground.inbox(
                    crash_point=f"{point}:{points[point]}",
                    workers=2,
                    takes=0.02 if "kafka_commit" in point else 0,
                    **options,
                )
            )
            for point, ground in grounds.items()
        }
        for point, child in started.items():
            assert child.wait() == -signal.SIGKILL, f"{point}: {child.output}"
    return grounds


def finish(grounds: dict[str, Ground], **options: Any) -> None:
    """Another process for each; nothing is missing, nothing twice, order kept, balances right to the cent."""
    with ExitStack() as children:
        started = {
            point: children.enter_context(ground.inbox(workers=2, **options))
            for point, ground in grounds.items()
        }
        for point, ground in grounds.items():
            ground.wait_applied(MESSAGES, started[point])
        for child in started.values():
            child.terminate()
        for child in started.values():
            assert child.wait() == 0, child.output
    for point, ground in grounds.items():
        found = ground.compare()
        assert found.expected == MESSAGES, point
        assert found.is_clean, (point, found)
        assert ground.value("select count(*) from tallymark.inbox") == MESSAGES, point
        assert (
            ground.value("select count(*) from tallymark.applications where outcome = 'applied'") == MESSAGES
        ), point
        assert ground.value("select count(*) from tallymark.queue") == 0, point
        assert ground.value("select count(*) from tallymark.dead_letters") == 0, point
