"""Handlers that fail where nobody looks: only at the commit, past every `except Exception`, or as if by our doing."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest

from tallymark.apply.applier import HandlerFailed
from tallymark.apply.failure import is_deferred_violation
from tallymark.apply.incoming import Message
from tallymark.apply.schemes import Version
from tests.apply.conftest import Ground, effect
from tests.apply.given import queued


def effects(message: Message, tx: Any) -> None:
    effect(tx, message.value)


def hold(message: Message, tx: Any) -> None:
    effect(tx, message.value)
    tx.execute("insert into holding (name) values (%s)", [message.value])


def test_what_the_commit_would_refuse_fails_alone(ground: Ground) -> None:
    """A deferred constraint (Django's foreign keys are) says nothing before the commit, and then names nobody."""
    ground.handler("transfers")(hold)
    ground.query("insert into holder values ('ann'), ('bob')")
    rows = [queued("ann"), queued("nobody", key=b"carol"), queued("bob")]
    with pytest.raises(psycopg.errors.ForeignKeyViolation) as refused:
        ground.apply(*rows)
    assert is_deferred_violation(refused.value)
    (failure,) = ground.apply(*rows, careful=True).failed
    assert (failure.queued, failure.again_in_s) == (rows[1], 1.0)
    assert "holding_holder" in failure.reason
    assert ground.effects() == ["ann", "bob"]


def test_what_the_commit_would_refuse_fails_alone_in_a_list(ground: Ground) -> None:
    @ground.handler("transfers", batch=True)
    def apply(messages: Any, tx: Any) -> None:
        for message in messages:
            hold(message, tx)

    ground.query("insert into holder values ('ann'), ('bob')")
    rows = [queued("ann"), queued("nobody", key=b"carol"), queued("bob"), queued("ann")]
    (failure,) = ground.apply(*rows, careful=True).failed
    assert failure.queued == rows[1]
    assert ground.effects() == ["ann", "bob", "ann"]


class Timeout(BaseException):
    """As gevent's is."""


@pytest.mark.parametrize(
    ("thrown", "reason"),
    [
        (asyncio.CancelledError(), "raised CancelledError"),
        (GeneratorExit(), "raised GeneratorExit"),
        (Timeout("5 s"), "raised Timeout: 5 s"),
        (SystemExit(3), "called sys.exit(3)"),
    ],
)
def test_nothing_that_a_handler_raises_ends_the_thread(
    ground: Ground, thrown: BaseException, reason: str
) -> None:
    def stop(message: Message, _tx: Any = None) -> bool:
        if message.value == "bad":
            raise thrown
        return True

    def decode(raw: bytes) -> Any:
        if b"bad" in raw:
            raise thrown
        return raw

    ground.handler("transfers")(stop)
    ground.handler("lists", batch=True)(lambda messages, _tx: [stop(each) for each in messages])
    ground.handler("versions", once=Version(when=stop))(effects)
    ground.handler("decoded", decode=decode)(effects)
    for topic in ("transfers", "lists", "versions", "decoded"):
        rows = [queued(1, topic=topic, key=b"bob"), queued("bad", topic=topic)]
        (failure,) = ground.settle(*rows).failed
        assert failure.queued == rows[1]
        assert reason in failure.reason
        assert failure.again_in_s == 1.0


class Mute(Exception):
    """As one whose __init__ was not called, or whose fields hold what has no text."""

    def __str__(self) -> str:
        raise AttributeError("no text")


def test_an_error_that_cannot_say_what_it_is_fails_its_message_alone(ground: Ground) -> None:
    @ground.handler("transfers")
    def apply(message: Message, tx: Any) -> None:
        if message.value == "bad":
            raise Mute
        effect(tx, message.value)

    rows = [queued(1), queued("bad", key=b"bob"), queued(2)]
    (failure,) = ground.settle(*rows).failed
    assert (failure.queued, failure.reason) == (rows[1], "Mute")
    assert "Mute" in failure.traceback
    assert ground.effects() == ["1", "2"]


def test_a_person_can_still_stop_it(ground: Ground) -> None:
    @ground.handler("transfers")
    def apply(message: Message, tx: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ground.apply(queued(1), careful=True)


def test_a_deadlock_that_comes_again_and_again_counts_in_the_end(ground: Ground) -> None:
    """Another database's, or a trigger's: nobody can tell it from ours, but it is not to stop its partition."""

    @ground.handler("transfers")
    def apply(message: Message, tx: Any) -> None:
        effect(tx, message.value)
        if message.value == "bad":
            raise ValueError("elsewhere") from psycopg.errors.DeadlockDetected("another database's")
        if message.value == "worse":
            tx.execute("do $$ begin raise exception using errcode = '40001'; end $$")

    for bad in ("bad", "worse"):
        rows = [queued(1), queued(bad, key=b"bob")]
        with pytest.raises(HandlerFailed):
            ground.apply(*rows, patience_over=True)
        (failure,) = ground.apply(*rows, careful=True, patience_over=True).failed
        assert (failure.queued, failure.again_in_s) == (rows[1], 1.0)
    assert ground.effects() == ["1", "1"]
