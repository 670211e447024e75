"""Two relays with the owner's rights keep house at once: one does, the other leaves it to it, and nothing goes wrong."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import psycopg

from tallymark.errors import TallymarkError
from tallymark.store.postgres.migrations import apply_grants
from tallymark.store.postgres.relaystore import PostgresRelayStore
from tallymark.store.postgres.retention import Retention, RetentionReport
from tallymark.store.queries import load
from tests.journal import query
from tests.retention.test_retention import AT_ONCE, ROWS, add, outbox, partitions, send, store
from tests.waiting import wait_for

__all__ = ["outbox", "store"]  # the fixtures

_WAITING = (
    "select pid from pg_stat_activity where datname = current_database()"
    " and application_name = 'tallymark retention' and wait_event_type = 'Lock'"
)
_HOLDS_THE_ROUND = (
    "select pg_terminate_backend(l.pid, 5000) from pg_locks l join pg_stat_activity a using (pid)"
    " where a.datname = current_database() and a.application_name = 'tallymark retention'"
    " and l.locktype = 'advisory' and a.state = 'idle in transaction'"
)


def test_one_keeps_house_and_the_other_leaves_it_to_it(outbox: str, store: PostgresRelayStore) -> None:
    lane = store.take("relay", 60)
    assert lane is not None
    with ThreadPoolExecutor(2) as two:
        for _ in range(5):
            add(outbox, 600)
            ((last,),) = query(outbox, "select last_value from tallymark.outbox_position")
            lane, _ = send(store, lane, last)
            together = threading.Barrier(2)

            def keep_house(together: threading.Barrier = together) -> RetentionReport:
                together.wait(30)
                return Retention(outbox, keep=AT_ONCE).run_once()

            reports = [each.result(60) for each in [two.submit(keep_house) for _ in range(2)]]
            dropped = [name for report in reports for name in report.dropped]
            assert len(set(dropped)) == len(dropped) > 0
            assert partitions(outbox)[0] == (last // ROWS + 1) * ROWS
            assert partitions(outbox)[-1] >= last + 8 * ROWS


@contextmanager
def nobody_moves_the_sequence(database: str) -> Iterator[psycopg.Connection]:
    """Whoever draws from it or sets it waits until this ends. Looking at it is free."""
    with psycopg.connect(database) as gate:
        gate.execute("alter sequence tallymark.outbox_position cache 1")
        yield gate
        gate.rollback()


def a_round(database: str) -> RetentionReport | TallymarkError:
    try:
        return Retention(database, keep=AT_ONCE).run_once()
    except TallymarkError as error:
        return error


def test_one_moves_the_sequence_on(outbox: str) -> None:
    """A position that was drawn between two who set it would come a second time."""
    add(outbox, 3)
    with ThreadPoolExecutor(2) as two:
        with nobody_moves_the_sequence(outbox):
            first = two.submit(a_round, outbox)
            wait_for(lambda: query(outbox, _WAITING), what="one is about to set it")
            second = two.submit(a_round, outbox)
            wait_for(
                lambda: second.done() or len(query(outbox, _WAITING)) == 2, what="the other, too, or not"
            )
        assert (jumped(first), second.result(30)) == (99, RetentionReport())


def test_who_has_lost_the_round_does_not_move_the_sequence(outbox: str) -> None:
    """A pooler may end an idle transaction, or an administrator: a housekeeper that was slow is then one of two."""
    add(outbox, 3)
    lock = psycopg.connect(outbox)
    lock.execute("lock table tallymark.outbox_identity in access exclusive mode")
    with lock, ThreadPoolExecutor(1) as one:
        first = one.submit(a_round, outbox)
        wait_for(lambda: first.done() or query(outbox, _WAITING), what="it is in its round, and waits")
        query(outbox, _HOLDS_THE_ROUND)
        lock.rollback()
        assert isinstance(first.result(30), TallymarkError)
    assert query(outbox, "select last_value from tallymark.outbox_position") == [(3,)]
    assert Retention(outbox, keep=AT_ONCE).run_once().jumped_to == 99


def jumped(done: Future[RetentionReport | TallymarkError]) -> int | None:
    report = done.result(30)
    assert isinstance(report, RetentionReport), report
    return report.jumped_to


def test_who_lacks_the_rights_takes_the_round_from_nobody(outbox: str) -> None:
    """It is there to say so. At the same moment as one who has them, it would keep the house from being kept."""
    apply_grants(outbox)
    add(outbox, 3)
    user = f"relay_{uuid.uuid4().hex[:8]}"
    alone = load("tallymark.store.postgres", "retention.sql", "tallymark")["alone"]
    with psycopg.connect(outbox, autocommit=True) as owner:
        owner.execute(f"create role {user} in role tallymark_relay")
        try:
            with psycopg.connect(outbox) as other:
                other.execute(f"set role {user}")
                assert other.execute(alone).fetchone() == (True,)
                assert Retention(outbox, keep=AT_ONCE).run_once().jumped_to == 99
        finally:
            owner.execute(f"drop role {user}")
