"""Reading is commit-safe (pitfall 3): every way of writing takes the floor, and only that holds the reader."""

from __future__ import annotations

import random
import threading
import uuid
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from tallymark import Draft, Outbox
from tallymark.store.postgres.relaystore import PostgresRelayStore
from tests.outbox.conftest import query

OUTBOX = Outbox("/bank")
Connection = psycopg.Connection[Any]

INSERT = "insert into tallymark.outbox (id, topic, key) values (gen_random_uuid(), 't', 'k')"


def last(url: str) -> int:
    ((value,),) = query(url, "select last_value - (not is_called)::integer from tallymark.outbox_position")
    return int(value)


def floors(connection: Connection) -> int:
    """How many advisory locks this very connection holds."""
    (count,) = connection.execute(
        "select count(*) from pg_locks where locktype = 'advisory' and pid = pg_backend_pid()"
    ).fetchone() or (0,)
    return int(count)


def copy(connection: Connection) -> None:
    with connection.cursor().copy("copy tallymark.outbox (id, topic, key) from stdin") as copying:
        copying.write_row((str(uuid.uuid4()), "t", b"k"))


WAYS: dict[str, Callable[[Connection], Any]] = {
    "add": lambda tx: OUTBOX.add(tx, "t", 1, key="k"),
    "add_many": lambda tx: OUTBOX.add_many(tx, [Draft("t", 1), Draft("t", 2)]),
    "add_many of thousands": lambda tx: OUTBOX.add_many(tx, [Draft("t", n) for n in range(3_000)]),
    "the SQL function": lambda tx: tx.execute("select tallymark.outbox_add('t', null)"),
    "INSERT": lambda tx: tx.execute(INSERT),
    "INSERT … SELECT": lambda tx: tx.execute(
        "insert into tallymark.outbox (id, topic) select gen_random_uuid(), 't' from generate_series(1, 3)"
    ),
    "COPY": copy,
    "INSERT in a CTE": lambda tx: tx.execute(f"with x as ({INSERT} returning 1) select * from x"),
    "as a replica": lambda tx: tx.execute("set local session_replication_role = replica; " + INSERT),
}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_of_writing_holds_the_reader(bank: str, store: PostgresRelayStore, way: str) -> None:
    before = last(bank)
    with psycopg.connect(bank) as late, psycopg.connect(bank) as quick:
        WAYS[way](late)
        OUTBOX.add(quick, "t", 2, key="k")
        quick.commit()
        assert last(bank) > before + 1
        assert store.frontier(0) == before, "the reader would pass rows that are not visible yet"
        late.commit()
    assert store.frontier(0) == last(bank)


def test_after_rollback_to_savepoint_the_floor_is_taken_again(bank: str, store: PostgresRelayStore) -> None:
    """The lock goes with the savepoint; whatever remembers it must go too."""
    with psycopg.connect(bank) as tx, psycopg.connect(bank) as quick:
        tx.execute("savepoint s")
        OUTBOX.add(tx, "t", 1)
        assert floors(tx) == 1
        tx.execute("rollback to savepoint s")
        assert floors(tx) == 0
        assert store.frontier(0) == last(bank), "nothing is held where nothing was written"
        before = last(bank)
        OUTBOX.add(tx, "t", 2)
        OUTBOX.add(quick, "t", 3)
        quick.commit()
        assert floors(tx) == 1
        assert store.frontier(0) == before
        tx.rollback()


def test_ten_thousand_adds_take_one_lock(bank: str) -> None:
    with psycopg.connect(bank) as tx:
        with tx.pipeline():
            for _ in range(10_000):
                tx.execute(INSERT)
        assert floors(tx) == 1
        tx.rollback()


def test_a_long_transaction_that_has_nothing_to_do_with_the_outbox_holds_nobody(
    bank: str, store: PostgresRelayStore
) -> None:
    with psycopg.connect(bank) as long, psycopg.connect(bank) as reader:
        long.execute("update accounts set balance = balance where name = 'bob'")
        reader.execute("set transaction isolation level repeatable read")
        reader.execute("select count(*) from tallymark.outbox")
        with psycopg.connect(bank) as tx:
            OUTBOX.add(tx, "t", 1)
        assert store.frontier(0) == last(bank)


@pytest.mark.parametrize(
    "lock",
    [
        "pg_advisory_xact_lock_shared(1)",
        "pg_advisory_xact_lock_shared(0)",
        "pg_advisory_xact_lock_shared(1, 2)",
        "pg_advisory_xact_lock(3)",
        "pg_advisory_xact_lock_shared(-1)",
        # even one that starts with our own tag: in two halves, or exclusive, it is not a floor
        "pg_advisory_xact_lock_shared((select tag << 16 from tallymark.outbox_identity), 0)",
        "pg_advisory_xact_lock((select tag::bigint << 48 from tallymark.outbox_identity))",
    ],
)
def test_an_applications_own_advisory_lock_is_no_floor(
    bank: str, store: PostgresRelayStore, lock: str
) -> None:
    with psycopg.connect(bank) as tx:
        OUTBOX.add(tx, "t", 1)
    with psycopg.connect(bank) as other:
        other.execute(f"select {lock}")
        assert store.frontier(0) == last(bank)


def test_another_databases_floor_is_not_ours(
    bank: str, store: PostgresRelayStore, make_database: Callable[[], str]
) -> None:
    with psycopg.connect(bank) as tx:
        OUTBOX.add(tx, "t", 1)
    with psycopg.connect(make_database()) as other:
        ((tag,),) = query(bank, "select tag from tallymark.outbox_identity")
        other.execute("select pg_advisory_xact_lock_shared(%s::bigint << 48)", [tag])
        assert store.frontier(0) == last(bank)


def test_a_prepared_transaction_keeps_its_floor_until_it_is_committed(
    bank: str, store: PostgresRelayStore
) -> None:
    before = last(bank)
    name = f"prepared-{uuid.uuid4()}"
    with psycopg.connect(bank) as tx:
        id_ = OUTBOX.add(tx, "t", 1, key="k")
        tx.execute(f"prepare transaction '{name}'")
    try:
        with psycopg.connect(bank) as tx:
            OUTBOX.add(tx, "t", 2, key="k")
        assert store.frontier(0) == before
    finally:
        query(bank, f"commit prepared '{name}'")
    assert store.frontier(0) == last(bank)
    assert query(bank, "select count(*) from tallymark.outbox where id = %s", [id_]) == [(1,)]


def test_reading_never_skips_a_late_commit(bank: str, store: PostgresRelayStore) -> None:
    """P14: eight writers that commit and roll back in any order; what was read is what was committed, by id."""
    lane = store.take("reader", 600)
    assert lane is not None
    start = store.frontier(0)
    kept: set[str] = set()
    guard = threading.Lock()
    running = threading.Semaphore(0)

    def write(seed: int) -> None:
        dice = random.Random(seed)  # noqa: S311 - a dice, not a secret
        with psycopg.connect(bank) as tx:
            for _ in range(60):
                ids = [str(OUTBOX.add(tx, "t", n, key=f"k{seed}")) for n in range(dice.randint(1, 3))]
                if dice.random() < 0.3:
                    tx.rollback()
                    continue
                tx.execute("select pg_sleep(%s)", [dice.choice([0, 0, 0.002, 0.01])])
                tx.commit()
                with guard:
                    kept.update(ids)
        running.release()

    writers = [threading.Thread(target=write, args=(seed,)) for seed in range(8)]
    for writer in writers:
        writer.start()
    read: list[tuple[int, str]] = []
    after, ended = start, 0
    while True:
        ended += running.acquire(blocking=False)
        done = ended == len(writers)  # looked at before the frontier: then this round sees everything
        upto = store.frontier(after)
        if upto > after:
            piece = store.read(lane, after, upto, 50, 1 << 20)
            read += [(row[0], row[1]) for row in piece.rows]
            after = piece.upto
        elif done:
            break
    for writer in writers:
        writer.join()
    store.release(lane)
    assert [position for position, _ in read] == sorted(position for position, _ in read)
    assert sorted(id_ for _, id_ in read) == sorted(kept)
