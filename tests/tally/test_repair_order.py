"""What a consumer takes without Kafka, or is given again from the log, comes in its place or not at all: stores alone."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest

from tallymark.inbox.identity import key_hash
from tallymark.message import new_id
from tallymark.store.postgres.inboxfailed import Change, InboxFailed
from tallymark.store.postgres.replay import Redriven, ReplayStore
from tallymark.store.postgres.tallyrepair import Repair
from tallymark.tally.repairing import Repaired
from tests.tally.resends import DIE, Ground, in_log, tables

__all__ = ["tables"]

AGAIN = '{"tm_resend":"1","tm_origin":"1"}'
KEEP_AT = """
insert into tallymark.inbox (id, source, topic, partition, "offset", position, key, value, headers, consumer)
select %s, 'kafka:transfers', topic, 0, %s, %s, key, value, %s::json, 'ledger' from tallymark.outbox where position = %s
"""
QUEUE = """
insert into tallymark.queue (consumer, key_hash, source, id, topic, partition, "offset")
values ('ledger', %s, 'kafka:transfers', %s, 'transfers', 0, 3)
"""
APPLY = """
insert into tallymark.applications (id, source, consumer, topic, partition, attempt, outcome)
values (%s, 'kafka:transfers', 'ledger', 'transfers', 0, 1, 'applied')
"""


ALICE = key_hash("transfers", b"alice", uuid.UUID(int=0))


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the outbox, as a source tells it."""

    position: int
    id: uuid.UUID
    topic: str
    partition: int | None
    key: bytes | None
    value: bytes | None
    headers: dict[str, Any]
    added_at: datetime = datetime(2026, 11, 1, tzinfo=UTC)

    @property
    def value_bytes(self) -> int | None:
        return None if self.value is None else len(self.value)


class Rows:
    """Who can say what was sent: the outbox itself."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground

    def sent_to(
        self,
        consumer: str,  # noqa: ARG002 - the port's shape
        *,
        since: datetime | int | None = None,
        until: datetime | int | None = None,  # noqa: ARG002
        topics: Sequence[str] = (),  # noqa: ARG002
    ) -> Iterator[Row]:
        rows = self._ground.query(
            "select position, id, topic, partition, key, value, headers from tallymark.outbox"
            " where position >= %s order by position",
            since or 0,
        )
        return (Row(*row) for row in rows)


@pytest.fixture
def one_key(tables: str) -> Ground:
    """Two of alice's, 1 and 3."""
    return Ground(tables, ["alice", "bob", "alice"])


def repaired(
    ground: Ground,
    since: int | None = None,
    *,
    any_order: bool = False,
    limit: int = 100,
    dry_run: bool = False,
) -> Repaired:
    options = {"until": None, "topics": (), "limit": limit, "dry_run": dry_run, "who": "ann", "reason": ""}
    repair = Repair(ground.url, "ledger", place=lambda _key, _count: 0)
    return repair.run(Rows(ground), since=since, any_order=any_order, **options)  # type: ignore[arg-type]


def carols(ground: Ground, position: int, *, offset: int | None = 9, partition: int = 0) -> None:
    """The consumer has kept one of another key."""
    ground.query(
        'insert into tallymark.inbox (id, source, topic, partition, "offset", position, key, value, consumer)'
        " values (%s, 'kafka:transfers', 'transfers', %s, %s, %s, 'carol', 'x', 'ledger')",
        *(new_id(), partition, offset, position),
    )


def redriven(ground: Ground, *positions: int) -> Redriven:
    store = ReplayStore(ground.url, "ledger")
    try:
        return store.redrive([in_log(ground, each) for each in positions], any_order=False)
    finally:
        store.close()


def retried(ground: Ground, number: int) -> Change:
    failed = InboxFailed(ground.url)
    return failed.retry(who="ann", reason="", ids=[ground.ids[number]], consumer="ledger")


def queue(ground: Ground) -> list[str]:
    return [row[0] for row in ground.query("select id::text from tallymark.queue order by seq")]


@pytest.mark.parametrize("since", [None, 4])
def test_a_resend_is_taken_for_as_old_as_its_original(one_key: Ground, since: int | None) -> None:
    """Pitfall 18: it was written again behind what was applied."""
    one_key.keep(1)
    one_key.keep(2)
    one_key.resend(0, any_order=True)
    done = repaired(one_key, since)
    assert (done.kept, list(done.refused)) == (0, [one_key.ids[0]])
    assert "a later message of its key" in done.refused[one_key.ids[0]]
    # One that does not say where its original stood, as they were sent before.
    one_key.query("""update tallymark.outbox set headers = '{"tm_resend":"1"}' where position = 4""")
    assert "a later message of its key" in repaired(one_key).refused[one_key.ids[0]]
    done = repaired(one_key, 4)
    assert "where its original stood" in done.refused[one_key.ids[0]]
    assert repaired(one_key, any_order=True).kept == 1


def test_those_of_a_key_are_queued_by_where_they_were_written(one_key: Ground) -> None:
    """The first of them is known by its resend alone; and what stands in the queue may be a resend too."""
    one_key.keep(1)
    one_key.resend(0, any_order=True)
    # The consumer has read on.
    carols(one_key, 9)
    assert repaired(one_key, 2).kept == 2
    assert queue(one_key) == [one_key.ids[0], one_key.ids[2]]
    one_key.query("delete from tallymark.queue where id::text = %s", one_key.ids[2])
    one_key.query("delete from tallymark.inbox where id::text = %s", one_key.ids[2])
    assert repaired(one_key).kept == 1
    assert queue(one_key) == [one_key.ids[0], one_key.ids[2]]


def test_what_the_consumer_has_yet_to_read_is_left_to_kafka(one_key: Ground) -> None:
    """Both of alice's are unread, and only the second was asked for: taken, it would be applied first."""
    done = repaired(one_key, 2)
    assert (done.lacking, done.kept, done.unread, done.refused) == (2, 0, 2, {})
    # From another partition, or repaired: that says nothing of this one.
    carols(one_key, 9, offset=None)
    carols(one_key, 9, partition=1)
    assert repaired(one_key, 2).unread == 2
    # Asked for all, they are taken in order.
    assert (repaired(one_key).kept, queue(one_key)) == (3, one_key.ids)


def test_what_the_consumer_has_passed_is_taken(one_key: Ground) -> None:
    carols(one_key, 3)
    done = repaired(one_key, 2)
    assert (done.kept, done.unread) == (1, 1)
    assert queue(one_key) == [one_key.ids[1]]


@pytest.mark.parametrize("declared", ["unordered", "versioned", "any_order"])
def test_who_takes_any_order_is_given_what_it_has_yet_to_read(one_key: Ground, declared: str) -> None:
    if declared != "any_order":
        one_key.enlisted(**{declared: ("transfers",)})
    assert repaired(one_key, 2, any_order=declared == "any_order").kept == 2


def test_a_resend_that_was_applied_is_not_later_than_what_followed_its_original(one_key: Ground) -> None:
    one_key.keep(1)
    one_key.query(KEEP_AT, one_key.ids[0], 4, 4, AGAIN, 1)
    assert repaired(one_key).kept == 1
    assert redriven(one_key, 3).repeated == 1
    one_key.query("delete from tallymark.queue")
    one_key.query("delete from tallymark.inbox where id::text = %s", one_key.ids[2])
    assert redriven(one_key, 3).kept == 1


def test_who_died_under_its_id_and_what_order_means_count_here_too(one_key: Ground) -> None:
    one_key.keep(1)
    one_key.keep(2)
    one_key.query(DIE, 77, one_key.ids[2])
    assert list(repaired(one_key).refused) == [one_key.ids[0]]
    one_key.enlisted(unordered=("transfers",))
    assert repaired(one_key).kept == 1


@pytest.mark.parametrize("later", ["repaired", "applied under an older id", "queued under an older id"])
def test_a_replay_sees_whatever_is_later(one_key: Ground, later: str) -> None:
    """Kept without an offset; or written later under an id that is older, as what was delayed has."""
    if later == "repaired":
        one_key.query(KEEP_AT, one_key.ids[2], None, 3, "{}", 3)
    else:
        one_key.query("select tallymark.make_inbox_partitions(now())")
        (low,) = one_key.query("select tallymark.id_floor(now() - interval '3 days')::text")[0]
        older = f"{low[:14]}7{low[15:]}"
        one_key.query(KEEP_AT, older, 3, 3, "{}", 3)
        if later.startswith("applied"):
            one_key.query(APPLY, older)
        else:
            one_key.query(QUEUE, ALICE, older)
    assert redriven(one_key, 1).behind == 1
    # And so does whoever tries it again: it waits in its place, before what waits.
    refused = retried(one_key, 0).refused
    assert bool(refused) == (not later.startswith("queued"))
    assert refused or queue(one_key)[0] == one_key.ids[0]


def test_a_replay_takes_a_resend_for_as_old_as_its_original(one_key: Ground) -> None:
    one_key.query(KEEP_AT, one_key.ids[2], 3, 3, "{}", 3)
    one_key.resend(0, any_order=True)
    assert redriven(one_key, 4).behind == 1


@pytest.mark.parametrize("declared", ["unordered", "versioned"])
def test_a_replay_minds_order_where_the_handler_does(one_key: Ground, declared: str) -> None:
    one_key.query(KEEP_AT, one_key.ids[2], 3, 3, "{}", 3)
    one_key.enlisted(**{declared: ("transfers",)})
    assert (redriven(one_key, 1).kept, queue(one_key)) == (1, [one_key.ids[0]])


def test_a_dead_letter_is_put_back_by_where_it_was_written(one_key: Ground) -> None:
    """A resend that was given again behind a later one: that is applied, or waits and goes after it."""
    one_key.query(KEEP_AT, one_key.ids[2], 3, 3, "{}", 3)
    one_key.resend(0, any_order=True)
    assert redriven(one_key, 4).behind == 1
    assert "a later message of its key was applied" in retried(one_key, 0).refused[one_key.ids[0]]
    # Another one under the later one's id died: that one was applied all the same.
    one_key.query(DIE, 77, one_key.ids[2])
    assert retried(one_key, 0).changed == []
    one_key.query(QUEUE, ALICE, one_key.ids[2])
    assert len(retried(one_key, 0).changed) == 1
    assert queue(one_key) == one_key.ids[::2]


def test_a_dead_letter_of_who_goes_by_versions_is_put_back(one_key: Ground) -> None:
    one_key.query(KEEP_AT, one_key.ids[2], 3, 3, "{}", 3)
    assert redriven(one_key, 1).behind == 1
    one_key.enlisted(versioned=("transfers",))
    assert len(retried(one_key, 0).changed) == 1
