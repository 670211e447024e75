"""Keys whose messages take long: remembered for workers, who let others pass them, and never more than a bound (P7)."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta

import pytest

from tallymark.apply import watch
from tallymark.apply.applier import Applier
from tallymark.apply.handlers import Handlers
from tallymark.inbox import workers
from tallymark.inbox.book import Book
from tallymark.inbox.config import InboxConfig
from tallymark.inbox.handover import Batch
from tallymark.inbox.keeper import Keeper
from tallymark.inbox.ports import Queued, Received
from tallymark.inbox.screening import Screen
from tallymark.inbox.workers import Noticed, Worker
from tallymark.store.postgres.inboxstore import PostgresInboxStore
from tests.inbox_store.conftest import message, taken

CONFIG = InboxConfig("ledger", ("transfers",))
COUNT = 12


@pytest.fixture(autouse=True)
def _every_call_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "SLOW_S", -1.0)


def applier() -> Applier:
    handlers = Handlers()
    handlers.handler("transfers")(lambda _message, _tx: None)
    return Applier(handlers)


def test_who_keeps_remembers_none(store: PostgresInboxStore) -> None:
    """Nobody asks it for them: one more for each slow key, for as long as it runs."""
    (position,) = taken(store)
    book, place, apply, now = Book(), position.place, applier(), datetime.now(UTC)
    book.take(position)
    screen = Screen(apply.needs_saved_id, now - timedelta(days=1), now)
    keeper = Keeper(store, apply, book, screen, CONFIG, threading.Event())
    batch = [message(n, key=b"%d" % n) for n in range(COUNT)]
    outcome = keeper.run_once(Batch(batch, {place: 0}, {place: COUNT}, {}, {place: position.epoch}))
    assert outcome.applied == COUNT
    assert keeper.watch.slow_keys() == set()


def test_a_key_that_is_slow_again_and_again_is_known_however_many_were_so_once(
    store: PostgresInboxStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "_SLOW_KEYS", 5)
    apply, noticed = applier(), Noticed()
    worker = Worker(store, apply, CONFIG, threading.Event(), held_back=threading.Event(), noticed=noticed)

    def queue(*messages: Received) -> None:
        with store.begin() as tx:
            tx.keep(messages)
            tx.enqueue([Queued(each, apply.key_hash(each)) for each in messages])

    queue(*(message(n, key=b"once %d" % n) for n in range(COUNT)))
    assert worker.run_once().claimed == COUNT
    assert len(noticed.slow) == 5
    queue(message(COUNT, key=b"again"))
    assert worker.run_once().claimed == 1
    assert len(noticed.slow) == 5
    queue(*(message(n, key=key) for n, key in enumerate((b"again", b"quick"), COUNT + 1)))
    assert [worker.run_once().claimed for _ in range(2)] == [1, 1], "it stands apart"
