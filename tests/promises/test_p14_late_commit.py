"""P14: positions commit out of order. Nothing is skipped for it, and no unrelated transaction holds anything up."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from tests.relay.conftest import MakeGround
from tests.relay.ground import Ground, until_idle
from tests.waiting import wait_for


@pytest.fixture
def stranger(ground: Ground) -> Iterator[psycopg.Connection]:
    """A transaction that has written elsewhere, with nothing to do with the outbox, open for the whole test."""
    ground.query("create table public.elsewhere (n integer)")
    with psycopg.connect(ground.url) as connection:
        connection.execute("insert into public.elsewhere values (1)")
        connection.execute("select count(*) from tallymark.outbox")  # a snapshot and a lock that only reads
        yield connection
        connection.rollback()


def test_a_late_commit_is_never_passed_and_an_unrelated_transaction_delays_nothing(
    ground: Ground, stranger: psycopg.Connection
) -> None:
    with ground.worker() as worker, psycopg.connect(ground.url) as late:
        ground.add(10)
        assert until_idle(worker) == 10, "the unrelated transaction held up the reader"
        late_ids = ground.add_in(late, 1)
        ground.add(10)  # drawn later, committed earlier
        assert until_idle(worker) == 0
        assert worker.lane.covered <= 10, "the reader passed a row that was not visible yet"
        late.commit()
        assert until_idle(worker) == 11
        assert late_ids[0] in {record.id for record in ground.log()}
    assert ground.compare().is_clean


def test_a_rolled_back_writer_leaves_a_gap_and_no_message(ground: Ground) -> None:
    with ground.worker() as worker, psycopg.connect(ground.url) as writer:
        gone = ground.add_in(writer, 5)
        ground.add(5)
        assert until_idle(worker) == 0
        writer.rollback()
        assert until_idle(worker) == 5
    assert not set(gone) & {record.id for record in ground.log()}
    assert ground.compare().is_clean


def test_a_savepoint_rolled_back_keeps_the_floor_of_what_follows(ground: Ground) -> None:
    """ROLLBACK TO SAVEPOINT releases the floor's lock: what is added next takes a new one (pitfall 3)."""
    with ground.worker() as worker, psycopg.connect(ground.url) as writer:
        with writer.transaction(force_rollback=True):
            ground.add_in(writer, 3)
        ground.add_in(writer, 2)
        ground.add(4)
        assert until_idle(worker) == 0
        writer.commit()
        assert until_idle(worker) == 6
    assert ground.compare().is_clean


def test_two_phase_commit(ground: Ground) -> None:
    """A prepared transaction keeps its floor until it is committed, whoever does that."""
    with ground.worker() as worker, psycopg.connect(ground.url) as writer:
        writer.tpc_begin(writer.xid(1, f"tallymark-{ground.outbox_id}", "writer"))
        ground.add_in(writer, 3)
        writer.tpc_prepare()
        try:
            ground.add(4)
            assert until_idle(worker) == 0
            floor = ground.operators.status().floors[0]
            assert (floor.pid, floor.floor) == (None, 0)
        finally:
            writer.tpc_commit()  # left prepared, it would outlive the test and keep the database from being dropped
        assert until_idle(worker) == 7
    assert ground.compare().is_clean


def test_nothing_is_skipped_under_writers_that_commit_out_of_order(
    make_ground: MakeGround,
) -> None:
    """Eight writers commit late, early or not at all, while a relay reads behind them."""
    ground = make_ground(lanes=2)

    def write(seed: int) -> None:
        chance = random.Random(seed)  # noqa: S311 - a test's dice
        with psycopg.connect(ground.url) as late, psycopg.connect(ground.url) as early:
            for _ in range(15):
                ground.add_in(late, chance.randrange(1, 4), key=f"late-{seed}")
                for _ in range(chance.randrange(1, 5)):  # drawn later, committed earlier
                    ground.add_in(early, chance.randrange(1, 4), key=f"early-{seed}")
                    early.commit()
                (late.rollback if chance.random() < 0.2 else late.commit)()

    with psycopg.connect(ground.url) as stranger, ground.relay():
        stranger.execute("create temp table mine as select 1")
        ground.add(10)
        ground.wait_sent()  # it reads already when they begin
        writers = [threading.Thread(target=write, args=[seed]) for seed in range(8)]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join()
        ground.wait_sent()
        stranger.rollback()
    found = ground.compare()
    assert found.expected > 400
    assert found.is_clean, found


_STOPS_HERE = 20_141_125


def test_a_writer_that_begins_between_the_two_looks_is_not_passed(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sequence is read before the floors: the other way round, its floor is seen too late (pitfall 3).

    Both looks are one statement. It is made to wait for a lock where it has done the one and not yet the other.
    """
    ground.add(5)
    store = ground.store()
    statement, drawn = store._db._sql["frontier"], "from drawn left join"
    assert drawn in statement
    stopping = f"from (select last, pg_advisory_lock({_STOPS_HERE}) from drawn offset 0) drawn left join"
    monkeypatch.setitem(store._db._sql, "frontier", statement.replace(drawn, stopping))
    waiting = f"select count(*) from pg_locks where objid = {_STOPS_HERE} and not granted"
    with (
        psycopg.connect(ground.url) as late,
        psycopg.connect(ground.url) as gate,
        ThreadPoolExecutor(1) as aside,
    ):
        gate.execute(f"select pg_advisory_lock({_STOPS_HERE})")
        looked = aside.submit(store.frontier, 0)
        wait_for(lambda: ground.value(waiting) == 1, what="the look stands between its two halves")
        ground.add_in(late, 1)
        ground.add(1)
        gate.execute(f"select pg_advisory_unlock({_STOPS_HERE})")
        assert looked.result(60) == 5
    store.close()


def test_status_names_the_oldest_floor_with_its_pid_and_age(ground: Ground) -> None:
    """Pitfall 9: who holds the reader back is told by name."""
    with (
        psycopg.connect(ground.url, application_name="slow payroll") as slow,
        psycopg.connect(ground.url) as newer,
    ):
        ground.add_in(slow, 1)
        wait_for(lambda: (ground.operators.status().floors[0].age_s or 0) > 0.05, what="the floor has an age")
        ground.add_in(newer, 1)
        floors = ground.operators.status().floors
        assert [floor.pid for floor in floors] == [slow.info.backend_pid, newer.info.backend_pid]
        assert (floors[0].floor, floors[0].application) == (0, "slow payroll")
        assert (floors[0].age_s or 0) > (floors[1].age_s or 0)
        slow.rollback()
        newer.rollback()
    assert ground.operators.status().floors == []
