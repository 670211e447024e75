"""Pitfall 27: deadlocks between inline batches are nobody's fault. The batch runs again, and no attempt is counted."""

from __future__ import annotations

import json
from contextlib import ExitStack

import psycopg

from tallymark.message import new_id
from tests.inbox.conftest import MakeInboxGround
from tests.inbox.ground import headers
from tests.waiting import wait_for

EACH = 30


def test_two_processes_that_lock_the_same_rows_in_opposite_order(make_inbox_ground: MakeInboxGround) -> None:
    ground = make_inbox_ground(2)
    pairs = [("account-1", "account-2"), ("account-2", "account-1")]
    # Both stand ready, one partition each, before there is anything to do.
    with (
        ExitStack() as stack,
        ground.inbox(assign=[(ground.topic, 0)], attempts=2) as one,
        ground.inbox(assign=[(ground.topic, 1)], attempts=2) as other,
    ):
        owned = "select count(*) from tallymark.positions where owner is not null"
        wait_for(lambda: ground.value(owned) == 2, what="both have their partition")
        # Nobody gets anywhere until both wait for their first row: then each has the row that the other wants next.
        holder = stack.enter_context(psycopg.connect(ground.url))
        holder.execute("select from account where id in ('account-1', 'account-2') for update")
        for partition, (account, second) in enumerate(pairs):
            values = [
                {"n": n, "account": account, "amount": 1, "do": "lock", "other": second}
                for n in range(1, EACH + 1)
            ]
            ground.send_raw(
                [(account.encode(), json.dumps(value).encode(), headers(str(new_id()))) for value in values],
                partition=partition,
                transaction=5,
            )
        waiting = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
        wait_for(lambda: ground.value(waiting) == 2, what="both wait for their first row")
        holder.commit()
        ground.wait_applied(2 * EACH, one, other)
        for child in (one, other):
            child.terminate()
        for child in (one, other):
            assert child.wait() == 0, child.output
    deadlocks = "select deadlocks from pg_stat_database where datname = current_database()"
    wait_for(lambda: ground.value(deadlocks) > 0, what="there was a deadlock at all")
    assert ground.query("select distinct attempt from tallymark.applications") == [(1,)]
    assert ground.value("select count(*) from tallymark.dead_letters") == 0
    found = ground.compare()
    assert found.expected == 2 * EACH
    assert found.is_clean, found
