"""C6, C8, pitfall 15: an inbox stopped past its session, its partitions taken over and finished, then woken.

Its write carries an epoch that is no longer the position's: it changes nothing, and is counted.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.inbox.ground import Ground
from tests.promises.test_c8_taken_and_given_back import owner
from tests.waiting import wait_for

MESSAGES = 200
# Where a batch was being kept, and its position about to be moved. Elsewhere nothing of a position is tried.
KEEPS = ("inbox.after_keep:3", "inbox.before_commit:3", "apply.mid_handler:60")


@pytest.mark.parametrize(
    ("mode", "point", "tx"),
    [
        ("inline", "inbox.before_commit:3", "psycopg"),
        pytest.param("inline", "apply.mid_handler:60", "psycopg", marks=pytest.mark.full),
        pytest.param("inline", "inbox.after_keep:3", "psycopg", marks=pytest.mark.full),
        pytest.param("inline", "inbox.after_poll:3", "psycopg", marks=pytest.mark.full),
        ("deferred", "worker.before_commit:2", "psycopg"),
        pytest.param("deferred", "inbox.before_commit:3", "psycopg", marks=pytest.mark.full),
        pytest.param("deferred", "apply.mid_handler:60", "psycopg", marks=pytest.mark.full),
        pytest.param("inline", "inbox.before_commit:3", "sqlalchemy", marks=pytest.mark.full),
        pytest.param("inline", "inbox.before_commit:3", "django", marks=pytest.mark.full),
    ],
)
def test_a_zombie_changes_nothing(inbox_ground: Ground, mode: str, point: str, tx: str) -> None:
    ground = inbox_ground
    ground.send(MESSAGES)
    with ground.inbox(mode=mode, tx=tx, crash_point=f"{point}:stop") as zombie:
        zombie.wait_stopped()
        assert ground.applied() < MESSAGES, "it was stopped too late to show anything"
        with ground.inbox(mode=mode, tx=tx) as successor:
            # Kafka waits 6 s for the zombie; the database does not wait for its locks.
            ground.wait_applied(MESSAGES, successor)
            before = applications(ground)
            positions = ground.positions()
            zombie.cont()
            if point in KEEPS and (mode, point) != ("deferred", "apply.mid_handler:60"):
                wait_for(lambda: fenced(ground) >= 1, what="the zombie's attempt is counted")
                # Said by its write that was refused, or by its heartbeat, whichever woke first.
                assert "another owner has taken" in zombie.output or "no longer ours" in zombie.output
            # It joins the group again, and both go on.
            wait_for(lambda: owners(ground) == 2, what="both have partitions")
            assert applications(ground) == before
            # The successor may have passed the last markers meanwhile.
            assert all(ground.positions()[place] >= offset for place, offset in positions.items())
            ground.send(50)
            ground.wait_applied(MESSAGES + 50, successor, zombie)
            for child in (successor, zombie):
                child.terminate()
            for child in (successor, zombie):
                assert child.wait() == 0, child.output
                assert "Traceback" not in child.output, child.output
    found = ground.compare()
    assert found.expected == MESSAGES + 50
    assert found.is_clean, found


def test_one_that_holds_no_partition_does_not_hold_its_keys_either(inbox_ground: Ground) -> None:
    """More processes than partitions, for the sake of their workers: nobody takes anything over from this one."""
    ground = inbox_ground
    fixed = [(ground.topic, partition) for partition in range(3)]
    deferred: dict[str, Any] = {"mode": "deferred", "workers": 1}
    with ground.inbox(crash_point="worker.before_commit:1:stop", **deferred) as helper:
        wait_for(lambda: owner(ground) == {helper.pid}, what="Kafka has given it what there is")
        with ground.inbox(assign=fixed, takes=0.02, **deferred) as other:
            wait_for(lambda: owner(ground) == {other.pid}, what="the helper holds nothing")
            # A key for each: nobody's claim has them all.
            ground.send(MESSAGES, accounts=MESSAGES)
            helper.wait_stopped()
            ground.wait_applied(MESSAGES, other)
            helper.cont()
            for child in (other, helper):
                child.terminate()
            for child in (other, helper):
                assert child.wait() == 0, child.output
    found = ground.compare()
    assert found.is_clean, found


@pytest.mark.parametrize("mode", ["inline", "deferred"])
@pytest.mark.parametrize(
    "point", [pytest.param("inbox.after_keep:3", marks=pytest.mark.full), "inbox.before_commit:3"]
)
def test_its_connections_are_ended_in_mid_batch(inbox_ground: Ground, mode: str, point: str) -> None:
    """Pitfall 15: what became of the batch is unknown; it is looked up, and never passed over."""
    ground = inbox_ground
    ground.send(MESSAGES)
    with ground.inbox(mode=mode, crash_point=f"{point}:stop") as child:
        child.wait_stopped()
        ended = ground.value(
            "select count(pg_terminate_backend(pid)) from pg_stat_activity"
            " where datname = current_database() and pid <> pg_backend_pid()"
        )
        assert ended >= 3
        child.cont()
        ground.wait_applied(MESSAGES, child)
        child.terminate()
        assert child.wait() == 0, child.output
    found = ground.compare()
    assert found.is_clean, found


def applications(ground: Ground) -> list[tuple[object, ...]]:
    return ground.query("select id, seq, attempt from tallymark.applications order by seq")


def owners(ground: Ground) -> int:
    return int(ground.value("select count(distinct owner) from tallymark.positions"))


def fenced(ground: Ground) -> int:
    return int(ground.value("select coalesce(sum(fenced), 0) from tallymark.positions"))
