"""What custody does with what Kafka says of a log, and with what it does not say."""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import psycopg
import pytest

from tallymark.inbox.book import Book
from tallymark.inbox.config import InboxConfig
from tallymark.inbox.custody import Custody
from tallymark.inbox.handover import Handover
from tallymark.inbox.logport import Log
from tallymark.inbox.ports import Place
from tallymark.inbox.receiver import Receiver
from tallymark.inbox.stride import Stride
from tallymark.store.postgres import prompt
from tallymark.store.postgres.inboxstore import PostgresInboxStore
from tests.inbox_store.conftest import MakeStore, offsets
from tests.inbox_store.test_unreadable import Script

ZERO, ONE = ("transfers", 0), ("transfers", 1)
CONFIG = InboxConfig("ledger", ("transfers",), owner="me", start="end")


class Told(Script):
    """A Kafka that says what it is told to, and of a partition that is not here nothing."""

    def __init__(self, bounds: dict[Place, tuple[int, int]]) -> None:
        super().__init__()
        self.told = bounds
        self.noted: dict[Place, int] = {}
        self.paused: set[Place] = set()

    def topic_ids(self, topics: Collection[str]) -> dict[str, str]:
        return {topic: f"id-of-{topic}" for topic in topics}

    def partitions(self, topics: Collection[str]) -> list[Place]:
        return [place for place in (ZERO, ONE) if place[0] in topics]

    def bounds(self, places: Collection[Place]) -> dict[Place, tuple[int, int]]:
        return {place: self.told[place] for place in places if place in self.told}

    def committed(self, places: Collection[Place]) -> dict[Place, int | None]:
        return {place: self.noted.get(place) for place in places}

    def commit(self, ends: Mapping[Place, int], **_how: bool) -> None:
        self.noted.update(ends)

    def pause(self, places: Collection[Place]) -> None:
        self.paused = set(places)


def custody_of(store: PostgresInboxStore, kafka: Told, config: InboxConfig = CONFIG) -> tuple[Custody, Book]:
    book = Book()
    return Custody(store, cast(Log, kafka), book, Handover(1 << 20), config), book


@pytest.mark.parametrize("positions", ["database", "kafka"])
def test_a_new_topic_begins_with_all_of_its_partitions_or_not_yet(
    store: PostgresInboxStore, positions: str
) -> None:
    """One that cannot be asked about now would later look like one that was added, and begin at 0, not at the end."""
    kafka = Told({ZERO: (0, 7)})
    in_kafka = positions == "kafka"
    custody, _ = custody_of(store, kafka, replace(CONFIG, positions="kafka") if in_kafka else CONFIG)
    assert custody.given([ZERO]) == {}
    assert "Kafka says nothing of transfers/1" in custody.troubles[ZERO]
    assert (kafka.noted, offsets(store)) == ({}, {})
    kafka.told[ONE] = (0, 9)
    assert custody.take_waiting() == {ZERO: (7, None)}
    assert (kafka.noted if in_kafka else offsets(store)) == {ZERO: 7, ONE: 9}


def test_what_is_set_aside_is_not_read(store: PostgresInboxStore) -> None:
    """Read and dropped at full speed, it would cost network and CPU for as long as somebody else has it."""
    kafka = Told({ZERO: (0, 9), ONE: (0, 9)})
    custody, book = custody_of(store, kafka)
    handover = Handover(1 << 20)
    receiver = Receiver(
        cast(Log, kafka), book, custody, handover, CONFIG, stride=Stride(10, 2.0), held_back=threading.Event()
    )
    assert custody.given([ZERO, ONE]).keys() == {ZERO, ONE}
    receiver._take_at = float("inf")  # it looks at nothing that waits
    receiver.run_once(0)
    assert kafka.paused == set()
    book.set_aside([ONE])
    receiver.run_once(0)
    assert kafka.paused == {ONE}


def test_who_is_not_answered_asks_seldom(store: PostgresInboxStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where commits stand still each try leaves a session behind in the server: a hundred, and it lets nobody in."""
    now, tries = [1000.0], [0]
    monkeypatch.setattr("tallymark.inbox.receiver.time", SimpleNamespace(monotonic=lambda: now[0]))
    custody, book = custody_of(store, Told({ZERO: (0, 9)}))
    receiver = Receiver(
        cast(Log, Told({})),
        book,
        custody,
        Handover(1 << 20),
        CONFIG,
        stride=Stride(10, 2.0),
        held_back=threading.Event(),
    )
    answers_after = [5.0]

    def unanswered() -> dict[Place, tuple[int, int | None]]:
        tries[0] += 1
        now[0] += answers_after[0]
        return {}

    custody.given([ZERO])
    monkeypatch.setattr(custody, "take_waiting", unanswered)
    book.set_aside([ZERO])
    until = now[0] + 600
    while now[0] < until:
        receiver.run_once(0)
        now[0] += 0.1
    assert 15 < tries[0] < 25, "half a minute apart, once it is known"
    answers_after[0], until, tries[0] = 0.0, now[0] + 60, 0
    while now[0] < until:
        receiver.run_once(0)
        now[0] += 0.1
    assert tries[0] > 20, "and each second again when it answers"


def test_a_log_that_was_cut_back_and_has_grown_again_is_halted(
    store: PostgresInboxStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its bounds fit the position, so that it would be taken and refused in turns, and never be told to anybody."""
    now = [1000.0]
    monkeypatch.setattr("tallymark.inbox.custody.time", SimpleNamespace(monotonic=lambda: now[0]))
    kafka = Told({ZERO: (0, 9), ONE: (0, 9)})
    custody, book = custody_of(store, kafka)
    custody.given([ZERO, ONE])
    said = {ZERO: "partition log truncation detected"}

    def refuse_for(seconds: int) -> None:
        for _ in range(seconds):
            now[0] += 1
            custody.misplaced(said)
            custody.take_waiting()

    refuse_for(9)
    assert book.held().keys() == {ZERO, ONE}, "a leader that has just begun may not know better yet"
    now[0] += 60
    refuse_for(9)
    assert book.held().keys() == {ZERO, ONE}, "that it was so once says nothing of today"
    refuse_for(3)
    assert book.held().keys() == {ONE}
    halted = store.positions()[ZERO].halted
    assert halted is not None
    assert "does not read on at offset 9" in halted
    assert "log truncation detected" in halted
    assert "tallymark inbox seek" in halted


def test_a_database_that_stands_still_is_waited_for_once_and_not_for_each_partition(
    make_store: MakeStore, ledger: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Kafka waits for this thread; what was not noted is read again, and found again."""
    monkeypatch.setattr(prompt, "ANSWER_S", 1)
    store, said = make_store(prompt=True), {ZERO: "it cannot be read", ONE: "nor can this"}
    custody, book = custody_of(store, Told({ZERO: (0, 9), ONE: (0, 9)}))
    assert custody.given([ZERO, ONE]).keys() == {ZERO, ONE}
    with psycopg.connect(ledger) as other, caplog.at_level(logging.WARNING):
        other.execute("set idle_in_transaction_session_timeout = '8s'")
        other.execute("lock table tallymark.positions in access exclusive mode")
        custody.unreadable(said)
        assert caplog.text.count("could not note it") == 1
    assert book.held() == {}, "both stand still"
    assert custody.troubles.keys() == {ZERO, ONE}
    assert custody.take_waiting().keys() == {ZERO, ONE}
    custody.unreadable(said)
    assert {position.halted is None for position in store.positions().values()} == {False}
