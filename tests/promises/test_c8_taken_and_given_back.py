"""C8: a partition taken from an inbox that goes on reading, then given back: it is read on from the database's position.

What the client has read ahead meanwhile counts for nothing, neither its messages nor the ends it has seen.
"""

from __future__ import annotations

from tests.inbox.ground import Ground
from tests.waiting import wait_for


def test_fixed_partitions_that_two_were_given(inbox_ground: Ground) -> None:
    """Both read the same partitions; the second takes them, leaves in mid-stream, and the first goes on there."""
    ground = inbox_ground
    fixed = [(ground.topic, partition) for partition in range(3)]
    ground.send(50)
    with ground.inbox(assign=fixed, lease_seconds=8) as first:
        ground.wait_applied(50, first)
        for _ in range(2):
            with ground.inbox(assign=fixed, lease_seconds=8, takes=0.01, batch_messages=10) as second:
                wait_for(lambda: owner(ground) == {second.pid}, what="the second one has taken them")
                before = ground.applied()
                ground.send(600)
                ground.wait_applied(before + 20, first, second)
                second.terminate()
                # Messages keep coming: the first one's client reads them, and it is not their turn yet.
                while owner(ground) != {first.pid}:
                    ground.send(20, transaction=1)
                assert second.wait() == 0, second.output
        wait_for(lambda: ground.applied() == ground.sent, what=f"all {ground.sent} are applied")
        first.terminate()
        assert first.wait() == 0, first.output
    found = ground.compare()
    assert found.is_clean, found


def owner(ground: Ground) -> set[int | None]:
    """The processes that hold the partitions."""
    return {
        None if row[0] is None else int(row[0].split(":")[1])
        for row in ground.query("select owner from tallymark.positions")
    }
