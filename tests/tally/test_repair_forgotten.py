"""What an inbox no longer remembers is no loss to a repair: it may have been applied long ago. The stores alone."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from tallymark.inbox.screening import AHEAD, TOO_OLD
from tallymark.store.postgres import tallyrepair
from tallymark.store.postgres.replay import CAME, REUSED, ReplayStore
from tests.inbox_store.test_clock import Behind
from tests.tally.cases import uuid7
from tests.tally.resends import Ground, in_log, tables
from tests.tally.test_repair_order import queue, repaired

__all__ = ["tables"]

DAY = timedelta(days=1)


@pytest.fixture
def ground(tables: str) -> Ground:
    """Ann's and bob's are ten days old, carol's is of today; the inbox has dropped what is older than a day."""
    made = Ground(tables, ["ann", "bob", "carol"])
    made.query("delete from tallymark.named_pruned")
    made.query("update tallymark.inbox_identity set kept_from = %s", datetime.now(UTC) - DAY)
    for number in (0, 1):
        with_time(made, number, datetime.now(UTC) - 10 * DAY)
    return made


def with_time(ground: Ground, number: int, moment: datetime) -> None:
    """Its id names this moment."""
    ground.ids[number] = uuid7(int(moment.timestamp() * 1000), number)
    ground.query("update tallymark.outbox set id = %s where position = %s", ground.ids[number], number + 1)


def dead(ground: Ground) -> list[str]:
    return [row[0] for row in ground.query("select id::text from tallymark.dead_letters")]


def pruned(ground: Ground, topic: str) -> None:
    """Retention has dropped messages of this topic whose ids carry no time."""
    ground.query("insert into tallymark.named_pruned values ('ledger', %s, 0, 100)", topic)


def test_what_is_older_than_the_inbox_remembers_is_left_alone(ground: Ground) -> None:
    """It may have been applied, and the outbox reaches further back. The oldest come first, and are not counted."""
    would = repaired(ground, limit=1, dry_run=True)
    done = repaired(ground, limit=1)
    for each in (would, done):
        assert (each.asked, each.lacking, each.forgotten, each.refused) == (3, 1, 2, {})
        assert each.missing == [ground.ids[2]]
    assert (would.kept, done.kept) == (0, 1)
    assert (dead(ground), queue(ground)) == ([], [ground.ids[2]])
    assert ground.query("select details->>'ids' from tallymark.audit") == [(f'["{ground.ids[2]}"]',)]


def test_not_even_in_any_order(ground: Ground) -> None:
    assert (repaired(ground, any_order=True).forgotten, dead(ground)) == (2, [])


def test_an_id_without_a_time_is_taken_until_some_of_its_topic_were_dropped(ground: Ground) -> None:
    ground.named(2)
    pruned(ground, "orders")
    assert (repaired(ground, dry_run=True).missing, repaired(ground).kept) == ([ground.ids[2]], 1)
    ground.named(2)
    pruned(ground, "transfers")
    done = repaired(ground)
    assert (done.kept, done.missing, done.forgotten, dead(ground)) == (0, [], 3, [])


@pytest.mark.parametrize("dry_run", [True, False])
def test_an_id_from_the_future_is_refused_and_no_dead_letter(ground: Ground, dry_run: bool) -> None:
    with_time(ground, 2, datetime.now(UTC) + 10 * DAY)
    done = repaired(ground, dry_run=dry_run)
    assert (done.lacking, done.missing, done.refused) == (1, [], {ground.ids[2]: AHEAD})
    assert dead(ground) == []


def test_an_id_of_today_is_no_doubt_on_a_host_whose_clock_is_behind(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tallyrepair, "datetime", Behind, raising=False)
    done = repaired(ground)
    assert (done.kept, done.refused) == (1, {})


def test_what_changed_since_it_was_looked_at_is_said_and_no_dead_letter(ground: Ground) -> None:
    """Retention went on; the same id came from Kafka, with these contents or with others."""
    old, same = in_log(ground, 1), in_log(ground, 3)
    with_time(ground, 1, datetime.now(UTC))
    other = in_log(ground, 2)
    store = ReplayStore(ground.url, "ledger")
    try:
        assert store.repair([same, other], lambda _: {}) == (2, {})
        found = store.repair([old, same, other._replace(value=b"y")], lambda _: {})
        assert found == (0, {old.id: TOO_OLD, same.id: CAME, other.id: REUSED})
        # It looks each time.
        ground.query("update tallymark.inbox_identity set kept_from = %s", datetime.now(UTC) - 20 * DAY)
        assert store.repair([old], lambda _: {}) == (1, {})
    finally:
        store.close()
    assert dead(ground) == []
