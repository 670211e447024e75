"""Something in the log cannot be read: what lies before it is kept, and there the partition stands still."""

from __future__ import annotations

import threading
from collections.abc import Collection
from typing import Any, cast

from tallymark.inbox.book import Book
from tallymark.inbox.config import InboxConfig
from tallymark.inbox.custody import Custody
from tallymark.inbox.handover import Handover
from tallymark.inbox.logport import Log, Polled
from tallymark.inbox.receiver import Receiver, readable
from tallymark.inbox.stride import Stride
from tallymark.store.postgres.inboxstore import PostgresInboxStore
from tests.inbox_store.conftest import message, taken

PLACE = "transfers", 0
BAD = {PLACE: (2, "what stands at offset 2 cannot be read: bad checksum")}


def test_what_lies_behind_it_is_left() -> None:
    messages = [message(0), message(1), message(3), message(9, partition=1)]
    polled = Polled(messages, {PLACE: 4, ("transfers", 1): 10}, {}, {}, 0, BAD)
    found = readable(polled, {PLACE: 2})
    assert found.messages == [*messages[:2], messages[3]]
    assert found.ends == {PLACE: 2, ("transfers", 1): 10}


class Script:
    """What a client says when it comes to a broken record, look by look."""

    def __init__(self, *looks: Polled) -> None:
        self._looks = list(looks)

    def poll(self, _max_messages: int, _timeout_s: float) -> Polled:
        return self._looks.pop(0) if self._looks else Polled((), {}, {}, {}, 0)

    def pause(self, places: Collection[Any]) -> None: ...

    def topic_ids(self, _topics: Collection[str]) -> dict[str, str]:
        return {}

    def bounds(self, _places: Collection[Any]) -> dict[Any, Any]:
        return {}


def test_what_lies_before_it_is_kept_first(store: PostgresInboxStore) -> None:
    (position,) = taken(store)
    book, handover = Book(), Handover(1 << 20)
    book.take(position)
    config = InboxConfig("ledger", ("transfers",), owner="me")
    kafka = cast(Log, Script(Polled([message(0), message(1)], {PLACE: 2}, {}, {}, 100, BAD)))
    custody = Custody(store, kafka, book, handover, config)
    receiver = Receiver(
        kafka, book, custody, handover, config, stride=Stride(10, 2.0), held_back=threading.Event()
    )
    assert receiver.run_once() == 2
    assert store.positions()[PLACE].halted is None, "what was read is not kept yet"
    batch = handover.take(0)
    assert batch is not None
    assert (len(batch.messages), batch.ends) == (2, {PLACE: 2})
    assert book.ours(batch.epochs) == {PLACE}
    book.note_committed(batch.ends, batch.epochs)
    handover.done(batch)
    receiver.run_once()
    assert "offset 2 cannot be read" in (store.positions()[PLACE].halted or "")
    assert book.held() == {}
