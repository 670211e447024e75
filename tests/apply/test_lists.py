"""Handlers of lists: one call for many, and halves of it until what fails stands alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tallymark.apply.applier import Applied, Applier, HandlerFailed, HandlerHung
from tallymark.apply.incoming import Message
from tallymark.inbox.ports import Queued
from tests.apply.conftest import Ground, effect
from tests.apply.given import queued

KEYS = [b"a", b"b", b"c", b"d", b"e", b"f", b"g", b"h"]


@pytest.fixture
def calls(ground: Ground) -> list[list[Any]]:
    """What the handler was called with; it fails for every list with a 'bad' value in it."""
    calls: list[list[Any]] = []

    @ground.handler("transfers", batch=True, on_dead="hold-key")
    def apply(messages: list[Message], tx: Any) -> None:
        values = [message.value for message in messages]
        calls.append(values)
        for value in values:
            effect(tx, value)
        if "bad" in values:
            raise ValueError("bad")

    return calls


def test_one_call_for_all(ground: Ground, calls: list[list[Any]]) -> None:
    rows = [queued(n) for n in range(4)]
    applied = ground.apply(*rows)
    assert calls == [[0, 1, 2, 3]]
    assert applied.done == rows
    assert ground.effects() == ["0", "1", "2", "3"]


def test_the_one_that_fails_is_found_by_halves(ground: Ground, calls: list[list[Any]]) -> None:
    rows = [queued("bad" if n == 5 else n, key=key) for n, key in enumerate(KEYS)]
    with pytest.raises(HandlerFailed):
        ground.apply(*rows)
    calls.clear()
    applied = ground.apply(*rows, careful=True)
    assert calls == [
        [0, 1, 2, 3, 4, "bad", 6, 7],
        [0, 1, 2, 3],
        [4, "bad", 6, 7],
        [4, "bad"],
        [4],
        ["bad"],
        [6, 7],
    ]
    assert ground.effects() == ["0", "1", "2", "3", "4", "6", "7"]
    assert [each.queued for each in applied.failed] == [rows[5]]
    assert applied.done == rows[:5] + rows[6:]


def test_order_within_a_key_is_kept(ground: Ground, calls: list[list[Any]]) -> None:
    """alice's second fails; her third, which no byte of could be read, and her fourth wait behind it, in order."""
    rows = [
        queued(1),
        queued("bad"),
        queued(b"{"),
        queued(4),
        queued(5, key=b"bob"),
        queued(b"{", key=b"bob"),
    ]
    applied = ground.settle(*rows)
    assert ground.effects() == ["1", "5"]
    assert [each.queued for each in applied.failed] == [rows[1], rows[5]]
    assert applied.behind == [rows[2], rows[3]]


def test_what_waits_behind_is_not_tried_in_any_half(ground: Ground, calls: list[list[Any]]) -> None:
    rows = [queued("bad"), queued(1), queued(2), queued(3), queued(4, key=b"bob")]
    applied = ground.settle(*rows)
    assert ground.effects() == ["4"]
    assert applied.behind == rows[1:4]


def test_undecodable_and_suspect_ones_are_taken_out_first(ground: Ground, calls: list[list[Any]]) -> None:
    rows = [queued(b"{"), queued(1), queued(2, key=b"bob"), queued(3, key=b"carol")]
    seen = {(rows[2].message.source, rows[2].message.id): HandlerHung("it hung")}
    applied = ground.apply(*rows, suspects=seen)
    assert calls == [[3]]
    assert [each.queued for each in applied.failed] == [rows[0], rows[2]]
    assert applied.behind == [rows[1]]


def test_one_at_a_time_where_asked(ground: Ground, calls: list[list[Any]]) -> None:
    """After a list that hung: which of them it was, the next hang tells."""
    ground.apply(queued(1), queued(2), alone=True)
    assert calls == [[1], [2]]


def test_a_list_is_no_longer_than_a_seconds_worth(ground: Ground) -> None:
    calls: list[int] = []
    waits: list[float] = []
    now = [0.0]

    def wait(seconds: float) -> None:
        waits.append(seconds)
        now[0] += seconds

    ground.options |= {"clock": lambda: now[0], "wait": wait}

    @ground.handler("transfers", batch=True, max_rate=2)
    def apply(messages: list[Message], tx: Any) -> None:
        calls.append(len(messages))

    ground.apply(*(queued(n) for n in range(5)))
    assert calls == [2, 2, 1]
    assert waits == [1.0, 0.5]


def test_whoever_finds_a_token_hands_a_list_over(ground: Ground) -> None:
    """As workers do: one that is refused a second's worth has claimed in vain, and does so again at once, for ever."""
    now = [0.0]

    def wait(seconds: float) -> None:
        now[0] += seconds

    ground.handler("transfers", batch=True, max_rate=4)(lambda _messages, _tx: None)
    applier = Applier(ground.handlers, clock=lambda: now[0], wait=wait)

    def claim(rows: Sequence[Queued]) -> Applied:
        assert applier.due(["transfers"])
        with ground.store.begin() as tx:
            return applier.apply(tx, rows, careful=False, watch=ground.watch, until=now[0] + 0.25)

    first = claim([queued(n) for n in range(12)])
    assert len(first.done) == 4, "the burst"
    now[0] += 0.25
    assert claim(first.left).done == first.left[:2]


def test_what_there_was_no_time_for_is_left(ground: Ground, calls: list[list[Any]]) -> None:
    now = [0.0]
    ground.options["clock"] = lambda: now[0]

    @ground.handler("orders", batch=True)
    def slow(messages: list[Message], tx: Any) -> None:
        now[0] += 10

    rows = [queued(1, topic="orders"), queued(2), queued(b"{", key=b"bob")]
    applied = ground.apply(*rows, until=5.0)
    assert (applied.done, applied.left, applied.failed) == (rows[:1], rows[1:], [])
