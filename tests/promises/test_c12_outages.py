"""C12 and the like: PostgreSQL stands still or dies, a leader dies. The inbox stays the same process, and a member.

It waits, goes on by itself, and nothing is lost or applied twice.
"""

from __future__ import annotations

import time
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from tallymark.local.cluster import LocalCluster
from tests.children import Child
from tests.inbox.ground import Ground
from tests.leaders import leader_of
from tests.waiting import wait_for

MESSAGES = 600
# A handler that takes its time, so that what happens in between happens in mid-stream.
AT_WORK: dict[str, Any] = {"takes": 0.005, "batch_messages": 10, "workers": 2}
SESSION_S = 12
# A loop that waited for the database would not poll for longer than this, and be put out of the group.
PATIENCE = {f"TALLYMARK_INBOX__{name}": f"{SESSION_S}s" for name in ("MAX_POLL_INTERVAL", "SESSION_TIMEOUT")}


@pytest.mark.full  # the next one stands still, too
def test_a_database_that_stands_still_costs_no_membership(
    inbox_ground: Ground, cluster: LocalCluster, admin: AdminClient
) -> None:
    ground = inbox_ground
    ground.send(MESSAGES)
    with ground.inbox(settings=PATIENCE, **AT_WORK) as child:
        ground.wait_applied(30, child)
        members, epochs = members_of(admin, ground), epochs_of(ground)
        assert len(members) == 1
        cluster.postgres.pause()
        try:
            still_until = time.monotonic() + SESSION_S + 3
            wait_for(
                lambda: time.monotonic() > still_until or members_of(admin, ground) != members,
                what="longer than a session",
            )
            assert members_of(admin, ground) == members
        finally:
            cluster.postgres.resume()
        ground.wait_applied(MESSAGES, child)
        assert members_of(admin, ground) == members
        assert epochs_of(ground) == epochs, "its partitions were given away, or taken anew"
        finish(ground, child)


@pytest.mark.full
def test_a_partition_that_waits_costs_no_membership_either(
    inbox_ground: Ground, cluster: LocalCluster, admin: AdminClient
) -> None:
    """One that is halted is asked about by the loop that polls: waiting for an answer, it would hear no SIGTERM."""
    ground = inbox_ground
    ground.send(MESSAGES)
    halted = "as if its log had a gap"
    with ground.inbox(settings=PATIENCE, **AT_WORK) as child:
        ground.wait_applied(30, child)
        ground.query(
            "update tallymark.positions set halted = %s, epoch = epoch + 1 where partition = 0 returning 1",
            halted,
        )
        wait_for(lambda: halted in child.output, what="the partition waits")
        members = members_of(admin, ground)
        cluster.postgres.pause()
        try:
            still_until = time.monotonic() + SESSION_S + 3
            wait_for(
                lambda: time.monotonic() > still_until or members_of(admin, ground) != members,
                what="longer than a session",
            )
            assert members_of(admin, ground) == members
            child.terminate()
            assert child.wait(30) == 0, child.output
        finally:
            cluster.postgres.resume()
        assert "Traceback" not in child.output
    ground.query("update tallymark.positions set halted = null returning 1")
    ground.apply_all(MESSAGES)
    found = ground.compare()
    assert found.is_clean, found


@pytest.mark.parametrize("mode", ["inline", pytest.param("deferred", marks=pytest.mark.full)])
def test_postgresql_is_killed_three_times(inbox_ground: Ground, cluster: LocalCluster, mode: str) -> None:
    ground = inbox_ground
    ground.send(MESSAGES)
    with ground.inbox(mode=mode, **AT_WORK) as child:
        for number in range(1, 4):
            ground.wait_applied(number * 50, child)
            cluster.postgres.kill()
            cluster.postgres.start()
        ground.wait_applied(MESSAGES, child, within=90)
        finish(ground, child)


def test_a_leader_is_killed(inbox_ground: Ground, cluster: LocalCluster, admin: AdminClient) -> None:
    ground = inbox_ground
    ground.send(MESSAGES)
    leader = leader_of(admin, ground.topic)
    with ground.inbox(**AT_WORK) as child:
        ground.wait_applied(50, child)
        cluster.broker(leader).kill()
        try:
            ground.wait_applied(MESSAGES, child, within=90)
        finally:
            cluster.broker(leader).start()
        ground.send(60)
        ground.wait_applied(MESSAGES + 60, child, within=90)
        finish(ground, child)


@pytest.mark.full
def test_it_ends_while_the_database_stands_still(inbox_ground: Ground, cluster: LocalCluster) -> None:
    """Whoever stops it waits for seconds. Nothing is lost by a goodbye that is not heard."""
    ground = inbox_ground
    ground.send(MESSAGES)
    with ground.inbox(**AT_WORK) as child:
        ground.wait_applied(30, child)
        cluster.postgres.pause()
        try:
            child.terminate()
            assert child.wait(40) == 0, child.output
        finally:
            cluster.postgres.resume()
        assert "nobody hears our goodbye" in child.output
        assert "Traceback" not in child.output
    ground.apply_all(MESSAGES)
    found = ground.compare()
    assert found.is_clean, found


def finish(ground: Ground, child: Child) -> None:
    child.terminate()
    assert child.wait() == 0, child.output
    assert ground.value("select count(*) from tallymark.positions where halted is not null") == 0
    assert ground.query("select distinct attempt from tallymark.applications") == [(1,)]
    found = ground.compare()
    assert found.is_clean, found


def members_of(admin: AdminClient, ground: Ground) -> dict[str, int]:
    """The group's members, and how many partitions each has."""
    found = admin.describe_consumer_groups([ground.name])[ground.name].result(10)
    return {member.member_id: len(member.assignment.topic_partitions) for member in found.members}


def epochs_of(ground: Ground) -> list[tuple[object, ...]]:
    return ground.query("select partition, owner, epoch from tallymark.positions order by partition")
