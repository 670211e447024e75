"""Retention (P7, pitfall 16): saved ids go when the log itself has dropped the messages, and not a moment before."""

from __future__ import annotations

import re
import threading
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from tallymark.errors import Problem
from tallymark.inbox.ports import Application, Failed, Queued, Received
from tallymark.lifecycle import ApplicationOutcome, Role
from tallymark.message import new_id
from tallymark.store.postgres import inboxretention
from tallymark.store.postgres.connection import connect
from tallymark.store.postgres.inboxfew import inbox_columns
from tallymark.store.postgres.inboxretention import InboxRetention
from tallymark.store.postgres.inboxstore import PostgresInboxStore
from tallymark.store.postgres.migrations import migrate
from tallymark.store.postgres.replay import Redriven, ReplayStore
from tallymark.store.queries import load
from tests.inbox_store.conftest import message, query

AT_ONCE = timedelta(0)
PLACE = ("transfers", 0)


@pytest.fixture
def old_ledger(database: str) -> str:
    """An inbox that was founded five days ago, as far as its partitions tell."""
    migrate(database, role=Role.CONSUMER)
    with psycopg.connect(database) as tx:
        past = [
            row[0]
            for row in tx.execute("select relname from pg_class where relname ~ '^inbox_([0-9]+|past)$'")
        ]
        for name in past:
            tx.execute(f"drop table tallymark.{name}, tallymark.{name.replace('inbox', 'applications')}")
        for root in ("inbox", "applications"):
            tx.execute(
                f"create table tallymark.{root}_past partition of tallymark.{root}"
                " for values from ('00010000-0000-0000-0000-000000000000') to"
                f" ('{uuid.UUID(int=midnight(5) << 80)}')"
            )
        tx.execute("select tallymark.make_inbox_partitions(now() + interval '14 days')")
    return database


@pytest.fixture
def store(old_ledger: str) -> Iterator[PostgresInboxStore]:
    opened = PostgresInboxStore(old_ledger, "ledger")
    yield opened
    opened.close()


def midnight(days_ago: int) -> int:
    """In milliseconds."""
    day = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=days_ago)
    return int(day.timestamp() * 1000)


def aged(days: int, offset: int | None, **changes: Any) -> Received:
    """A message whose id was made at noon, so many days ago."""
    at = midnight(days) + 12 * 3600 * 1000
    return message(offset, id=uuid.UUID(int=(at << 80) | (new_id().int & ((1 << 80) - 1))))._replace(
        **changes
    )


def day(days_ago: int, table: str = "inbox") -> str:
    return f"{table}_{datetime.fromtimestamp(midnight(days_ago) / 1000, UTC):%Y%m%d%H%M}"


def keep(store: PostgresInboxStore, *messages: Received, apply: bool = False) -> None:
    with store.begin() as tx:
        tx.keep(messages)
        if apply:
            tx.record([Application(each, ApplicationOutcome.APPLIED, 1) for each in messages])


def tables(ledger: str) -> set[str]:
    rows = query(
        ledger,
        "select c.relname from pg_inherits i join pg_class c on c.oid = i.inhrelid"
        " where i.inhparent in ('tallymark.inbox'::regclass, 'tallymark.applications'::regclass)",
    )
    return {row[0] for row in rows}


def run(ledger: str, start: int | None, after: timedelta = AT_ONCE) -> set[str]:
    return set(InboxRetention(ledger).run({} if start is None else {PLACE: start}, after).dropped)


def test_a_day_goes_when_the_log_begins_behind_it(old_ledger: str, store: PostgresInboxStore) -> None:
    keep(store, aged(4, 10), aged(4, 11), aged(3, 12), apply=True)
    assert run(old_ledger, 11) == {"inbox_past", "applications_past", day(5), day(5, "applications")}
    assert run(old_ledger, 12) == {day(4), day(4, "applications")}
    assert run(old_ledger, 12) == set(), "12 is still in the log"
    assert run(old_ledger, 13) >= {day(3), day(3, "applications")}
    assert query(old_ledger, "select count(*) from tallymark.inbox") == [(0,)]
    assert query(old_ledger, "select count(*) from tallymark.applications") == [(0,)]


def test_what_the_log_still_has_stays_however_old(old_ledger: str, store: PostgresInboxStore) -> None:
    """Pitfall 16: a message that the log can give us again must be known."""
    keep(store, aged(5, 10), aged(4, 3, partition=1))
    run(old_ledger, 10)
    assert day(5) in tables(old_ledger), "its highest offset is the log's first"
    run(old_ledger, None)
    assert day(5) in tables(old_ledger), "a log that is not known is not passed"
    run(old_ledger, 11)
    assert day(5) not in tables(old_ledger)
    assert day(4) in tables(old_ledger), "partition 1 is not known"
    InboxRetention(old_ledger).run({PLACE: 11, ("transfers", 1): 4}, AT_ONCE)
    assert day(4) not in tables(old_ledger)


def test_what_is_young_stays(old_ledger: str, store: PostgresInboxStore) -> None:
    keep(store, aged(3, 10))
    run(old_ledger, 1000, timedelta(days=3))
    assert day(3) in tables(old_ledger)
    run(old_ledger, 1000, timedelta(days=2))
    assert day(3) not in tables(old_ledger)
    assert day(1) in tables(old_ledger)


def test_what_is_unfinished_keeps_its_day_and_those_after_it(
    old_ledger: str, store: PostgresInboxStore
) -> None:
    waiting = aged(4, 10)
    with store.begin() as tx:
        tx.keep([waiting, aged(3, 11)])
        (seq,) = tx.enqueue([Queued(waiting, 1)])
    run(old_ledger, 1000)
    assert {day(4), day(3)} <= tables(old_ledger)
    with store.begin() as tx:
        tx.finish([Queued(waiting, 1, seq)])
    run(old_ledger, 1000)
    assert not {day(4), day(3)} & tables(old_ledger)


def test_what_was_repaired_without_kafka_counts_by_time_alone(
    old_ledger: str, store: PostgresInboxStore
) -> None:
    keep(store, aged(4, None, topic="elsewhere"))
    assert day(4) in run(old_ledger, None)


def test_the_inbox_says_from_when_on_it_knows(old_ledger: str, store: PostgresInboxStore) -> None:
    assert store.kept_from() == datetime(1970, 2, 19, 17, 2, 47, 296000, tzinfo=UTC)
    late = aged(4, 10)
    keep(store, aged(3, 10))
    report = InboxRetention(old_ledger).run({PLACE: 5}, AT_ONCE)
    assert report.kept_from == store.kept_from() == datetime.fromtimestamp(midnight(3) / 1000, UTC)
    with pytest.raises(Problem, match="no place for an id") as refused:
        keep(store, late)
    assert str(late.id) in str(refused.value)


@pytest.mark.parametrize("table", ["inbox", "applications"])
def test_a_drop_that_was_killed_in_the_middle_is_finished(
    old_ledger: str, store: PostgresInboxStore, table: str
) -> None:
    keep(store, aged(5, 10), aged(4, 20), apply=True)
    with psycopg.connect(old_ledger, autocommit=True) as owner:
        if table == "applications":  # the day itself is gone already
            owner.execute(f"drop table tallymark.{day(5)}")
        owner.execute(
            f"alter table tallymark.{table} detach partition tallymark.{day(5, table)} concurrently"
        )
    assert {day(5, table)} <= run(old_ledger, 11)
    names = query(
        old_ledger, "select relname from pg_class where relname = any(%s)", [[day(5), day(5, "applications")]]
    )
    assert names == []
    assert day(4) in tables(old_ledger)


def test_a_detached_day_that_is_needed_after_all_is_put_back(
    old_ledger: str, store: PostgresInboxStore
) -> None:
    """Someone who had not heard of the new kept_from kept a message there while it was taken away."""
    keep(store, aged(5, 10), aged(4, 20))
    with psycopg.connect(old_ledger, autocommit=True) as owner:
        owner.execute(f"alter table tallymark.inbox detach partition tallymark.{day(5)} concurrently")
    run(old_ledger, 10)
    assert day(5) in tables(old_ledger)
    again = aged(5, 11)
    keep(store, again)
    assert query(old_ledger, f"select id from tallymark.{day(5)} where id = %s", [again.id]) == [(again.id,)]


def test_a_detach_that_was_interrupted_is_finished(old_ledger: str, store: PostgresInboxStore) -> None:
    """Cancelled while it waits for a reader: PostgreSQL leaves the partition half detached."""
    keep(store, aged(5, 10), aged(4, 20))
    with psycopg.connect(old_ledger) as reader:
        reader.execute("select count(*) from tallymark.inbox")
        with psycopg.connect(old_ledger, autocommit=True) as owner:
            owner.execute("set lock_timeout = '200ms'")
            with pytest.raises(psycopg.Error):
                owner.execute(f"alter table tallymark.inbox detach partition tallymark.{day(5)} concurrently")
    pending = "select count(*) from pg_inherits where inhdetachpending"
    assert query(old_ledger, pending) == [(1,)]
    assert day(5) in run(old_ledger, 11)
    assert query(old_ledger, pending) == [(0,)]


def test_named_ids_are_pruned_by_rows_and_by_the_same_rule(
    old_ledger: str, store: PostgresInboxStore
) -> None:
    rows = [message(n, id=uuid.UUID(int=n + 1), named=f"order {n}") for n in range(4)]
    repaired = message(None, id=uuid.UUID(int=100), named="by hand")
    keep(store, *rows, repaired, apply=True)
    with store.begin() as tx:
        tx.enqueue([Queued(rows[0], 1)])
    assert InboxRetention(old_ledger).run({PLACE: 3}, timedelta(hours=1)).pruned == 0
    assert InboxRetention(old_ledger).run({}, AT_ONCE).pruned == 2, "what was repaired, with its effect"
    assert InboxRetention(old_ledger).run({PLACE: 3}, AT_ONCE).pruned == 4
    left = query(old_ledger, 'select "offset" from tallymark.inbox order by 1')
    assert left == [(0,), (3,)], "one is unfinished, one is still in the log"


def test_a_replay_never_takes_a_named_message_for_new_that_retention_has_forgotten(
    old_ledger: str, store: PostgresInboxStore
) -> None:
    """Pitfall 16: its id says nothing of its age, so where it stands in the log must."""
    rows = [message(n, id=uuid.UUID(int=n + 1), named=f"order {n}", key=None) for n in range(4)]
    never_kept = message(7, id=uuid.UUID(int=8), named="order 7", key=None)
    keep(store, *rows[:3], apply=True)
    assert InboxRetention(old_ledger).run({PLACE: 2}, AT_ONCE).pruned == 4, "two, with their effects"
    replay = ReplayStore(old_ledger, "ledger")
    try:
        done = replay.redrive([*rows, never_kept], any_order=True)
        assert done == Redriven(read=5, kept=2, repeated=1, quarantined=2)
        assert replay.redrive(rows, any_order=True) == Redriven(read=4, repeated=4)
    finally:
        replay.close()
    assert query(old_ledger, 'select "offset" from tallymark.queue order by 1') == [(3,), (7,)]
    dead = query(old_ledger, 'select "offset", reason from tallymark.dead_letters order by 1')
    assert [row[0] for row in dead] == [0, 1]
    assert "cannot know" in dead[0][1]


def test_a_foreign_id_is_known_while_the_log_has_any_copy_of_it(
    old_ledger: str, store: PostgresInboxStore
) -> None:
    """Pitfall 16: its producer says the same every day. The first of them goes, and the others can still come again."""
    first = message(10, id=uuid.UUID(int=17), named="order-17", key=None)
    copies = [first._replace(offset=30), first._replace(offset=20), first._replace(partition=1, offset=5)]
    keep(store, first)
    for each in (*copies, first):
        keep(store, each)
    noted = 'select partition, "offset" from tallymark.named_again order by 1'
    assert query(old_ledger, noted) == [(0, 30), (1, 5)], "read again, the first one is no copy"
    retention, other = InboxRetention(old_ledger), ("transfers", 1)
    for starts in ({PLACE: 11}, {PLACE: 30, other: 6}, {PLACE: 31, other: 5}, {PLACE: 31}):
        assert retention.run(starts, AT_ONCE).pruned == 0, starts
    passed = {PLACE: 31, other: 6}
    query(old_ledger, "update tallymark.inbox set kept_at = now() - interval '2 days'")
    assert retention.run(passed, timedelta(days=1)).pruned == 0, "it was said again since"
    assert retention.run(passed, AT_ONCE).pruned == 3
    assert query(old_ledger, noted) == []
    replay = ReplayStore(old_ledger, "ledger")
    try:  # from an archive, of a part of the log that nothing is known of any more
        assert replay.redrive(copies[:1], any_order=True) == Redriven(read=1, quarantined=1)
    finally:
        replay.close()


def test_noting_a_copy_costs_a_probe_and_not_the_inbox(old_ledger: str, store: PostgresInboxStore) -> None:
    """Nothing is known of how full it is: a fresh one was empty when it was looked at last."""
    rows = [message(n, id=uuid.UUID(int=n + 1), named=f"order {n}", key=None) for n in range(2_000)]
    keep(store, *rows)
    note = load("tallymark.store.postgres", "inbox.sql", "tallymark")["note_again"]
    copies = {"consumer": "ledger", **inbox_columns([each._replace(offset=9_999) for each in rows])}
    plan = "\n".join(line for (line,) in query(old_ledger, f"explain {note}", copies))
    assert re.findall(r"(?:on|using) (inbox_\w+)", plan) == ["inbox_named_pkey", "inbox_named"], plan
    with store.begin() as tx:
        for _ in range(7):  # from the fifth time on a statement is prepared, and then its plan is kept
            tx.keep([each._replace(offset=9_999) for each in rows[:3]])
        prepared = "select count(*) from pg_prepared_statements where statement like '%named_again%'"
        assert tx.handed.execute(prepared).fetchone() == (0,)


def test_dead_letters_that_are_done_with_go_and_others_stay(
    old_ledger: str, store: PostgresInboxStore
) -> None:
    with store.begin() as tx:
        tx.quarantine([(message(0), "odd"), (message(1), "odd")])
    query(old_ledger, "update tallymark.dead_letters set state = 'discarded' where \"offset\" = 0")
    assert InboxRetention(old_ledger).run({}, timedelta(hours=1)).pruned == 0
    assert InboxRetention(old_ledger).run({}, AT_ONCE).pruned == 1
    assert query(old_ledger, 'select "offset" from tallymark.dead_letters') == [(1,)]


def test_it_makes_partitions_ahead(old_ledger: str) -> None:
    newest = max(name for name in tables(old_ledger) if name.startswith("inbox_2"))
    query(old_ledger, f"drop table tallymark.{newest}, tallymark.{newest.replace('inbox', 'applications')}")
    assert InboxRetention(old_ledger).run({}, timedelta(days=99)).made == 1


def test_it_makes_partitions_ahead_whoever_keeps_house(old_ledger: str) -> None:
    newest = max(name for name in tables(old_ledger) if name.startswith("inbox_2"))
    query(old_ledger, f"drop table tallymark.{newest}, tallymark.{newest.replace('inbox', 'applications')}")
    with psycopg.connect(old_ledger) as other:
        other.execute("select pg_advisory_lock(hashtextextended('tallymark inbox retention', 0))")
        assert InboxRetention(old_ledger).run({}, timedelta(days=99)).made == 1


def test_the_next_round_does_not_find_the_lock_of_a_session_that_is_still_ending(
    old_ledger: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session that was closed is PostgreSQL's for a moment longer: here it stays."""
    with ExitStack() as later:

        @contextmanager
        def lingering(url: str, **options: Any) -> Iterator[Any]:
            yield later.enter_context(connect(url, **options))

        with monkeypatch.context() as patch:
            patch.setattr(inboxretention, "connect", lingering)
            InboxRetention(old_ledger).run({}, AT_ONCE)
        ((free,),) = query(
            old_ledger, "select pg_try_advisory_lock(hashtextextended('tallymark inbox retention', 0))"
        )
        assert free


def held(ledger: str, starts: dict[tuple[str, int], int]) -> tuple[str | None, str]:
    report = InboxRetention(ledger).run(starts, AT_ONCE)
    return report.held_back, report.because or ""


def test_it_says_what_holds_a_day_back_and_why(old_ledger: str, store: PostgresInboxStore) -> None:
    dead, waiting = aged(4, 10), aged(3, 11)
    with store.begin() as tx:
        tx.keep([dead, waiting, aged(2, 3, partition=1)])
        first, second = tx.enqueue([Queued(dead, 1), Queued(waiting, 2)])
        tx.fail([Failed(Queued(dead, 1, first), "no", "", None)])
    starts = {PLACE: 5}
    name, why = held(old_ledger, {PLACE: 1000})
    assert name == day(4)
    assert f"1 of them dead letters that hold their keys (ledger {dead.id})" in why
    with store.begin() as tx:
        tx.finish([Queued(dead, 1, first)])
    name, why = held(old_ledger, starts)
    assert (name, "transfers/0 begins at 5 and may give offset 10 again" in why) == (day(4), True)
    starts[PLACE] = 1000
    name, why = held(old_ledger, starts)
    assert (name, why) == (day(3), f"1 of its messages are not finished (ledger {waiting.id})")
    with store.begin() as tx:
        tx.finish([Queued(waiting, 2, second)])
    name, why = held(old_ledger, starts)
    assert (name, "nothing is known of the log of transfers/1" in why) == (day(2), True)
    starts["transfers", 1] = 1000
    assert held(old_ledger, starts) == (None, "")


def test_what_is_held_back_is_told_once(
    old_ledger: str, store: PostgresInboxStore, caplog: pytest.LogCaptureFixture
) -> None:
    keep(store, aged(4, 10))
    retention = InboxRetention(old_ledger)
    for _ in range(2):
        retention.run_safely({PLACE: 5}, AT_ONCE)
    told = [record.getMessage() for record in caplog.records if "stays" in record.getMessage()]
    assert len(told) == 1
    assert day(4) in told[0]


def test_a_place_that_nobody_reads_any_more_is_asked_about_the_next_time(
    old_ledger: str, store: PostgresInboxStore
) -> None:
    """Its positions were in Kafka, and its consumer reads another topic by now: only the messages tell of it."""
    keep(store, aged(4, 10))
    retention = InboxRetention(old_ledger)
    assert retention.read() == (set(), set())
    assert retention.run({}, AT_ONCE).held_back == day(4)
    assert retention.read() == (set(), {PLACE})


def test_one_at_a_time_keeps_house(old_ledger: str, store: PostgresInboxStore) -> None:
    with psycopg.connect(old_ledger) as other:
        other.execute("select pg_advisory_lock(hashtextextended('tallymark inbox retention', 0))")
        assert run(old_ledger, 1000) == set()
    assert run(old_ledger, 1000) != set()


def test_nobody_who_keeps_ever_waits_for_it(old_ledger: str, store: PostgresInboxStore) -> None:
    keep(store, *(aged(days, days) for days in range(1, 6)))
    done, kept, failures = threading.Event(), [0], list[BaseException]()

    def go_on() -> None:
        writer = PostgresInboxStore(old_ledger, "ledger")
        try:
            while not done.is_set():
                with writer.begin() as tx:
                    tx.handed.execute("set local lock_timeout = '500ms'")
                    tx.keep([message(kept[0])])
                kept[0] += 1
        except BaseException as error:  # noqa: BLE001 - whatever it is, the test says so
            failures.append(error)
        finally:
            writer.close()

    thread = threading.Thread(target=go_on)
    thread.start()
    try:
        dropped = InboxRetention(old_ledger).run({PLACE: 1 << 40}, AT_ONCE).dropped
    finally:
        done.set()
        thread.join(30)
    assert failures == []
    assert kept[0] > 0
    assert day(1) in dropped
