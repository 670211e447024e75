"""Seeing from another thread what a handler is at."""

from __future__ import annotations

from tallymark.apply.watch import SLOW_S, Watch
from tallymark.inbox.ports import Queued
from tests.apply.given import queued


def test_a_call_that_takes_too_long_is_seen() -> None:
    now = 100.0
    watch = Watch(clock=lambda: now)
    first, second = queued({}), queued({})
    assert watch.overdue(1e9) is None
    watch.began((first, second), timeout_s=5.0)
    assert watch.overdue(105.0) is None
    assert watch.overdue(105.1) is first
    assert watch.handling is not None
    assert watch.handling.messages == (first, second)
    watch.ended()
    assert watch.overdue(1e9) is None


def test_a_key_is_slow_after_one_long_call_of_one_message() -> None:
    now = 0.0
    watch = Watch(clock=lambda: now, notes_slow=True)
    slow, quick, alone = queued({}, key=b"alice"), queued({}, key=b"bob"), queued({}, key=None)

    def handle(*messages: Queued, seconds: float) -> None:
        nonlocal now
        watch.began(messages, timeout_s=5.0)
        now += seconds
        watch.ended()

    handle(quick, seconds=SLOW_S)
    handle(slow, seconds=SLOW_S * 2)
    handle(quick, slow, seconds=SLOW_S * 9)
    handle(alone, seconds=SLOW_S * 9)
    assert watch.slow_keys() == {slow.key_hash}
    assert watch.slow_keys() == set()
