"""The queue (decision 8, pitfalls 17 and 28): a key's messages in their order, each key apart from the others."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import pytest

from tallymark.errors import Stale
from tallymark.inbox.ports import Application, Claim, ClaimBounds, Failed, InboxTx, Queued
from tallymark.lifecycle import ApplicationOutcome
from tallymark.store.postgres.handed import PsycopgHands
from tallymark.store.postgres.inboxfailed import InboxFailed
from tallymark.store.postgres.inboxstore import PostgresInboxStore
from tallymark.store.postgres.queue import NOT_IN_THE_INBOX, Queue, together
from tallymark.store.queries import load
from tests.inbox_store.conftest import MakeStore, message, query, queued


def fill(store: PostgresInboxStore, *rows: Queued) -> list[Queued]:
    """Keep and queue."""
    with store.begin() as tx:
        tx.keep([row.message for row in rows])
        return [row._replace(seq=seq) for row, seq in zip(rows, tx.enqueue(rows), strict=True)]


def claim(
    tx: InboxTx,
    after: int = -(2**63),
    *,
    topics: Collection[str] = ("transfers",),
    keys: int = 10,
    rows: int = 100,
    max_bytes: int = 1 << 20,
    apart: Collection[int] = (),
) -> Claim:
    return tx.claim(after, ClaimBounds(topics, keys, rows, max_bytes, apart))


def seen(store: PostgresInboxStore, **bounds: Any) -> dict[int, list[int | None]]:
    """Offsets by key, as a worker would get them now."""
    with store.begin() as tx:
        found: dict[int, list[int | None]] = {}
        for row in claim(tx, **bounds).rows:
            found.setdefault(row.key_hash, []).append(row.message.offset)
        return found


def later(row: Queued, again_in_s: float | None, *, hold_key: bool = True) -> Failed:
    return Failed(row, "insufficient funds", "Traceback …", again_in_s, hold_key)


def fail(store: PostgresInboxStore, *failures: Failed) -> None:
    with store.begin() as tx:
        tx.fail(failures)


def test_a_claim_gives_back_what_was_kept(store: PostgresInboxStore) -> None:
    rows = fill(store, queued(0, 1), queued(1, -5), queued(2, 1))
    with store.begin() as tx:
        found = claim(tx).rows
    assert sorted(found, key=lambda row: row.message.offset or 0) == rows


def test_seqs_rise_with_the_order_and_across_transactions(store: PostgresInboxStore) -> None:
    first = fill(store, *(queued(n) for n in range(2500)))
    second = fill(store, *(queued(n) for n in range(2500, 2503)))
    seqs = [row.seq for row in (*first, *second)]
    assert seqs == sorted(set(seqs), key=lambda seq: seq or 0)
    assert seen(store, rows=5000, max_bytes=1 << 30) == {1: list(range(2503))}


def test_a_key_is_held_while_it_has_rows(store: PostgresInboxStore) -> None:
    with store.begin() as tx:
        assert not tx.any_queued()
        assert tx.held([1, 2, 3]) == frozenset()
    rows = fill(store, queued(0, 1), queued(1, 3))
    with store.begin() as tx:
        assert tx.any_queued()
        assert tx.held([1, 2, 3]) == {1, 3}
        tx.finish(rows[:1])
        assert tx.held([1, 2, 3]) == {3}


def test_two_consumers_have_queues_of_their_own(make_store: MakeStore) -> None:
    ledger, audit = make_store("ledger"), make_store("audit")
    fill(ledger, queued(0))
    with ledger.begin() as tx:
        assert len(claim(tx).rows) == 1
        with audit.begin() as other:
            assert not other.any_queued()
        fill(audit, queued(0))
        assert seen(audit) == {1: [0]}, "one consumer's lock does not hold up the other's key"


def test_a_key_that_someone_works_on_is_passed_over(make_store: MakeStore) -> None:
    """Pitfall 17: never alice's second message while another holds her first."""
    one, two = make_store(), make_store()
    fill(one, queued(0, 1), queued(1, 1), queued(2, 2))
    with one.begin() as tx:
        first = claim(tx, keys=1).rows
        assert [row.message.offset for row in first] == [0, 1]
        assert seen(two) == {2: [2]}
        tx.finish(first[:1])
        assert seen(two) == {2: [2]}
    assert seen(two) == {1: [1], 2: [2]}


def test_a_slow_key_is_claimed_with_no_other_and_by_one_alone(make_store: MakeStore) -> None:
    one, two = make_store(), make_store()
    fill(one, *(queued(n, n) for n in range(1, 6)))
    with one.begin() as tx:
        before = claim(tx, apart={3})
        assert [row.key_hash for row in before.rows] == [1, 2]
        with two.begin() as other:
            slow = claim(other, before.after, apart={3})
            assert [row.key_hash for row in slow.rows] == [3]
            with make_store().begin() as third:
                assert [row.key_hash for row in claim(third, before.after, apart={3}).rows] == [4, 5]


@pytest.mark.parametrize(
    ("keys", "apart", "runs"),
    [
        ([], {1}, []),
        ([1, 2], set(), [[1, 2]]),
        ([1, 2, 3, 4], {1, 3}, [[1], [2], [3], [4]]),
        ([1, 2, 3, 4], {2, 3}, [[1], [2], [3], [4]]),
        ([1, 2, 3], {9}, [[1, 2, 3]]),
    ],
)
def test_keys_are_cut_into_runs(keys: list[int], apart: set[int], runs: list[list[int]]) -> None:
    assert together(keys, apart) == runs


class Interrupted(Queue):
    """A worker that something happens to between its look at the keys and its lock."""

    meanwhile: Callable[[], None]

    def _rows(self, name: str, **parameters: Any) -> list[tuple[Any, ...]]:
        if name == "claim_lock":
            self.meanwhile()
        return super()._rows(name, **parameters)


def test_what_was_finished_between_the_look_and_the_lock_is_not_given_out_again(
    store: PostgresInboxStore, ledger: str
) -> None:
    """Pitfall 17: rows are read with a snapshot taken after the lock was had, not with that of the look."""
    first, _, third = fill(store, queued(0, 1), queued(1, 1), queued(2, 2))

    def finish() -> None:
        with store.begin() as tx:
            tx.finish([first, third])

    hands = PsycopgHands(ledger, schema="tallymark", application="test")
    with hands.transaction() as connection:
        worker = Interrupted(connection, schema="tallymark", consumer="ledger")
        worker.meanwhile = finish
        found = worker.claim(0, ClaimBounds(["transfers"], keys=10, rows=10, max_bytes=1000))
        assert [row.message.offset for row in found.rows] == [1]
    hands.close()


def test_a_key_waits_for_its_lowest_row(store: PostgresInboxStore) -> None:
    rows = fill(store, queued(0, 1), queued(1, 1), queued(2, 2), queued(3, 2), queued(4, 3), queued(5, 3))
    fail(store, later(rows[0], 3600), later(rows[2], None), later(rows[5], 3600))
    assert seen(store) == {3: [4]}, "and a later one that is not due cuts its key off"
    with store.begin() as tx:
        assert tx.held([1, 2, 3]) == {1, 2, 3}


def test_a_retry_comes_at_its_time_with_its_attempts(store: PostgresInboxStore, ledger: str) -> None:
    (row, behind) = fill(store, queued(0), queued(1))
    fail(store, later(row, 0.0))
    with store.begin() as tx:
        found = claim(tx).rows
    assert found == [row._replace(attempts=1), behind]
    ((state, reason),) = query(ledger, "select state, reason from tallymark.queue where attempts = 1")
    assert (state, reason) == ("retrying", "insufficient funds")


def test_a_dead_letter_is_a_full_copy_and_keeps_its_place(store: PostgresInboxStore, ledger: str) -> None:
    (row,) = fill(store, queued(0))
    fail(store, later(row._replace(attempts=4), None))
    ((state, attempts),) = query(ledger, "select state, attempts from tallymark.queue")
    assert (state, attempts) == ("dead", 5)
    (letter,) = query(
        ledger,
        'select id, source, named, topic, partition, "offset", position, key, value, headers::text, logged_at, consumer,'
        " key_hash, seq, state, reason, traceback, attempts from tallymark.dead_letters",
    )
    assert letter == (
        *row.message,
        "ledger",
        1,
        row.seq,
        "dead",
        "insufficient funds",
        "Traceback …",
        5,
    )


def test_a_dead_letter_that_does_not_hold_its_key_lets_it_go_on(
    store: PostgresInboxStore, ledger: str
) -> None:
    first, _ = fill(store, queued(0), queued(1))
    fail(store, later(first, None, hold_key=False))
    assert seen(store) == {1: [1]}
    assert query(ledger, "select seq, key_hash, state from tallymark.dead_letters") == [(None, 1, "dead")]


def test_what_fails_before_it_was_queued_gets_a_place(store: PostgresInboxStore, ledger: str) -> None:
    again, dead, passed = queued(0, 1), queued(1, 2), queued(2, 3)
    with store.begin() as tx:
        tx.keep([row.message for row in (again, dead, passed)])
        tx.fail([later(again, 3600), later(dead, None), later(passed, None, hold_key=False)])
    rows = query(ledger, "select key_hash, state, attempts from tallymark.queue order by 1")
    assert rows == [(1, "retrying", 1), (2, "dead", 1)]
    letters = query(ledger, "select key_hash, seq is null from tallymark.dead_letters order by 1")
    assert letters == [(2, False), (3, True)]


def test_a_dead_letter_put_back_is_applied_or_dies_as_the_same_one(
    store: PostgresInboxStore, ledger: str
) -> None:
    first, second = fill(store, queued(0, 1), queued(1, 2))
    fail(store, later(first, None), later(second, None))
    query(ledger, "update tallymark.dead_letters set state = 'retrying'")
    fail(store, later(second, None))
    with store.begin() as tx:
        tx.finish([first])
    states = query(ledger, "select key_hash, state from tallymark.dead_letters order by key_hash")
    assert states == [(1, "applied"), (2, "dead")]


def test_finishing_what_is_gone_is_refused(store: PostgresInboxStore) -> None:
    rows = fill(store, queued(0), queued(1))
    with store.begin() as tx:
        tx.finish(rows[:1])
    with pytest.raises(Stale, match="1 of 2"), store.begin() as tx:
        tx.finish(rows)
    assert seen(store) == {1: [1]}


def test_a_claim_goes_round_from_where_it_is_told(store: PostgresInboxStore) -> None:
    fill(store, *(queued(n, n) for n in range(5)))
    turns, after = [], 2
    for _ in range(3):
        with store.begin() as tx:
            found = claim(tx, after, keys=2)
            turns.append([row.key_hash for row in found.rows])
            after = found.after
    assert turns == [[3, 4], [0, 1], [2, 3]]


def test_a_claim_is_bounded_in_rows_and_bytes_and_never_empty(store: PostgresInboxStore) -> None:
    fill(store, *(queued(n, n % 3, value=b"x" * 1000) for n in range(12)))
    assert seen(store, rows=3) == {0: [0], 1: [1], 2: [2]}
    assert seen(store, rows=6) == {0: [0, 3], 1: [1, 4], 2: [2, 5]}
    assert sum(map(len, seen(store, max_bytes=5000).values())) == 5
    assert seen(store, max_bytes=1) == {0: [0]}
    with store.begin() as tx:
        found = claim(tx, keys=3, max_bytes=1500)
        assert ([row.key_hash for row in found.rows], found.after) == ([0, 1], 1)


def test_what_nobody_handles_any_more_stops_nobody(store: PostgresInboxStore, ledger: str) -> None:
    """A handler was taken away: its messages wait, and are there when it comes back."""
    fill(store, queued(0, 1, topic="fees"), queued(1, 2), queued(2, 3, topic="fees"), queued(3, 4))
    fill(store, queued(4, 4, topic="fees"), queued(5, 4))  # two keys with one hash: in order all the same
    assert seen(store) == {2: [1], 4: [3]}
    assert seen(store, topics=["fees"]) == {1: [0], 3: [2]}
    assert seen(store, topics=["fees", "transfers"]) == {1: [0], 2: [1], 3: [2], 4: [3, 4, 5]}
    assert seen(store, topics=[]) == {}
    fill(store, *(queued(n, n, topic="fees") for n in range(-50, 0)))
    assert seen(store, keys=1) == {2: [1]}, "however many there are before it"


def test_what_the_inbox_does_not_have_is_a_dead_letter_and_stops_its_key_alone(
    store: PostgresInboxStore, ledger: str
) -> None:
    rows = fill(store, queued(0, 1), queued(1, 1), queued(2, 1), queued(3, 2))
    lost = rows[1].message
    query(ledger, "delete from tallymark.inbox where id = %s", [lost.id])
    assert seen(store) == {1: [0], 2: [3]}
    states = query(ledger, "select state from tallymark.queue order by seq")
    assert states == [("ready",), ("dead",), ("ready",), ("ready",)], "its place stays, and its key waits"
    (letter,) = query(
        ledger, 'select id, "offset", key_hash, seq, state, reason, attempts from tallymark.dead_letters'
    )
    assert letter == (lost.id, 1, 1, rows[1].seq, "dead", NOT_IN_THE_INBOX, 0)
    with store.begin() as tx:
        tx.finish([rows[0], rows[3]])
    assert seen(store) == {}

    failed = InboxFailed(ledger)
    assert failed.retry(ids=[str(lost.id)], who="ann").changed == [str(lost.id)]
    assert seen(store) == {}, "it is still not there"
    with store.begin() as tx:
        tx.keep([lost])  # the partition was put back
    assert failed.retry(ids=[str(lost.id)], who="ann").changed == [str(lost.id)]
    assert seen(store) == {1: [1, 2]}


def test_a_claim_that_finds_nothing_stays_where_it_is(store: PostgresInboxStore) -> None:
    with store.begin() as tx:
        assert claim(tx, 7) == Claim((), 7)


def test_a_long_queue_of_one_key_does_not_slow_the_others(store: PostgresInboxStore, ledger: str) -> None:
    """The look goes from key to key, not along the rows of one: counted in rows, for time depends on the machine."""
    fill(store, *(queued(n, n) for n in range(0, 400, 4)))
    query(
        ledger,
        "insert into tallymark.queue (consumer, key_hash, seq, source, id, topic, partition, state)"
        " select 'ledger', 1, n, 'bank', gen_random_uuid(), 'transfers', 0, 'dead' from generate_series(1, 100000) n",
    )
    query(ledger, "vacuum analyze tallymark.queue")
    look = load("tallymark.store.postgres", "queue.sql", "tallymark")["claim_scan"]
    parameters = {"consumer": "ledger", "after": 0, "candidates": 50, "topics": ["transfers"]}
    ((plan,),) = query(ledger, f"explain (analyze, format json) {look}", parameters)[0]
    assert 50 <= rows_read(plan["Plan"]) < 150
    with store.begin() as tx:
        assert len(claim(tx, 0, keys=50).rows) == 50


def rows_read(node: dict[str, Any]) -> float:
    """By all scans of tables in a plan."""
    own = node["Actual Rows"] + node.get("Rows Removed by Filter", 0) if "Relation Name" in node else 0
    return float(own * node["Actual Loops"] + sum(rows_read(each) for each in node.get("Plans", ())))


def test_no_row_of_the_inbox_is_ever_changed(store: PostgresInboxStore, ledger: str) -> None:
    """Pitfall 28: a message's state is derived; the wide row is written once, and stays where it was written."""
    first, second, third = fill(store, queued(0, 1), queued(1, 2), queued(2, 3))
    versions = "select id, tableoid, ctid::text, xmin::text from tallymark.inbox order by id"
    before = query(ledger, versions)
    fail(store, later(first, 0.0))
    fail(store, later(second, None))
    fail(store, later(third, None, hold_key=False))
    with store.begin() as tx:
        claim(tx)
        tx.finish([first])
        tx.record([Application(first.message, ApplicationOutcome.APPLIED, 2)])
    assert query(ledger, versions) == before
    assert len(before) == 3


def test_quarantine_takes_what_cannot_be_kept(store: PostgresInboxStore, ledger: str) -> None:
    reused, odd = message(0), message(1, source="a\0b", named="\0", key=None, value=None)
    with store.begin() as tx:
        tx.quarantine([(reused, "its id was used for something else"), (odd, "no\0such")])
        tx.quarantine([(reused, "again"), (reused._replace(offset=9), "elsewhere")])
    rows = query(ledger, 'select "offset", state, reason, source from tallymark.dead_letters order by 1')
    assert rows == [
        (0, "dead", "its id was used for something else", "bank"),
        (1, "dead", "no\ufffdsuch", "a\ufffdb"),
        (9, "dead", "elsewhere", "bank"),
    ]
