"""Keeping (P4, pitfalls 13 and 16): an id is kept once per consumer and source, and what comes again is told apart."""

from __future__ import annotations

import threading
import uuid
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from tallymark.errors import OutcomeUnknown, Problem
from tallymark.inbox.ports import Kept, Received
from tallymark.message import new_id
from tallymark.store.postgres.inboxstore import PostgresInboxStore
from tests.inbox_store.conftest import LOGGED, MakeStore, message, query
from tests.waiting import wait_for


def kept_ids(ledger: str) -> set[uuid.UUID]:
    return {row[0] for row in query(ledger, "select id from tallymark.inbox")}


def keep(store: PostgresInboxStore, *messages: Received) -> Kept:
    with store.begin() as tx:
        return tx.keep(messages)


def told(kept: Kept) -> tuple[list[int], list[int], list[int]]:
    return list(kept.new), list(kept.repeated), list(kept.reused)


def test_every_column_arrives_as_it_was(ledger: str, store: PostgresInboxStore) -> None:
    whole = message(7)
    bare = message(
        None,
        key=None,
        value=None,
        logged_at=None,
        headers="{}",
        named="order 1",
        id=uuid.UUID(int=5),
        source="ü",
    )
    half = message(8, position=None, key=b"", value=b"", partition=2)
    assert told(keep(store, whole, bare, half)) == ([0, 1, 2], [], [])
    rows = query(
        ledger,
        'select id, source, named, topic, partition, "offset", position, key, value, headers::text, logged_at, consumer'
        " from tallymark.inbox",
    )
    assert set(rows) == {(*whole, "ledger"), (*bare, "ledger"), (*half, "ledger")}


def test_thousands_go_in_as_they_are(ledger: str, store: PostgresInboxStore) -> None:
    messages = [message(n, value=b"%d" % n) for n in range(3001)]
    assert len(keep(store, *messages).new) == 3001
    assert dict(query(ledger, 'select "offset", value from tallymark.inbox')) == {
        n: b"%d" % n for n in range(3001)
    }


def test_what_comes_again_is_told_from_what_reuses_its_id(ledger: str, store: PostgresInboxStore) -> None:
    first, second = message(0), message(1)
    keep(store, first, second)
    again = first._replace(offset=10)
    other_value, other_key = second._replace(value=b"other"), second._replace(key=None)
    assert told(keep(store, message(2), again, other_value, other_key)) == ([0], [1], [2, 3])
    assert query(ledger, 'select "offset" from tallymark.inbox where id = %s', [first.id]) == [(0,)]


def test_the_same_id_twice_in_one_batch(store: PostgresInboxStore) -> None:
    first = message(0)
    same, other = first._replace(offset=1), first._replace(offset=2, value=None)
    assert told(keep(store, first, same, other)) == ([0], [1], [2])


def test_each_consumer_and_each_source_has_ids_of_its_own(make_store: MakeStore) -> None:
    """Pitfall 13: the second consumer of one database, and the second source of one id, are not repeats."""
    ledger, audit, once = make_store("ledger"), make_store("audit"), message(0)
    assert told(keep(ledger, once)) == ([0], [], [])
    assert told(keep(audit, once)) == ([0], [], [])
    assert told(keep(ledger, once._replace(source="another bank"))) == ([0], [], [])
    assert told(keep(ledger, once)) == ([], [0], [])


def test_what_was_written_before_stays_when_an_id_comes_again(ledger: str, store: PostgresInboxStore) -> None:
    first = message(0)
    keep(store, first)
    with store.begin() as tx:
        tx.handed.execute("update account set balance = 1 where name = 'alice'")
        assert told(tx.keep([first, message(1)])) == ([1], [0], [])
    assert query(ledger, "select balance from account where name = 'alice'") == [(1,)]


def test_a_race_for_one_id_has_one_winner(make_store: MakeStore, ledger: str) -> None:
    """Two owners keep the same batch; the second waits for the first, and then sees it as repeated."""
    first, second, batch = make_store(), make_store(), [message(n) for n in range(3)]
    found: list[Kept] = []
    with first.begin() as tx:
        tx.keep(batch)
        late = threading.Thread(target=lambda: found.append(keep(second, *batch)))
        late.start()
        waiting = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
        wait_for(lambda: query(ledger, waiting)[0][0], what="the second waits for the first")
    late.join(20)
    assert [told(kept) for kept in found] == [([], [0, 1, 2], [])]


def test_ids_that_are_no_uuid7_have_a_partition_of_their_own(ledger: str, store: PostgresInboxStore) -> None:
    derived = uuid.UUID(int=(1 << 112) - 1)
    long_ago = uuid.UUID("00010000-0000-7000-8000-000000000000")
    keep(store, message(0, id=derived, named="order 1"), message(1), message(2, id=long_ago))
    rows = query(
        ledger, 'select "offset", relname from tallymark.inbox i join pg_class c on c.oid = i.tableoid'
    )
    assert dict(rows) == {0: "inbox_named", 1: f"inbox_{datetime.now(UTC):%Y%m%d}0000", 2: "inbox_past"}


@pytest.mark.parametrize(
    "id", [uuid.UUID(int=(1 << 128) - 1), uuid.UUID("0fffffff-ffff-7000-8000-000000000000")]
)
def test_an_id_that_has_no_partition_is_said_so(
    store: PostgresInboxStore, ledger: str, id: uuid.UUID
) -> None:
    with pytest.raises(Problem, match="no place for an id") as refused:
        keep(store, message(0), message(1, id=id))
    assert str(id) in str(refused.value)
    assert kept_ids(ledger) == set(), "nothing of the batch is kept without the rest"
    assert told(keep(store, message(0))) == ([0], [], [])


def test_nothing_is_kept_of_a_block_that_raises(store: PostgresInboxStore, ledger: str) -> None:
    def fail() -> None:
        with store.begin() as tx:
            tx.keep([message(0)])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert kept_ids(ledger) == set()


@pytest.mark.parametrize("at", ["a statement", "the commit"])
def test_a_server_that_goes_away_leaves_the_outcome_unknown_and_is_found_again(
    store: PostgresInboxStore, ledger: str, at: str
) -> None:
    def lose() -> None:
        with store.begin() as tx:
            tx.keep([message(0)])
            assert not tx.lost
            end_sessions(ledger)
            if at == "a statement":
                tx.keep([message(1)])

    with pytest.raises(OutcomeUnknown):
        lose()
    assert told(keep(store, message(2))) == ([0], [], [])
    assert len(kept_ids(ledger)) == 1


def test_partitions_stand_ready_for_fourteen_days(fresh_ledger: str) -> None:
    at = int((datetime.now(UTC) + timedelta(days=13, hours=23)).timestamp() * 1000)
    store = PostgresInboxStore(fresh_ledger, "ledger")
    keep(store, message(0, id=uuid.UUID(int=(at << 80) | (new_id().int & ((1 << 80) - 1)))))
    store.close()
    more = "select tallymark.make_inbox_partitions(now() + interval '20 days')"
    assert query(fresh_ledger, more) == [(6,)]
    assert query(fresh_ledger, more) == [(0,)]


def test_nobody_makes_partitions_without_end(ledger: str) -> None:
    with pytest.raises(psycopg.errors.RaiseException, match="at most 400"):
        query(ledger, "select tallymark.make_inbox_partitions(now() + interval '10 years')")


def test_bounds_of_time_and_id_agree(ledger: str) -> None:
    id_ = new_id()
    ((at, floor),) = query(ledger, "select tallymark.id_time(%s), tallymark.id_floor(%s)", [id_, LOGGED])
    assert at == datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=id_.int >> 80)
    assert floor.int == int(LOGGED.timestamp() * 1000) << 80


def end_sessions(ledger: str) -> None:
    query(
        ledger,
        "select pg_terminate_backend(pid, 5000) from pg_stat_activity"
        " where datname = current_database() and pid <> pg_backend_pid()",
    )
