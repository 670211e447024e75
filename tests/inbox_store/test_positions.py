"""Positions (P4, pitfalls 15 and 23): moved only by their owner of this epoch, and only from where they stand."""

from __future__ import annotations

import threading
from dataclasses import replace

import psycopg
import pytest

from tallymark.errors import Problem, SchemaMismatch, UsageError
from tallymark.inbox.ports import Place, Queued, StalePositions
from tallymark.lifecycle import OwnerKind, Role
from tallymark.store.postgres.inboxoperators import InboxOperators
from tallymark.store.postgres.inboxstore import PostgresInboxStore
from tallymark.store.postgres.migrations import migrate
from tallymark.store.postgres.tally import TallyConsumers
from tallymark.store.queries import load
from tests.inbox_store.conftest import (
    LOGGED,
    MakeStore,
    instance,
    message,
    move,
    offsets,
    query,
    taken,
    wanted,
)
from tests.waiting import wait_for


def test_a_new_partition_starts_where_it_is_told_and_an_old_one_where_it_stands(
    store: PostgresInboxStore,
) -> None:
    (new,) = store.take("me", OwnerKind.SERVICE, 60, [wanted(start=7)])
    assert (new.next_offset, new.epoch, new.owner, new.refused) == (7, 1, "me", False)
    with store.begin() as tx:
        tx.advance([move(new, 12)])
    (again,) = store.take("other", OwnerKind.SERVICE, 60, [wanted(start=0)])
    assert (again.next_offset, again.epoch, again.leader_epoch, again.topic_id) == (
        12,
        2,
        3,
        "id-of-transfers",
    )


def test_an_offset_stands_beside_its_own_leaders_epoch_or_beside_none(store: PostgresInboxStore) -> None:
    """Whoever moves it and knows no epoch (Spark, or markers alone) leaves none: the old one is another offset's."""
    place = taken(store, "me", 0)[0]
    with store.begin() as tx:
        tx.advance([move(place, 12)])
    with store.begin() as tx:
        tx.advance([move(place, 12, start=12)._replace(leader_epoch=None)])
    assert store.positions()[place.place].leader_epoch == 3, "it has not moved"
    with store.begin() as tx:
        tx.advance([move(place, 15, start=12)._replace(leader_epoch=None)])
    assert store.positions()[place.place].leader_epoch is None


def test_a_move_is_counted_and_dated(store: PostgresInboxStore, ledger: str) -> None:
    zero, one = taken(store, "me", 0, 1)
    with store.begin() as tx:
        tx.keep([message(0), message(1), message(0, partition=1)])
        tx.advance([move(zero, 5), move(one, 1)])
    rows = query(ledger, "select partition, next_offset, kept, logged_at from tallymark.positions order by 1")
    assert rows == [(0, 5, 2, LOGGED), (1, 1, 1, LOGGED)]


def test_the_owner_of_an_older_epoch_changes_nothing(store: PostgresInboxStore, ledger: str) -> None:
    zero, one = taken(store, "me", 0, 1)
    taken(store, "successor", 1)

    def write() -> None:
        with store.begin() as tx:
            tx.keep([message(0)])
            tx.advance([move(zero, 5), move(one, 5)])

    with pytest.raises(StalePositions) as stale:
        write()
    assert stale.value.places == {("transfers", 1)}
    assert offsets(store) == {("transfers", 0): 0, ("transfers", 1): 0}
    assert query(ledger, "select count(*) from tallymark.inbox") == [(0,)], "nor is anything kept"


def test_a_batch_that_was_dropped_is_not_skipped(store: PostgresInboxStore) -> None:
    """Pitfall 15: the right epoch, but not from where the position stands."""
    (mine,) = taken(store)
    with store.begin() as tx:
        tx.advance([move(mine, 5)])
    with pytest.raises(StalePositions), store.begin() as tx:
        tx.advance([move(mine, 20, start=10)])
    with pytest.raises(StalePositions), store.begin() as tx:
        tx.advance([move(mine, 5, start=0)])
    assert offsets(store) == {("transfers", 0): 5}


def test_a_position_that_was_given_up_is_not_moved_by_what_was_begun_before(
    store: PostgresInboxStore,
) -> None:
    (mine,) = taken(store)
    store.release("me", {mine.place: mine.epoch})
    assert store.positions()[mine.place].owner is None
    with pytest.raises(StalePositions), store.begin() as tx:
        tx.advance([move(mine, 5)])


def test_only_what_is_still_ours_is_given_up(store: PostgresInboxStore) -> None:
    (mine,) = taken(store)
    (theirs,) = taken(store, "successor")
    store.release("me", {mine.place: mine.epoch})
    store.release("me", {mine.place: theirs.epoch})
    store.release("successor", {mine.place: mine.epoch})
    assert store.positions()[mine.place].owner == "successor"


def test_the_other_kinds_lease_is_respected_and_ends(store: PostgresInboxStore) -> None:
    """Pitfall 23: a service and a Spark job do not take from each other while the other one lives."""
    (service,) = taken(store)
    (refused,) = store.take("spark", OwnerKind.SPARK, 60, [wanted()])
    assert (refused.refused, refused.owner, refused.epoch) == (True, "me", service.epoch)
    with store.begin() as tx:
        tx.advance([move(service, 5)])  # the refusal changed nothing
    taken(store, "colleague")
    (mine,) = store.take("me", OwnerKind.SERVICE, 0, [wanted()])
    (spark,) = store.take("spark", OwnerKind.SPARK, 60, [wanted()])
    assert (spark.refused, spark.owner, spark.epoch) == (False, "spark", mine.epoch + 1)


def test_a_halted_position_stands_still(store: PostgresInboxStore) -> None:
    (mine,) = taken(store)
    store.halt(mine.place, mine.epoch + 1, "not ours to say")
    store.halt(mine.place, mine.epoch, "offsets 5 to 9 are gone")
    with pytest.raises(StalePositions), store.begin() as tx:
        tx.advance([move(mine, 5)])
    (again,) = taken(store, "other")
    assert again.halted == "offsets 5 to 9 are gone"


def test_a_heartbeat_tells_what_is_ours_and_whether_we_are_paused(
    store: PostgresInboxStore, ledger: str
) -> None:
    store.enlist(instance(), 60)
    zero, one = taken(store, "me", 0, 1)
    (lost,) = taken(store, "other", 1)
    standing = store.heartbeat("me", 60, {})
    assert (standing.paused, standing.epochs) == (False, {zero.place: zero.epoch})
    assert store.heartbeat("other", 60, {}).epochs == {one.place: lost.epoch}
    query(ledger, "update tallymark.consumers set paused = true")
    assert store.heartbeat("me", 60, {}).paused


def test_a_heartbeat_waits_for_nobody(make_store: MakeStore) -> None:
    """Its own batch holds the position's row: the heart beats on, or the group would think us dead."""
    worker, heart = make_store(), make_store()
    worker.enlist(instance(), 60)
    (mine,) = taken(worker)
    with worker.begin() as tx:
        tx.advance([move(mine, 5)])
        assert heart.heartbeat("me", 60, {mine.place: mine.epoch}).epochs == {mine.place: mine.epoch}


def lease_of(ledger: str, partition: int = 0) -> object:
    (row,) = query(ledger, "select lease_until from tallymark.positions where partition = %s", [partition])
    return row[0]


def test_a_heartbeat_renews_what_it_names_and_nothing_else(store: PostgresInboxStore, ledger: str) -> None:
    """A place that was taken under our name, and that we do not know of, must run out."""
    named, other, older = taken(store, "me", 0, 1, 2)
    before = [lease_of(ledger, partition) for partition in range(3)]
    store.heartbeat("me", 600, {named.place: named.epoch, older.place: older.epoch - 1})
    after = [lease_of(ledger, partition) for partition in range(3)]
    assert [one != two for one, two in zip(before, after, strict=True)] == [True, False, False]
    store.heartbeat("another", 600, {other.place: other.epoch})
    assert lease_of(ledger, 1) == before[1]


def test_a_heartbeat_says_whether_we_stand_among_the_instances(
    store: PostgresInboxStore, ledger: str
) -> None:
    assert not store.heartbeat("me", 60, {}).known
    store.enlist(instance(), 60)
    assert store.heartbeat("me", 60, {}).known
    query(ledger, "delete from tallymark.instances")
    assert not store.heartbeat("me", 60, {}).known


def test_positions_tell_whether_the_lease_runs(store: PostgresInboxStore) -> None:
    (mine,) = taken(store, "me", 0)
    store.take("me", OwnerKind.SERVICE, 0, [wanted(1)])
    store.found_topic([wanted(0, topic="fees")])
    assert mine.lease_alive
    alive = {place: position.lease_alive for place, position in store.positions().items()}
    assert alive == {("transfers", 0): True, ("transfers", 1): False, ("fees", 0): False}


def test_a_position_never_goes_back_by_a_move(store: PostgresInboxStore) -> None:
    (mine,) = store.take("me", OwnerKind.SERVICE, 60, [wanted(start=7)])
    with pytest.raises(StalePositions), store.begin() as tx:
        tx.advance([move(mine, 6)])
    with store.begin() as tx:
        tx.advance([move(mine, 7)])
    assert offsets(store) == {("transfers", 0): 7}


def test_a_topic_is_founded_whole_and_once(make_store: MakeStore) -> None:
    """Of two processes that start together, neither takes the other's partitions for ones that were added later."""
    one, two = make_store(), make_store()
    one.found_topic([wanted(0, start=10), wanted(1, start=20), wanted(0, topic="fees", start=3)])
    one.found_topic([])
    two.found_topic([wanted(0, start=11), wanted(1, start=21), wanted(2, start=0)])
    fresh = {("transfers", 0): 10, ("transfers", 1): 20, ("fees", 0): 3}
    assert offsets(one) == fresh
    assert {(p.owner, p.epoch) for p in one.positions().values()} == {(None, 0)}
    (mine,) = two.take("me", OwnerKind.SERVICE, 60, [wanted(1, start=99)])
    assert (mine.next_offset, mine.epoch, mine.topic_id, mine.refused) == (20, 1, "id-of-transfers", False)
    make_store("audit").found_topic([wanted(0, start=1)])
    assert offsets(one) == fresh


def test_two_that_found_a_topic_at_once_agree(make_store: MakeStore, ledger: str) -> None:
    """The second has looked before the first was done: it waits, looks again, and adds nothing."""
    store = make_store()
    lock = load("tallymark.store.postgres", "inbox.sql", "tallymark")["lock_topic"]
    with psycopg.connect(ledger) as first:
        first.execute(lock, {"consumer": "ledger", "topic": "transfers"})
        second = threading.Thread(target=store.found_topic, args=([wanted(0, start=5), wanted(1, start=5)],))
        second.start()
        locked = "select count(*) from pg_locks where locktype = 'advisory' and not granted"
        wait_for(lambda: query(ledger, locked)[0][0], what="the second waits for the first")
        first.execute(
            "insert into tallymark.positions (consumer, topic, partition, next_offset)"
            " values ('ledger', 'transfers', 0, 4)"
        )
    second.join(20)
    assert offsets(store) == {("transfers", 0): 4}


def test_leaving_gives_everything_up(store: PostgresInboxStore, ledger: str) -> None:
    store.enlist(instance(), 60)
    taken(store, "me", 0, 1)
    store.leave("me")
    assert {p.owner for p in store.positions().values()} == {None}
    assert query(ledger, "select count(*) from tallymark.instances") == [(0,)]


def test_fenced_writes_are_counted(store: PostgresInboxStore, ledger: str) -> None:
    taken(store, "me", 0, 1)
    store.count_fenced([("transfers", 1)])
    assert query(ledger, "select fenced from tallymark.positions order by partition") == [(0,), (1,)]


def test_one_name_reads_one_set_of_topics(make_store: MakeStore, ledger: str) -> None:
    store = make_store()
    store.enlist(instance("a", ("transfers", "fees")), 60)
    store.enlist(instance("b", ("fees", "transfers")), 60)
    with pytest.raises(
        UsageError, match=r"reads fees, transfers \(in b, which is running\), not loans"
    ) as refused:
        store.enlist(instance("c", ("loans",)), 60)
    assert "name of its own" in refused.value.remedy
    assert query(ledger, "select topics from tallymark.consumers") == [(["fees", "transfers"],)]
    store.leave("a")
    store.leave("b")
    store.enlist(instance("c", ("loans",)), 60)
    make_store("audit").enlist(instance("d", ("fees",), "audit"), 60)


def test_enlisting_makes_partitions_ahead(fresh_ledger: str) -> None:
    before = query(fresh_ledger, "select tallymark.inbox_upto()")
    newest = query(
        fresh_ledger,
        "select max(substring(relname from '_([0-9]+)$')) from pg_class where relname ~ '^inbox_[0-9]+$'",
    )
    query(fresh_ledger, f"drop table tallymark.inbox_{newest[0][0]}, tallymark.applications_{newest[0][0]}")
    store = PostgresInboxStore(fresh_ledger, "ledger")
    store.enlist(instance(), 60)
    store.close()
    assert query(fresh_ledger, "select tallymark.inbox_upto()") == before


def test_a_missing_schema_is_refused_with_the_command_that_helps(database: str) -> None:
    store = PostgresInboxStore(database, "ledger")
    migrate(database, role=Role.PRODUCER)
    for use in (lambda: store.enlist(instance(), 60), store.positions, lambda: store.begin().__enter__()):
        with pytest.raises(SchemaMismatch) as refused:
            use()
        assert "tallymark init --role consumer" in refused.value.remedy


def starts(url: str) -> dict[Place, int | None]:
    (view,) = TallyConsumers("ledger", url).views()
    return {place: view.starts.get(place) for place in view.next_offsets}


def test_where_it_began_is_written_down_and_stays(ledger: str, store: PostgresInboxStore) -> None:
    store.enlist(instance(), 60)
    store.found_topic([wanted(0, 7), wanted(1, 0)])
    assert starts(ledger) == {("transfers", 0): 7, ("transfers", 1): 0}
    (position,) = taken(store)
    with store.begin() as tx:
        tx.advance([move(position, 12)])
    assert starts(ledger)["transfers", 0] == 7
    operators = InboxOperators(ledger)
    operators.seek("ledger", {("transfers", 0): 20, ("transfers", 2): 3}, who="ann", reason="a test")
    assert starts(ledger) == {("transfers", 0): 7, ("transfers", 1): 0, ("transfers", 2): 3}
    # Further back than it had begun: what lies between is owed to it from now on.
    operators.seek("ledger", {("transfers", 0): 5}, who="ann", reason="a test")
    assert starts(ledger)["transfers", 0] == 5
    # Begun before this was written down: a seek says nothing of that.
    query(ledger, "update tallymark.positions set start_offset = null")
    operators.seek("ledger", {("transfers", 0): 9}, who="ann", reason="a test")
    assert starts(ledger)["transfers", 0] is None


def test_a_consumer_whose_positions_are_in_kafka_is_known_as_such(
    ledger: str, store: PostgresInboxStore
) -> None:
    def placeless() -> bool:
        (view,) = TallyConsumers("ledger", ledger).views()
        return view.placeless

    store.enlist(instance(), 60)
    assert not placeless()  # it has not begun
    with store.begin() as tx:
        tx.keep([message(3)])
    assert placeless()
    taken(store)
    assert not placeless()
    store.enlist(replace(instance(), positions="kafka"), 60)
    assert placeless()  # whatever it left here before


def test_more_that_is_unfinished_than_can_be_held_is_refused(ledger: str, store: PostgresInboxStore) -> None:
    store.enlist(instance(), 60)
    rows = [message(offset) for offset in range(3)]
    with store.begin() as tx:
        tx.keep(rows)
        tx.enqueue([Queued(each, 1) for each in rows])
    assert len(TallyConsumers("ledger", ledger, unfinished_limit=3).views()[0].queued) == 3
    with pytest.raises(Problem, match="more than 2 messages wait in queues in ledger"):
        TallyConsumers("ledger", ledger, unfinished_limit=2).views()
