"""Batches between two threads, and the book of what is ours: pure."""

from __future__ import annotations

import threading
import time

from tallymark.inbox.book import Book
from tallymark.inbox.handover import Batch, Handover
from tallymark.inbox.ports import Position, Received
from tallymark.lifecycle import OwnerKind
from tallymark.message import new_id

A, B = ("t", 0), ("t", 1)


def message(partition: int, offset: int) -> Received:
    return Received(new_id(), "/s", None, "t", partition, offset, None, b"k", b"v", "{}", None)


def position(partition: int, next_offset: int, epoch: int) -> Position:
    return Position("t", partition, next_offset, epoch, "me", OwnerKind.SERVICE, None, "id")


def test_halves_end_where_their_own_messages_end() -> None:
    messages = [message(0, 1), message(1, 7), message(0, 2), message(0, 9)]
    whole = Batch(messages, {A: 1, B: 6}, {A: 12, B: 8}, {}, {A: 1, B: 1})
    head, tail = whole.halves()
    assert (head.starts, head.ends) == ({A: 1, B: 6}, {A: 2, B: 8})
    # The first half brought B to its end: a step of nothing could not be told from one that was undone.
    assert (tail.starts, tail.ends, tail.epochs) == ({A: 2}, {A: 12}, {A: 1})
    assert [*head.messages, *tail.messages] == messages


def test_only_what_is_still_ours_is_left() -> None:
    messages = [message(0, 1), message(1, 7)]
    part = Batch(messages, {A: 1, B: 7}, {A: 2, B: 8}, {}, {A: 1, B: 1}).only({B})
    assert part.messages == [messages[1]]
    assert (part.starts, part.ends) == ({B: 7}, {B: 8})
    assert part.epochs == {B: 1}


def test_it_is_full_by_bytes_and_by_count() -> None:
    handover = Handover(max_bytes=100, max_batches=3)
    handover.put(Batch([], {}, {}, {}, {}, bytes=60))
    assert not handover.full
    handover.put(Batch([], {}, {}, {}, {}, bytes=60))
    assert handover.full


def test_the_batch_begun_is_given_again_until_it_is_done() -> None:
    handover = Handover(100)
    first, second = Batch([], {A: 0}, {A: 1}, {}, {A: 1}), Batch([], {A: 1}, {A: 2}, {}, {A: 1})
    handover.put(first)
    handover.put(second)
    assert handover.take(0) is first
    assert handover.take(0) is first
    handover.done(second)  # from somebody who was replaced: counts for nothing
    assert handover.take(0) is first
    handover.done(first)
    assert handover.take(0) is second


def test_a_revoke_waits_for_the_batch_begun_and_for_no_other() -> None:
    handover = Handover(100)
    batch = Batch([], {A: 0}, {A: 1}, {}, {A: 1})
    handover.put(batch)
    handover.take(0)
    assert handover.wait_while_busy([B], 0)
    assert not handover.wait_while_busy([A], 0.01)
    thread = threading.Thread(target=lambda: handover.done(batch))
    thread.start()
    assert handover.wait_while_busy([A], 10)
    thread.join()


def test_nothing_is_begun_after_the_end() -> None:
    handover = Handover(100)
    handover.put(Batch([], {A: 0}, {A: 1}, {}, {A: 1}))
    handover.close()
    assert handover.take(0) is None


def test_what_was_read_under_another_epoch_is_not_ours() -> None:
    book = Book()
    book.assigned([A, B])
    book.take(position(0, 10, epoch=1))
    assert book.ours({A: 1, B: 1}) == {A}
    book.set_aside([A])
    assert book.ours({A: 1}) == set()
    book.take(position(0, 10, epoch=2))
    assert book.ours({A: 1}) == set()


def test_a_commit_under_an_old_epoch_does_not_move_the_new_one() -> None:
    book = Book()
    book.take(position(0, 10, epoch=2))
    book.note_committed({A: 99}, {A: 1})
    assert book.held()[A].committed == 10
    book.note_committed({A: 20}, {A: 2})
    assert book.held()[A].committed == 20


def test_what_was_fenced_waits_and_is_not_fresh() -> None:
    book = Book()
    book.assigned([A])
    assert book.waiting() == {A: True}
    book.take(position(0, 0, epoch=1))
    assert book.waiting() == {}
    book.set_aside([A])
    assert book.waiting() == {A: False}
    assert book.drop([A]) == {}
    assert book.waiting() == {}


def test_there_is_room_as_soon_as_a_batch_is_begun() -> None:
    """A reader that waits for it need not throw away what it has read ahead."""
    handover = Handover(100)
    assert handover.wait_for_room(0)
    handover.put(Batch([], {A: 0}, {A: 1}, {}, {A: 1}))
    assert not handover.wait_for_room(0.01)
    found: list[bool] = []
    reader = threading.Thread(target=lambda: found.append(handover.wait_for_room(30)))
    reader.start()
    assert handover.take(0) is not None
    reader.join(30)
    assert found == [True]


def test_a_small_batch_is_let_finish_before_the_next_is_read() -> None:
    """What comes meanwhile is then one batch. Not for long, and not for a large one."""
    handover, began = Handover(100), threading.Event()
    small = Batch([message(0, 1)], {A: 1}, {A: 2}, {}, {A: 1})
    handover.let_finish(10, 60.0)  # nothing is begun
    handover.put(small)
    handover.take(0)
    handover.let_finish(1, 60.0)  # it is not small
    handover.let_finish(10, 0.0)  # it was begun too long ago

    def finish() -> None:
        began.wait(10)
        handover.done(small)

    thread = threading.Thread(target=finish)
    thread.start()
    began.set()
    handover.let_finish(10, 60.0)
    assert handover.wait_while_busy(None, 0), "it is done"
    thread.join()


def test_after_the_end_nobody_waits_for_a_batch_again() -> None:
    """All were waited for then: SIGTERM would take as long again for each partition that Kafka takes back."""
    handover = Handover(100)
    handover.put(Batch([], {A: 0}, {A: 1}, {}, {A: 1}))
    handover.take(0)
    handover.close()
    began = time.monotonic()
    assert not handover.wait_while_busy([A], 60.0)
    assert time.monotonic() - began < 30
