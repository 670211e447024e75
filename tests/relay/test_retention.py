"""Retention takes whole partitions, only what is sent, and never makes a writer wait (pitfall 11)."""

from __future__ import annotations

import threading
from datetime import timedelta

import psycopg
import pytest

from tallymark.errors import TallymarkError
from tallymark.store.postgres.retention import Retention
from tests.relay.conftest import MakeGround
from tests.relay.ground import Ground, until_idle
from tests.waiting import wait_for

ROWS = 100


@pytest.fixture
def small(make_ground: MakeGround) -> Ground:
    """An outbox whose partitions hold a hundred rows."""
    return make_ground(partition_rows=ROWS, ahead=60)


def partitions(ground: Ground, table: str = "outbox") -> list[str]:
    rows = ground.query(
        "select c.relname from pg_inherits i join pg_class c on c.oid = i.inhrelid"
        " where i.inhparent = %s::regclass order by substring(c.relname from '[0-9]+$')::bigint",
        f"tallymark.{table}",
    )
    return [row[0] for row in rows]


def keep_nothing(ground: Ground) -> Retention:
    return Retention(ground.url, keep=timedelta(0))


def test_only_partitions_whose_rows_are_all_sent_are_dropped(small: Ground) -> None:
    small.add(150)
    with small.worker() as worker:
        until_idle(worker)
    small.add(200)
    dropped = keep_nothing(small).run_once().dropped
    assert [name for name in dropped if name.startswith("outbox")] == ["outbox_100"]
    assert partitions(small)[0] == "outbox_200"
    assert partitions(small, "batches")[0] == "batches_200"
    small.query("update tallymark.lanes set owner = null")
    small.send_all()
    assert not small.compare(after=100).missing


def test_unsent_rows_keep_their_partition_whatever_their_age(small: Ground) -> None:
    small.add(350)
    assert keep_nothing(small).run_once().dropped == ()
    small.send_all()
    assert small.compare().is_clean


def test_young_rows_keep_theirs(small: Ground) -> None:
    small.add(350)
    small.send_all()
    assert Retention(small.url, keep=timedelta(hours=1)).run_once().dropped == ()


def test_a_held_topic_keeps_what_it_has_not_sent(small: Ground) -> None:
    small.add(10)
    small.add(10, topic="not-there-at-all")
    small.add(200)
    with small.worker() as worker:
        until_idle(worker)
    assert keep_nothing(small).run_once().dropped == ()


def test_a_writer_never_waits_and_a_drop_that_was_interrupted_is_finished_later(small: Ground) -> None:
    """An open writer keeps the detach from ending; others commit all the while; the next round ends it."""
    small.add(250)
    small.send_all()
    ended = threading.Event()
    failures: list[Exception] = []
    commits = 0

    def housekeeping() -> None:
        try:
            keep_nothing(small).run_once()
        except TallymarkError as error:
            failures.append(error)
        ended.set()

    with psycopg.connect(small.url) as open_writer, psycopg.connect(small.url) as writer:
        small.add_in(open_writer, 1)
        writer.execute("set lock_timeout = '500ms'")
        writer.commit()
        thread = threading.Thread(target=housekeeping)
        thread.start()
        while not ended.is_set() or commits < 20:
            small.add_in(writer, 1)  # raises where it would have to wait
            writer.commit()
            commits += 1
        thread.join()
        open_writer.commit()
    assert commits >= 20
    wait_for(lambda: "outbox_100" not in _after_a_round(small), what="the next round ends what was begun")
    orphans = small.query(
        "select c.relname from pg_class c where c.relname = 'outbox_100' and c.relkind = 'r'"
    )
    assert orphans == []
    small.send_all()
    assert not small.compare(after=200).missing


def _after_a_round(ground: Ground) -> list[str]:
    keep_nothing(ground).run_once()
    return partitions(ground)


def test_a_detached_partition_that_was_not_dropped_is_found(small: Ground) -> None:
    small.add(250)
    small.send_all()
    small.query("alter table tallymark.outbox detach partition tallymark.outbox_100 concurrently")
    assert "outbox_100" in keep_nothing(small).run_once().dropped


def test_a_quiet_outbox_moves_on_to_a_new_partition(small: Ground) -> None:
    small.add(30)
    small.send_all()
    report = keep_nothing(small).run_once()
    assert report.jumped_to == 99
    small.add(5)
    assert small.value("select min(position) from tallymark.outbox where position > 30") == 100
    small.send_all()
    assert small.compare().is_clean
    assert "outbox_100" in keep_nothing(small).run_once().dropped
    assert small.value("select count(*) from tallymark.outbox") == 5


def test_partitions_stand_ready_before_they_are_needed(small: Ground) -> None:
    small.add(550)
    keep_nothing(small).run_once()
    assert partitions(small)[-1] == "outbox_6000"
    small.query("select setval('tallymark.outbox_position', 5900)")
    keep_nothing(small).run_once()
    assert partitions(small)[-1] == "outbox_6800"
    small.add(700)
    small.send_all()
    assert small.compare().is_clean
