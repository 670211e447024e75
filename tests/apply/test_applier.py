"""One message at a time: what fails alone, what waits behind it, and what is nobody's fault."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from tallymark.apply.applier import HandlerFailed, HandlerHung
from tallymark.apply.incoming import Message
from tallymark.errors import OutcomeUnknown
from tallymark.lifecycle import ApplicationOutcome
from tests.apply.conftest import Ground, effect
from tests.apply.given import queued


class Refused(Exception):
    """What the handler below raises where it is told to."""


def write(message: Message, tx: Any) -> None:
    """Writes first, and only then fails: what it wrote must not stay."""
    effect(tx, message.value)
    if message.value == "bad":
        raise Refused("bad")


def what(failures: Any) -> list[Any]:
    return [failure.queued for failure in failures]


def test_the_happy_way(ground: Ground) -> None:
    seen: list[tuple[Any, int]] = []

    @ground.handler("transfers")
    def apply(message: Message, tx: Any) -> None:
        seen.append((message.value, message.attempt))
        effect(tx, message.value)

    ground.handler("orders")(write)
    rows = [queued(1), queued(2, topic="orders"), queued(3, attempts=4), queued(4, topic="orders")]
    applied = ground.apply(*rows)
    assert seen == [(1, 1), (3, 5)]
    # By topic, in order.
    assert ground.effects() == ["1", "3", "2", "4"]
    assert applied.done == [rows[0], rows[2], rows[1], rows[3]]
    assert [(each.message, each.outcome, each.attempt) for each in applied.applications] == [
        (row.message, ApplicationOutcome.APPLIED, row.attempts + 1) for row in applied.done
    ]
    assert (applied.failed, applied.behind, applied.left) == ([], [], [])


def test_a_handler_that_fails_takes_the_happy_way_back_and_then_fails_alone(ground: Ground) -> None:
    ground.handler("transfers", backoff=(2, 100))(write)
    rows = [queued(1), queued("bad"), queued(2), queued(3, key=b"bob"), queued(4, key=b"bob")]
    with pytest.raises(HandlerFailed, match="transfers/2@5: Refused: bad") as refused:
        ground.apply(*rows)
    assert (refused.value.queued, type(refused.value.cause)) == (rows[1], Refused)
    assert ground.effects() == []
    applied = ground.apply(*rows, careful=True)
    assert ground.effects() == ["1", "3", "4"]
    assert applied.done == [rows[0], rows[3], rows[4]]
    assert applied.behind == [rows[2]]
    (failure,) = applied.failed
    assert (failure.queued, failure.reason, failure.again_in_s) == (rows[1], "Refused: bad", 2.0)
    assert failure.hold_key
    assert "in write" in failure.traceback
    assert "tallymark/apply" not in failure.traceback


def test_savepoints_only_after_a_failure(ground: Ground) -> None:
    alone: list[bool] = []

    @ground.handler("transfers")
    def apply(message: Message, tx: Any) -> None:
        # What a savepoint's block writes carries a transaction number of the savepoint's own.
        row = tx.execute(
            "insert into effect (what) values ('x') returning xmin::text = pg_current_xact_id()::xid::text"
        ).fetchone()
        alone.append(row[0])

    ground.apply(queued(1), queued(2))
    ground.apply(queued(1), queued(2), careful=True)
    assert alone == [True, True, False, False]


def test_undecodable_bytes_stop_their_key_and_nothing_else(ground: Ground) -> None:
    ground.handler("transfers")(write)
    rows = [
        queued(1),
        queued(b"{"),
        queued(2),
        queued(3, key=b"bob"),
        queued(b"[", key=None),
        queued(4, key=None),
    ]
    applied = ground.apply(*rows)  # the happy way: nothing was executed, so nothing has to be taken back
    assert ground.effects() == ["1", "3", "4"]
    assert what(applied.failed) == [rows[1], rows[4]]
    assert applied.behind == [rows[2]]
    assert [each.again_in_s for each in applied.failed] == [None, None]
    assert applied.failed[0].reason.startswith("DecodeFailed: the value is not JSON")


def test_a_registry_that_is_down_is_tried_again_without_a_call(ground: Ground) -> None:
    def decode(raw: bytes) -> None:
        raise ConnectionRefusedError("registry:8081")

    ground.handler("transfers", decode=decode)(write)
    rows = [queued(1), queued(2)]
    applied = ground.apply(*rows)
    assert [(each.queued, each.again_in_s) for each in applied.failed] == [(rows[0], 1.0)]
    assert (applied.behind, ground.effects()) == ([rows[1]], [])


def test_a_dead_one_is_passed_where_the_handler_says_so(ground: Ground) -> None:
    ground.handler("transfers", on_dead="skip", permanent=Refused)(write)
    ground.handler("orders", on_dead="skip")(write)
    rows = [queued(b"{"), queued(1), queued("bad"), queued(2)]
    applied = ground.settle(*rows)
    assert ground.effects() == ["1", "2"]
    assert [(each.again_in_s, each.hold_key) for each in applied.failed] == [(None, False)] * 2
    assert applied.behind == []
    # But not one that will be tried again: its key's order counts until it is dead.
    orders = [queued("bad", topic="orders"), queued(3, topic="orders")]
    assert ground.settle(*orders).behind == [orders[1]]


def test_where_any_order_will_do_nobody_waits(ground: Ground) -> None:
    ground.handler("transfers", order="any")(write)
    rows = [queued("bad"), queued(1), queued("bad"), queued(2)]
    applied = ground.settle(*rows)
    assert (ground.effects(), applied.behind) == (["1", "2"], [])
    assert [each.hold_key for each in applied.failed] == [False, False]


def test_the_last_attempt_and_named_errors_are_dead(ground: Ground) -> None:
    ground.handler("transfers", attempts=3)(write)
    ground.handler("orders", permanent=Refused)(write)
    rows = [queued("bad", attempts=1), queued("bad", attempts=2, key=b"bob"), queued("bad", topic="orders")]
    assert [each.again_in_s for each in ground.settle(*rows).failed] == [2.0, None, None]


@pytest.mark.parametrize("careful", [False, True])
@pytest.mark.parametrize("code", ["40001", "40P01"])
def test_deadlocks_are_nobodys_fault(ground: Ground, careful: bool, code: str) -> None:
    @ground.handler("transfers", permanent=psycopg.Error)
    def apply(message: Message, tx: Any) -> None:
        effect(tx, message.value)
        tx.execute(f"do $$ begin raise exception using errcode = '{code}'; end $$")

    with pytest.raises(psycopg.errors.lookup(code)):
        ground.apply(queued(1), careful=careful)
    assert ground.effects() == []


@pytest.mark.parametrize("careful", [False, True])
def test_a_lost_connection_is_nobodys_fault(ground: Ground, careful: bool) -> None:
    @ground.handler("transfers", permanent=Exception)
    def apply(message: Message, tx: Any) -> None:
        try:
            tx.execute("select pg_terminate_backend(pg_backend_pid())")
        except psycopg.Error:
            raise Refused("what a handler makes of it") from None

    with pytest.raises(OutcomeUnknown):
        ground.apply(queued(1), careful=careful)


def test_another_databases_connection_is_the_handlers_own_affair(ground: Ground) -> None:
    @ground.handler("transfers")
    def apply(message: Message, tx: Any) -> None:
        psycopg.connect("host=127.0.0.1 port=1 connect_timeout=1")

    (failure,) = ground.settle(queued(1)).failed
    assert failure.reason.startswith("OperationalError: ")
    assert failure.again_in_s == 1.0


def test_a_handler_may_not_end_the_transaction(ground: Ground) -> None:
    @ground.handler("transfers")
    def apply(message: Message, tx: Any) -> None:
        effect(tx, message.value)
        if message.value == "bad":
            tx.commit()

    rows = [queued(1), queued("bad", key=b"bob"), queued(2)]
    (failure,) = ground.settle(*rows).failed
    assert ground.effects() == ["1", "2"]
    assert "tx.commit()" in failure.reason
    assert failure.again_in_s is None


def test_a_handler_that_goes_on_after_a_database_error_is_named_itself(ground: Ground) -> None:
    """The transaction is broken from there: without a look after each call the next one would be blamed for it."""

    @ground.handler("transfers")
    def apply(message: Message, tx: Any) -> None:
        try:
            effect(tx, message.value)
            tx.execute("select 1 / %s", [message.value])
        except psycopg.errors.DivisionByZero:
            pass

    rows = [queued(1), queued(0, key=b"bob"), queued(2)]
    with pytest.raises(HandlerFailed) as refused:
        ground.apply(*rows)
    assert refused.value.queued == rows[1]
    (failure,) = ground.apply(*rows, careful=True).failed
    assert (failure.queued, failure.again_in_s) == (rows[1], None)
    assert "went on after a database error" in failure.reason
    assert ground.effects() == ["1", "2"]


def test_what_it_awaits_never_runs(ground: Ground) -> None:
    async def later() -> None: ...

    ground.handler("transfers")(lambda _message, _tx: later())
    (failure,) = ground.settle(queued(1)).failed
    assert "gave back something to await" in failure.reason
    assert failure.again_in_s is None


def test_one_that_hung_counts_an_attempt_and_is_not_called_again(ground: Ground) -> None:
    ground.handler("transfers", attempts=2)(write)
    rows = [queued(1), queued(2), queued(3, key=b"bob", attempts=1), queued(4, key=None)]
    hung = HandlerHung("the handler took longer than 5 s")
    suspects = {(row.message.source, row.message.id): hung for row in (rows[0], rows[2])}
    applied = ground.apply(*rows, suspects=suspects)
    assert ground.effects() == ["4"]
    assert [(each.queued, each.again_in_s) for each in applied.failed] == [(rows[0], 1.0), (rows[2], None)]
    assert applied.failed[0].reason == "HandlerHung: the handler took longer than 5 s"
    assert applied.behind == [rows[1]]


def test_what_is_being_handled_can_be_seen(ground: Ground) -> None:
    seen: list[Any] = []

    @ground.handler("transfers", handler_timeout=5)
    def apply(message: Message, tx: Any) -> None:
        handling = ground.watch.handling
        assert handling is not None
        seen.append((*handling.messages, handling.timeout_s))
        if message.value == "bad":
            raise Refused

    rows = [queued(1), queued("bad")]
    ground.settle(*rows)
    assert seen == [(rows[0], 5.0), (rows[1], 5.0)] * 2
    assert ground.watch.handling is None


@pytest.mark.parametrize("batch", [False, True])
def test_a_decoder_that_hangs_can_be_seen_too(ground: Ground, batch: bool) -> None:
    seen: list[Any] = []

    def decode(raw: bytes) -> str:
        handling = ground.watch.handling
        assert handling is not None
        seen.append((*handling.messages, handling.timeout_s))
        if raw == b'"bad"':
            raise ValueError(raw)
        return raw.decode()

    ground.handler("transfers", decode=decode, batch=batch, handler_timeout=5)(lambda _given, _tx: None)
    rows = [queued(1), queued("bad")]
    ground.apply(*rows)
    assert seen == [(rows[0], 5.0), (rows[1], 5.0)]
    assert ground.watch.handling is None


def test_a_thread_that_was_given_up_calls_no_handler(ground: Ground) -> None:
    @ground.handler("transfers")
    def apply(message: Message, tx: Any) -> None:
        effect(tx, message.value)
        handling = ground.watch.handling
        assert handling is not None
        assert ground.watch.abandon(handling.messages[0]) is not None

    with pytest.raises(OutcomeUnknown, match="a handler hung here"):
        ground.apply(queued(1), queued(2))
    assert ground.effects() == []


def test_what_there_was_no_time_for_is_left(ground: Ground) -> None:
    now = [0.0]
    ground.options["clock"] = lambda: now[0]

    @ground.handler("transfers")
    def apply(message: Message, tx: Any) -> None:
        effect(tx, message.value)
        now[0] += 1

    rows = [queued(1), queued(2), queued(3), queued(b"{", key=b"bob"), queued(4, topic="transfers")]
    applied = ground.apply(*rows, until=2.0)
    assert ground.effects() == ["1", "2"]
    assert (applied.done, applied.left) == (rows[:2], rows[2:])
    assert applied.failed == []


def test_a_rate_is_kept(ground: Ground) -> None:
    now, waits = [0.0], []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        now[0] += seconds

    ground.options |= {"clock": lambda: now[0], "wait": wait}
    ground.handler("transfers", max_rate=2)(write)
    ground.apply(*(queued(n) for n in range(5)))
    assert ground.effects() == ["0", "1", "2", "3", "4"]
    assert waits == [0.5, 0.5, 0.5]
