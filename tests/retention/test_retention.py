"""Retention (P7, pitfall 11): whole partitions go when nobody needs them, and no writer ever waits for it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import timedelta

import psycopg
import pytest

from tallymark.errors import Problem, TallymarkError
from tallymark.lifecycle import BatchKind, Mode, Role
from tallymark.message import Entry, new_id
from tallymark.outbox.ports import AddOptions
from tallymark.relay.ports import Batch, Exclusion, Lane
from tallymark.store.postgres.migrations import migrate
from tallymark.store.postgres.relaystore import PostgresRelayStore
from tallymark.store.postgres.retention import Retention
from tallymark.store.postgres.writer import PostgresWriter
from tests.journal import query
from tests.waiting import wait_for

ROWS = 100  # to a partition
AT_ONCE = timedelta(0)
A_WEEK = timedelta(days=7)


@pytest.fixture
def outbox(database: str) -> str:
    """An outbox of one lane with small partitions."""
    migrate(database, role=Role.PRODUCER, lanes=1, partition_rows=ROWS, partitions_ahead=14)
    return database


@pytest.fixture
def store(outbox: str) -> Iterator[PostgresRelayStore]:
    opened = PostgresRelayStore(outbox)
    opened.identity()
    yield opened
    opened.close()


def add(database: str, count: int) -> None:
    with psycopg.connect(database) as tx:
        for _ in range(count):
            PostgresWriter().add(tx, Entry(new_id(), "transfers", b"alice", b"{}", "{}"), AddOptions())


def send(store: PostgresRelayStore, lane: Lane, upto: int) -> tuple[Lane, Batch]:
    """Claim and mark everything up to a position, as a relay would after Kafka's commit."""
    number = lane.last_number + 1
    batch = Batch(lane.lane, number, str(new_id()), BatchKind.RANGE, lane.covered, upto, upto, Mode.SYNC, 1)
    lane = store.advance(lane, claim=batch)
    return store.advance(lane, mark=batch), batch


def partitions(database: str, table: str = "outbox") -> list[int]:
    with psycopg.connect(database) as tx:
        rows = tx.execute(
            "select substring(inhrelid::regclass::text from '_([0-9]+)$')::bigint from pg_inherits"
            " where inhparent = %s::regclass order by 1",
            [f"tallymark.{table}"],
        )
        return [row[0] for row in rows]


def keep_house(database: str, keep: timedelta) -> tuple[str, ...]:
    return Retention(database, keep=keep).run_once().dropped


def test_sent_partitions_go_with_their_batches_and_unsent_ones_stay(
    outbox: str, store: PostgresRelayStore
) -> None:
    add(outbox, 250)
    lane = store.take("relay", 60)
    assert lane is not None
    assert keep_house(outbox, AT_ONCE) == (), "nothing is sent yet"
    send(store, lane, 200)
    assert set(keep_house(outbox, AT_ONCE)) >= {"outbox_100", "batches_100", "outbox_200"}
    assert partitions(outbox)[0] == 300, "the third partition holds rows that are not sent"
    with psycopg.connect(outbox) as tx:
        assert tx.execute("select min(position) from tallymark.outbox").fetchone() == (200,)


def test_what_was_sent_lately_stays(outbox: str, store: PostgresRelayStore) -> None:
    add(outbox, 250)
    lane = store.take("relay", 60)
    assert lane is not None
    send(store, lane, 250)
    assert keep_house(outbox, A_WEEK) == ()
    assert partitions(outbox)[0] == 100


def test_a_parked_message_is_kept_as_a_copy_until_it_is_done_with(
    outbox: str, store: PostgresRelayStore
) -> None:
    add(outbox, 150)
    lane = store.take("relay", 60)
    assert lane is not None
    batch = Batch(0, 0, str(new_id()), BatchKind.RANGE, 0, 150, 150, Mode.SYNC, 150)
    lane = store.advance(lane, claim=batch)
    batch = store.exclude(lane, batch, Exclusion(failed={7: "too large"}))
    store.advance(lane, mark=batch)
    assert "outbox_100" in keep_house(outbox, AT_ONCE)
    assert 100 in partitions(outbox, "parked")
    with psycopg.connect(outbox) as tx:
        tx.execute("update tallymark.parked set state = 'discarded'")
    assert "parked_100" in keep_house(outbox, AT_ONCE)


def test_a_batch_in_doubt_keeps_its_rows(outbox: str, store: PostgresRelayStore) -> None:
    add(outbox, 150)
    lane = store.take("relay", 60)
    assert lane is not None
    store.advance(lane, claim=Batch(0, 0, str(new_id()), BatchKind.RANGE, 0, 150, 150, Mode.SYNC, 150))
    assert keep_house(outbox, AT_ONCE) == ()
    assert partitions(outbox)[0] == 100


def test_a_held_topic_keeps_its_rows(outbox: str, store: PostgresRelayStore) -> None:
    add(outbox, 150)
    lane = store.take("relay", 60)
    assert lane is not None
    batch = Batch(0, 0, str(new_id()), BatchKind.RANGE, 0, 150, 150, Mode.SYNC, 150)
    lane = store.advance(lane, claim=batch)
    batch = store.exclude(lane, batch, Exclusion(topics={"transfers": "there is no such topic"}))
    store.advance(lane, mark=batch)
    assert keep_house(outbox, AT_ONCE) == ()
    assert partitions(outbox)[0] == 100


def test_partitions_stand_ready_well_ahead_of_the_writers(outbox: str) -> None:
    add(outbox, 1300)
    Retention(outbox, keep=A_WEEK).run_once()
    assert partitions(outbox)[-1] >= 1300 + 8 * ROWS


def test_an_outbox_that_no_relay_has_kept_house_in_says_so_when_it_is_full(outbox: str) -> None:
    with pytest.raises(Problem, match="no partition") as full:
        add(outbox, 14 * ROWS)
    assert "tallymark relay run" in full.value.remedy


def test_a_quiet_outbox_moves_on_to_a_new_partition(outbox: str, store: PostgresRelayStore) -> None:
    add(outbox, 3)
    lane = store.take("relay", 60)
    assert lane is not None
    assert Retention(outbox, keep=A_WEEK).run_once().jumped_to is None, "its rows are young"
    assert Retention(outbox, keep=AT_ONCE).run_once().jumped_to == 99
    add(outbox, 1)
    with psycopg.connect(outbox) as tx:
        assert tx.execute("select max(position) from tallymark.outbox").fetchone() == (100,)
    lane, _ = send(store, lane, 100)
    assert "outbox_100" in keep_house(outbox, AT_ONCE)


def test_a_drop_that_was_interrupted_is_finished_by_the_next_round(
    outbox: str, store: PostgresRelayStore
) -> None:
    add(outbox, 150)
    lane = store.take("relay", 60)
    assert lane is not None
    send(store, lane, 150)
    with psycopg.connect(outbox, autocommit=True) as owner:
        owner.execute("alter table tallymark.batches detach partition tallymark.batches_100 concurrently")
        owner.execute("alter table tallymark.outbox detach partition tallymark.outbox_100 concurrently")
    assert {"outbox_100", "batches_100"} <= set(keep_house(outbox, AT_ONCE))
    with psycopg.connect(outbox) as tx:
        assert tx.execute("select to_regclass('tallymark.outbox_100')").fetchone() == (None,)


def test_what_somebody_else_detached_goes_by_the_same_rules(
    outbox: str, store: PostgresRelayStore, caplog: pytest.LogCaptureFixture
) -> None:
    add(outbox, 250)
    lane = store.take("relay", 60)
    assert lane is not None
    number = lane.last_number + 1
    batch = Batch(0, number, str(new_id()), BatchKind.RANGE, 0, 150, 150, Mode.SYNC, 150)
    lane = store.advance(lane, claim=batch)
    store.exclude(lane, batch, Exclusion(failed={1: "too large"}))  # and it is still being sent
    with psycopg.connect(outbox, autocommit=True) as owner:
        for table in ("outbox_100", "outbox_300", "parked_100", "batches_300"):
            root = table.partition("_")[0]
            owner.execute(f"alter table tallymark.{root} detach partition tallymark.{table}".encode())
    assert not keep_house(outbox, AT_ONCE)
    told = " ".join(record.message for record in caplog.records)
    for table in ("outbox_100", "outbox_300", "parked_100", "batches_300"):
        assert f"{table} is detached and still needed" in told
        with psycopg.connect(outbox) as tx:
            assert tx.execute("select to_regclass(%s)", [f"tallymark.{table}"]).fetchone() != (None,)


def test_a_writer_never_waits_for_it(outbox: str, store: PostgresRelayStore) -> None:
    """A writer with an impatient lock_timeout goes on committing while partitions are made and dropped."""
    add(outbox, 950)
    lane = store.take("relay", 60)
    assert lane is not None
    done, added = threading.Event(), []
    # As many in each round as its partitions take: a machine that stands still must not leave the writer without one.
    may = threading.Semaphore(0)

    def write() -> None:
        with psycopg.connect(outbox) as tx:
            tx.execute("set lock_timeout = '500ms'")
            tx.commit()
            while not done.is_set():
                if not may.acquire(timeout=0.05):
                    continue
                PostgresWriter().add(tx, Entry(new_id(), "transfers", b"bob", b"{}", "{}"), AddOptions())
                tx.commit()
                added.append(1)

    failures: list[BaseException] = []
    before = threading.excepthook
    threading.excepthook = lambda args: failures.append(args.exc_value or AssertionError("a writer failed"))
    writer = threading.Thread(target=write)
    writer.start()
    try:
        for upto in range(100, 1000, 100):
            may.release(50)
            lane, _ = send(store, lane, upto)
            keep_house(outbox, AT_ONCE)
    finally:
        done.set()
        writer.join(30)
        threading.excepthook = before
    assert failures == []
    assert added
    assert partitions(outbox)[0] >= 900


def test_a_writer_never_waits_behind_a_drop_that_waits_for_another(
    outbox: str, store: PostgresRelayStore
) -> None:
    """A partition is taken away beside a transaction that has the outbox open. Others write on meanwhile (pitfall 11)."""
    add(outbox, 150)
    lane = store.take("relay", 60)
    assert lane is not None
    send(store, lane, 150)
    stopped: list[BaseException] = []

    def drop() -> None:
        try:
            keep_house(outbox, AT_ONCE)
        except TallymarkError as error:  # it has waited for long enough: the next round finishes it
            stopped.append(error)

    waits = (
        "select 1 from pg_stat_activity where datname = current_database()"
        " and application_name = 'tallymark retention' and wait_event_type = 'Lock'"
    )
    with psycopg.connect(outbox) as open_one, psycopg.connect(outbox) as writer:
        PostgresWriter().add(open_one, Entry(new_id(), "transfers", b"ann", b"{}", "{}"), AddOptions())
        dropping = threading.Thread(target=drop)
        dropping.start()
        wait_for(lambda: query(outbox, waits) or not dropping.is_alive(), what="it waits")
        assert dropping.is_alive(), stopped
        # Half a second is an age, and less than the drop itself waits for a lock.
        writer.execute("set lock_timeout = '500ms'")
        writer.commit()
        written = 0
        while dropping.is_alive():
            PostgresWriter().add(writer, Entry(new_id(), "transfers", b"bob", b"{}", "{}"), AddOptions())
            writer.commit()
            written += 1
            dropping.join(0.05)
        assert written
        assert ["lock timeout" in str(each) for each in stopped] == [True]
    keep_house(outbox, AT_ONCE)
    assert partitions(outbox)[0] == 200


def test_names_are_remembered_for_ever_or_for_as_long_as_was_said(outbox: str) -> None:
    add_named = "select tallymark.outbox_add('t', ''::bytea, dedup_key => %s)"
    with psycopg.connect(outbox) as tx:
        for name in ("old", "young"):
            tx.execute(add_named, [name])
        tx.execute(
            "update tallymark.dedup_keys set added_at = now() - interval '8 days' where dedup_key = 'old'"
        )
    Retention(outbox, keep=A_WEEK).run_once()
    with psycopg.connect(outbox) as tx, pytest.raises(psycopg.Error):
        tx.execute(add_named, ["old"])
    Retention(outbox, keep=A_WEEK, keep_names=A_WEEK).run_once()
    with psycopg.connect(outbox) as tx:
        tx.execute(add_named, ["old"])
    with psycopg.connect(outbox) as tx, pytest.raises(psycopg.Error):
        tx.execute(add_named, ["young"])


def test_what_was_resent_is_forgotten_with_its_rows(outbox: str, store: PostgresRelayStore) -> None:
    add(outbox, 350)
    with psycopg.connect(outbox) as tx:
        tx.execute(
            "insert into tallymark.resends (position, id, number, of_position, verdict, resent_by)"
            " select at, tallymark.new_id(), 1, 1, 'lost-in-log', 'ann' from unnest('{150,250,340}'::bigint[]) at"
        )
    keep_house(outbox, AT_ONCE)
    lane = store.take("relay", 60)
    assert lane is not None
    send(store, lane, 350)
    keep_house(outbox, AT_ONCE)
    assert partitions(outbox)[0] == 400
    with psycopg.connect(outbox) as tx:
        left = tx.execute("select position from tallymark.resends order by 1").fetchall()
    # A window of the tally may reach below the lowest partition.
    assert left == [(250,), (340,)]
