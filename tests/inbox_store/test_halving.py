"""A batch that cannot be kept as a whole is kept in parts, and none of its messages pays for that (pitfall 27)."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, cast

import psycopg
import pytest

from tallymark.apply.applier import Applier
from tallymark.apply.handlers import Handlers
from tallymark.apply.incoming import Message
from tallymark.errors import OutcomeUnknown, Stale
from tallymark.inbox.book import Book
from tallymark.inbox.config import InboxConfig
from tallymark.inbox.custody import Custody
from tallymark.inbox.handover import Batch, Handover
from tallymark.inbox.identity import key_hash
from tallymark.inbox.keeper import PATIENCE, Keeper
from tallymark.inbox.logport import Log, Polled
from tallymark.inbox.outcome import Outcome
from tallymark.inbox.ports import Queued
from tallymark.inbox.receiver import Receiver
from tallymark.inbox.screening import Screen
from tallymark.inbox.stride import Stride
from tallymark.inbox.workers import Noticed, Worker
from tallymark.message import new_id
from tallymark.policy import Backoff
from tallymark.store.postgres.inboxstore import PostgresInboxStore
from tests.inbox_store.conftest import message, query, taken
from tests.inbox_store.test_unreadable import Script

COUNT = 64
CONFIG = InboxConfig("ledger", ("transfers",), backoff=Backoff(first_s=0.001, cap_s=0.002))
Handle = Callable[[Message, Any], None]


@pytest.fixture
def stop() -> Iterator[threading.Event]:
    """Set after a while, so that what does not end by itself is seen."""
    event = threading.Event()
    timer = threading.Timer(30, event.set)
    timer.start()
    yield event
    timer.cancel()


def applier(handle: Handle) -> Applier:
    handlers = Handlers()
    handlers.handler("transfers", attempts=2)(handle)
    return Applier(handlers)


def keep(store: PostgresInboxStore, handle: Handle, stop: threading.Event) -> Outcome:
    (position,) = taken(store)
    book, place = Book(), position.place
    book.take(position)
    apply, now = applier(handle), datetime.now(UTC)
    screen = Screen(apply.needs_saved_id, now - timedelta(days=1), now)
    keeper = Keeper(store, apply, book, screen, CONFIG, stop)
    batch = [message(n, key=b"%d" % n) for n in range(COUNT)]
    outcome = keeper.run_once(Batch(batch, {place: 0}, {place: COUNT}, {}, {place: position.epoch}))
    assert store.positions()[place].next_offset == COUNT
    return outcome


def work(store: PostgresInboxStore, handle: Handle, stop: threading.Event) -> None:
    rows = [
        Queued(m, key_hash(m.topic, m.key, m.id)) for m in (message(n, key=b"%d" % n) for n in range(COUNT))
    ]
    with store.begin() as tx:
        tx.keep([row.message for row in rows])
        tx.enqueue(rows)
    worker = Worker(store, applier(handle), CONFIG, stop, held_back=threading.Event(), noticed=Noticed())
    while not stop.is_set():
        done = worker.run_round()
        if done is not None and not done.claimed:
            return
    raise AssertionError("it does not end")


@pytest.mark.parametrize("run", [keep, work])
def test_a_deadlock_counts_from_where_its_message_stands_alone(
    store: PostgresInboxStore, ledger: str, stop: threading.Event, run: Callable[..., Any]
) -> None:
    """It takes so many halvings until then that patience would be over at the first one."""
    met: list[Message] = []

    def handle(message: Message, _tx: Any) -> None:
        if len(met) < PATIENCE + 3:  # whichever comes first: halved again and again, it is the first one
            met.append(message)
            raise psycopg.errors.DeadlockDetected("two of us in each other's way")

    run(store, handle, stop)
    assert len(met) == PATIENCE + 3
    assert query(ledger, "select count(*), max(attempt) from tallymark.applications") == [(COUNT, 1)]


def test_what_is_ended_because_it_takes_long_is_kept_in_parts(
    store: PostgresInboxStore, ledger: str, stop: threading.Event
) -> None:
    """As transaction_timeout does: the same batch would be ended every time, and stop its partition."""
    calls: Counter[str] = Counter()

    def handle(_message: Message, tx: Any) -> None:
        ((transaction,),) = tx.execute("select pg_current_xact_id()::text").fetchall()
        calls[transaction] += 1
        if calls[transaction] > COUNT // 4:
            tx.execute("select pg_terminate_backend(pg_backend_pid())")

    outcome = keep(store, handle, stop)
    assert (outcome.applied, outcome.failed) == (COUNT, 0)
    assert query(ledger, "select count(*) from tallymark.applications") == [(COUNT,)]


@pytest.mark.parametrize("run", [keep, work])
def test_a_message_that_costs_its_session_every_time_is_a_failed_attempt(
    store: PostgresInboxStore, ledger: str, stop: threading.Event, run: Callable[..., Any]
) -> None:
    """Found by halves like any other, and not tried for ever: nothing behind it would be applied (C9)."""

    def handle(message: Message, tx: Any) -> None:
        if message.key == b"7":
            tx.execute("select pg_terminate_backend(pg_backend_pid())")

    run(store, handle, stop)
    assert query(ledger, "select count(*) from tallymark.applications") == [(COUNT - 1,)]
    ((attempts, reason),) = query(ledger, "select attempts, reason from tallymark.queue")
    assert attempts == 1
    assert f"lost the database's session {PATIENCE + 1} times in a row" in reason


@pytest.mark.parametrize("error", [OutcomeUnknown("the other side did not answer"), Stale("too late")])
def test_what_a_handler_does_not_know_of_others_is_a_failed_attempt(
    store: PostgresInboxStore, ledger: str, stop: threading.Event, error: Exception
) -> None:
    """Our own session is well: raised again and again it would hold up all that is behind it."""

    def handle(message: Message, _tx: Any) -> None:
        if message.key == b"7":
            raise error

    outcome = keep(store, handle, stop)
    assert (outcome.applied, outcome.failed) == (COUNT - 1, 1)


def test_a_rate_that_is_used_up_holds_up_no_other_topic(
    store: PostgresInboxStore, ledger: str, stop: threading.Event
) -> None:
    applied: list[str] = []
    handlers = Handlers()
    for topic, rate in (("limited", 0.001), ("transfers", None)):
        handlers.handler(topic, max_rate=rate)(lambda message, _tx: applied.append(message.topic))
    # In the order of claims the limited ones come first, as they may.
    keys = sorted(range(20), key=lambda n: key_hash("limited", b"%d" % n, new_id()))
    messages = [message(n, topic="limited", key=b"%d" % keys[n]) for n in range(5)]
    messages += [message(n, key=b"%d" % n) for n in range(5)]
    apply = Applier(handlers)
    with store.begin() as tx:
        tx.keep(messages)
        tx.enqueue([Queued(each, apply.key_hash(each)) for each in messages])
    config = replace(CONFIG, topics=("limited", "transfers"))
    worker = Worker(store, apply, config, stop, held_back=threading.Event(), noticed=Noticed())
    worker._after = -(2**63)
    began = time.monotonic()
    while worker.run_once().claimed:
        assert time.monotonic() - began < 20, "it does not come again for what may not be handed over"
    assert Counter(applied) == {"limited": 1, "transfers": 5}
    assert query(ledger, "select count(*) from tallymark.queue") == [(4,)]


@pytest.mark.parametrize("batch", [False, True])
def test_a_message_that_fails_under_a_low_rate_counts(
    store: PostgresInboxStore, ledger: str, stop: threading.Event, batch: bool
) -> None:
    """One a second: the careful run after the first would wait for the next second, and the next claim begin anew."""
    handlers = Handlers()

    def fail(_given: Any, _tx: Any) -> None:
        raise ZeroDivisionError

    handlers.handler("transfers", max_rate=1, attempts=1, batch=batch)(fail)
    apply = Applier(handlers)
    with store.begin() as tx:
        tx.keep([bad := message(0)])
        tx.enqueue([Queued(bad, apply.key_hash(bad))])
    worker = Worker(store, apply, CONFIG, stop, held_back=threading.Event(), noticed=Noticed())
    done = worker.run_once()
    assert (done.claimed, done.failed) == (1, 1)
    assert query(ledger, "select state from tallymark.queue") == [("dead",)]


def test_a_worker_that_looks_for_long_and_finds_nothing_looks_less_often(
    store: PostgresInboxStore, ledger: str, stop: threading.Event
) -> None:
    """A hundred thousand dead keys are walked past each time: eight workers would do nothing else."""

    class Rest(threading.Condition):
        rests: ClassVar[list[float]] = []

        def wait(self, timeout: float | None = None) -> bool:
            self.rests.append(timeout or 0.0)
            stop.set()
            return True

    worker = Worker(
        store, applier(lambda *_: None), CONFIG, stop, held_back=threading.Event(), noticed=Noticed()
    )
    with psycopg.connect(ledger) as other:
        other.execute("lock table tallymark.queue in access exclusive mode")
        threading.Timer(0.3, other.rollback).start()
        worker.run(Rest())
    assert Rest.rests == [pytest.approx(5.0)]


def test_a_batch_is_as_large_as_its_time() -> None:
    stride = Stride(10_000, 2.0)
    stride.took(500, 25.0)  # 50 ms each
    assert stride.fitting == 40
    stride.took(40, 2.0)
    assert stride.fitting == 40
    stride.took(3, 0.001)
    assert stride.fitting == 40, "a few say nothing of how many would fit"
    stride.took(40, 0.5)
    assert stride.fitting == 80
    for _ in range(9):
        stride.took(stride.fitting, 0.1)
    assert stride.fitting == 10_000
    stride.took(1, 500.0)
    assert stride.fitting == 1


class Asked(Script):
    """A client that notes how many it was asked for."""

    asked = 0

    def poll(self, max_messages: int, timeout_s: float) -> Polled:
        self.asked = max_messages
        return super().poll(max_messages, timeout_s)


def test_no_more_is_read_than_fits(store: PostgresInboxStore) -> None:
    book, handover, kafka, stride = Book(), Handover(1 << 20), Asked(), Stride(10_000, 2.0)
    log = cast(Log, kafka)
    custody = Custody(store, log, book, handover, CONFIG)
    receiver = Receiver(log, book, custody, handover, CONFIG, stride=stride, held_back=threading.Event())
    receiver.run_once()
    assert kafka.asked == 500
    stride.took(500, 25.0)
    receiver.run_once()
    assert kafka.asked == 40
