"""What operators see and do at an inbox: each change audited, none that races a worker or breaks a key's order."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from dataclasses import replace

import pytest

from tallymark.errors import Problem, UsageError
from tallymark.inbox.identity import key_hash
from tallymark.inbox.ports import Application, ClaimBounds, Failed, Queued, StalePositions
from tallymark.lifecycle import ApplicationOutcome, DeadState, OwnerKind
from tallymark.store.postgres import inboxoperators
from tallymark.store.postgres.inboxfailed import InboxFailed
from tallymark.store.postgres.inboxoperators import InboxOperators
from tallymark.store.postgres.inboxstore import PostgresInboxStore
from tests.inbox_store.conftest import MakeStore, instance, message, move, query, taken, wanted
from tests.waiting import wait_for


@pytest.fixture
def operators(ledger: str) -> InboxOperators:
    return InboxOperators(ledger)


@pytest.fixture
def failed(ledger: str) -> InboxFailed:
    return InboxFailed(ledger)


def a_row(offset: int, key: bytes = b"alice") -> Queued:
    made = message(offset, key=key)
    return Queued(made, key_hash(made.topic, made.key, made.id))


def fill(store: PostgresInboxStore, *rows: Queued) -> list[Queued]:
    with store.begin() as tx:
        tx.keep([row.message for row in rows])
        return [row._replace(seq=seq) for row, seq in zip(rows, tx.enqueue(rows), strict=True)]


def fail(
    store: PostgresInboxStore, row: Queued, again_in_s: float | None = None, *, hold_key: bool = True
) -> None:
    with store.begin() as tx:
        tx.fail([Failed(row, "insufficient funds", "Traceback …", again_in_s, hold_key)])


def waiting(store: PostgresInboxStore) -> list[int | None]:
    """The offsets that a worker would get now, in order."""
    with store.begin() as tx:
        rows = tx.claim(0, ClaimBounds(["transfers"], keys=10, rows=100, max_bytes=1 << 20)).rows
        return [row.message.offset for row in sorted(rows, key=lambda row: (row.key_hash, row.seq))]


def apply(store: PostgresInboxStore, *offsets: int) -> None:
    """Keep and apply, inline."""
    with store.begin() as tx:
        made = [message(offset) for offset in offsets]
        tx.keep(made)
        tx.record([Application(each, ApplicationOutcome.APPLIED, 1) for each in made])


def audits(ledger: str) -> list[tuple[str, str, str, str]]:
    return [
        tuple(row)
        for row in query(ledger, "select who, action, subject, reason from tallymark.audit order by seq")
    ]


def test_status_tells_how_everything_stands(
    store: PostgresInboxStore, operators: InboxOperators, ledger: str
) -> None:
    store.enlist(instance(), 60)
    zero, one = taken(store, "me", 0, 1)
    with store.begin() as tx:
        tx.keep([message(0), message(1)])
        tx.advance([move(zero, 5)])
    store.halt(one.place, one.epoch, "offsets 3 to 4 are gone")
    store.count_fenced([one.place])
    apply(store, 2, 3)
    first, second, _ = fill(store, a_row(10), a_row(11, b"bob"), a_row(12, b"bob"))
    fail(store, first)
    fail(store, second, 3600)
    (status,) = operators.status("ledger")
    assert (status.consumer, status.topics, status.mode, status.paused) == (
        "ledger",
        ["transfers"],
        "inline",
        False,
    )
    assert (status.queued, status.parked_keys, status.dead, status.retrying) == (3, 2, 1, 0)
    assert status.rate == pytest.approx(2 / 60)
    assert [
        (p.partition, p.next_offset, p.epoch, p.owner, p.owner_kind, p.alive) for p in status.positions
    ] == [
        (0, 5, 1, "me", OwnerKind.SERVICE, True),
        (1, 0, 1, "me", OwnerKind.SERVICE, True),
    ]
    assert [(p.kept, p.fenced, p.halted) for p in status.positions] == [
        (2, 0, None),
        (0, 1, "offsets 3 to 4 are gone"),
    ]
    assert [(i.owner, i.pid) for i in status.instances] == [("me", 1)]
    assert not status.healthy


def test_a_quiet_inbox_is_healthy_and_a_dead_one_is_not(
    store: PostgresInboxStore, operators: InboxOperators
) -> None:
    assert operators.status() == []
    store.enlist(instance(), 60)
    taken(store)
    assert [status.healthy for status in operators.status()] == [True]
    store.leave("me")
    assert [status.healthy for status in operators.status()] == [False]
    with pytest.raises(UsageError, match="no consumer audit"):
        operators.status("audit")


def test_pausing_is_heard_and_audited(
    store: PostgresInboxStore, operators: InboxOperators, ledger: str
) -> None:
    store.enlist(instance(), 60)
    assert operators.pause("ledger", who="ann", reason="maintenance")
    assert not operators.pause("ledger", who="ann", reason="again")
    assert store.heartbeat("me", 60, {}).paused
    assert operators.resume("ledger", who="ann", reason="done")
    assert not store.heartbeat("me", 60, {}).paused
    assert audits(ledger) == [
        ("ann", "inbox.pause", "ledger", "maintenance"),
        ("ann", "inbox.resume", "ledger", "done"),
    ]
    with pytest.raises(UsageError, match="no consumer audit"):
        operators.pause("audit", who="ann", reason="")


def test_a_seek_ends_the_owner_and_the_halt_and_names_what_it_skips(
    store: PostgresInboxStore, operators: InboxOperators, ledger: str
) -> None:
    store.enlist(instance(), 60)
    zero, one = taken(store, "me", 0, 1)
    with store.begin() as tx:
        tx.advance([move(zero, 5), move(one, 5)])
    store.halt(zero.place, zero.epoch, "offsets 5 to 9 are gone")
    new = ("transfers", 2)
    before = operators.seek(
        "ledger", {zero.place: 10, one.place: 3, new: 7}, who="ann", reason="lost by retention"
    )
    assert before == {zero.place: 5, one.place: 5, new: None}
    standing = store.positions()
    assert [
        (standing[p].next_offset, standing[p].halted, standing[p].owner) for p in (zero.place, one.place, new)
    ] == [
        (10, None, None),
        (3, None, None),
        (7, None, None),
    ]
    with pytest.raises(StalePositions), store.begin() as tx:
        tx.advance([move(zero, 6, start=10)])
    ((details,),) = query(ledger, "select details from tallymark.audit where action = 'inbox.seek'")
    assert [(m["before"], m["after"], m["skipped"], m["again"]) for m in details["moves"]] == [
        (5, 10, [5, 9], None),
        (5, 3, None, [3, 4]),
        (None, 7, None, None),
    ]
    assert details["moves"][0]["halted"] == "offsets 5 to 9 are gone"
    (again,) = store.take("me", OwnerKind.SERVICE, 60, [wanted(0)])
    assert (again.next_offset, again.topic_id) == (10, "id-of-transfers"), "the topic as it is today"


@pytest.mark.parametrize(
    ("offsets", "reason", "match"),
    [({("transfers", 0): -1}, "why", "cannot be set to -1"), ({("transfers", 0): 1}, "", "with a reason")],
)
def test_a_seek_that_makes_no_sense_is_refused(
    store: PostgresInboxStore,
    operators: InboxOperators,
    offsets: dict[tuple[str, int], int],
    reason: str,
    match: str,
) -> None:
    store.enlist(instance(), 60)
    with pytest.raises(UsageError, match=match):
        operators.seek("ledger", offsets, who="ann", reason=reason)


def test_failed_messages_are_listed_and_shown(store: PostgresInboxStore, failed: InboxFailed) -> None:
    dead, _, again = fill(store, a_row(0), a_row(1), a_row(2, b"bob"))
    fail(store, dead)
    fail(store, again, 3600)
    letter, retrying = sorted(failed.messages(), key=lambda each: each.offset or 0)
    assert (letter.state, letter.behind, letter.reason, letter.attempts) == (
        DeadState.DEAD,
        1,
        "insufficient funds",
        1,
    )
    assert (retrying.state, retrying.number, retrying.due_at is None) == (DeadState.RETRYING, None, False)
    assert failed.messages(ids=[str(again.message.id)], consumer="ledger", topic="transfers") == [retrying]
    assert failed.messages(consumer="audit") == []
    (shown,) = failed.show(str(dead.message.id))
    assert (shown["value"], shown["traceback"], shown["state"]) == (dead.message.value, "Traceback …", "dead")
    (shown,) = failed.show(str(again.message.id))
    assert (shown["value"], shown["state"]) == (again.message.value, "retrying")


def test_a_retry_goes_back_to_its_place_and_the_key_follows(
    store: PostgresInboxStore, failed: InboxFailed, ledger: str
) -> None:
    dead, _ = fill(store, a_row(0), a_row(1))
    fail(store, dead._replace(attempts=7))
    assert waiting(store) == []
    change = failed.retry(ids=[str(dead.message.id)], who="ann", reason="the account was opened")
    assert (change.changed, change.refused) == ([str(dead.message.id)], {})
    with store.begin() as tx:
        first, second = tx.claim(0, ClaimBounds(["transfers"], keys=10, rows=10, max_bytes=1 << 20)).rows
        assert (first.seq, first.attempts, second.message.offset) == (dead.seq, 0, 1)
        tx.finish([first])
    assert [each.state for each in failed.messages(states=list(DeadState))] == [DeadState.APPLIED]
    assert audits(ledger) == [("ann", "failed.retry", str(dead.message.id), "the account was opened")]
    assert failed.retry(ids=[str(dead.message.id)], who="ann").changed == [], "it is done"


def test_what_waits_for_its_next_attempt_can_be_tried_at_once(
    store: PostgresInboxStore, failed: InboxFailed
) -> None:
    (row,) = fill(store, a_row(0))
    fail(store, row, 3600)
    assert waiting(store) == []
    assert failed.retry(who="ann", consumer="ledger").changed == [str(row.message.id)]
    assert waiting(store) == [0]


def test_a_discarded_message_lets_its_key_go_on(
    store: PostgresInboxStore, failed: InboxFailed, ledger: str
) -> None:
    dead, _, again, _ = fill(store, a_row(0), a_row(1), a_row(2, b"bob"), a_row(3, b"bob"))
    fail(store, dead)
    fail(store, again, 3600)
    with pytest.raises(UsageError, match="with a reason"):
        failed.discard(who="ann", reason="")
    change = failed.discard(who="ann", reason="sent by mistake")
    assert set(change.changed) == {str(dead.message.id), str(again.message.id)}
    assert sorted(waiting(store), key=lambda offset: offset or 0) == [1, 3]
    letters = query(ledger, 'select "offset", state, value from tallymark.dead_letters order by 1')
    assert letters == [(0, "discarded", dead.message.value), (2, "discarded", again.message.value)]
    assert {action for _, action, _, _ in audits(ledger)} == {"failed.discard"}


def passed_over(store: PostgresInboxStore, offset: int) -> Queued:
    """A dead letter whose key goes on without it."""
    (row,) = fill(store, a_row(offset))
    fail(store, row, hold_key=False)
    return row


def test_a_late_retry_never_overwrites_newer_state(store: PostgresInboxStore, failed: InboxFailed) -> None:
    """Pitfall 18."""
    row = passed_over(store, 0)
    apply(store, 1)
    name = str(row.message.id)
    change = failed.retry(ids=[name], who="ann")
    assert change.changed == []
    assert "later message of its key was applied" in change.refused[name]
    assert waiting(store) == []
    assert failed.retry(ids=[name], who="ann", any_order=True).changed == [name]
    assert waiting(store) == [0]


def test_what_is_too_old_to_know_is_applied_on_somebodys_word(
    store: PostgresInboxStore, failed: InboxFailed, ledger: str
) -> None:
    """Pitfall 16: it was delayed for longer than ids are saved, and nobody had ever seen it."""
    # There is no partition for its id: here none yet, which is the same to it as none any more.
    old = message(3, id=uuid.UUID("0fffffff-0000-7000-8000-000000000001"))
    with store.begin() as tx:
        tx.quarantine([(old, "cannot know")])
    name = str(old.id)
    assert "--never-applied" in failed.retry(ids=[name], who="ann").refused[name]
    assert failed.retry(ids=[name], who="ann", never_applied=True).changed == [name]
    with store.begin() as tx:
        (row,) = tx.claim(0, ClaimBounds(["transfers"], keys=1, rows=1, max_bytes=1000)).rows
        assert (row.message.named, row.message.value) == (name, old.value)
        tx.finish([row])
        tx.record([Application(row.message, ApplicationOutcome.APPLIED, 1)])
    assert query(ledger, "select state, named from tallymark.dead_letters") == [("applied", name)]
    with store.begin() as tx:
        tx.quarantine([(old, "cannot know")])  # read again, it is not known by its id
    assert "under its name before" in failed.retry(ids=[name], who="ann", never_applied=True).refused[name]


def test_a_retry_is_put_back_before_those_that_wait(store: PostgresInboxStore, failed: InboxFailed) -> None:
    """Whatever order they are retried in, they stand in the log's order."""
    second, first, third = passed_over(store, 2), passed_over(store, 1), passed_over(store, 5)
    apply(store, 0)
    fill(store, a_row(3), a_row(4))
    for row in (second, third, first):
        assert failed.retry(ids=[str(row.message.id)], who="ann").refused == {}
    assert waiting(store) == [1, 2, 3, 4, 5]


def test_what_was_never_kept_is_kept_when_it_is_retried(
    store: PostgresInboxStore, failed: InboxFailed
) -> None:
    reused, odd, kept = message(0), message(1, key=b"bob"), message(9)
    old = message(2, id=message(0).id.__class__("0fffffff-ffff-7000-8000-000000000000"))
    with store.begin() as tx:
        tx.keep([kept])
        tx.quarantine(
            [(reused._replace(id=kept.id), "its id was used before"), (odd, "odd"), (old, "the future")]
        )
    change = failed.retry(who="ann")
    assert change.changed == [str(odd.id)]
    assert "used for another message" in change.refused[str(kept.id)]
    assert "cannot be kept" in change.refused[str(old.id)]
    assert waiting(store) == [1]


def test_what_was_read_again_after_it_had_been_set_apart_is_tried_where_it_stands(
    store: PostgresInboxStore, failed: InboxFailed, ledger: str
) -> None:
    """An operator sought back: kept as usual now, it waits in the queue, and is not put there twice."""
    row = a_row(0)
    with store.begin() as tx:
        tx.quarantine([(row.message, "its time was far from now")])
    fill(store, row)
    name = str(row.message.id)
    assert failed.retry(ids=[name], who="ann").changed == [name]
    assert query(ledger, "select count(*) from tallymark.queue") == [(1,)]
    with store.begin() as tx:
        (claimed,) = tx.claim(0, ClaimBounds(["transfers"], keys=1, rows=9, max_bytes=1000)).rows
        tx.finish([claimed])
        tx.record([Application(claimed.message, ApplicationOutcome.APPLIED, 1)])
    assert query(ledger, "select state from tallymark.dead_letters") == [("applied",)]
    assert waiting(store) == []


def test_what_was_applied_after_it_had_been_set_apart_is_not_applied_again(
    store: PostgresInboxStore, failed: InboxFailed, ledger: str
) -> None:
    first, second = message(0), message(1)
    with store.begin() as tx:
        tx.quarantine([(each, "its time was far from now") for each in (first, second)])
    with store.begin() as tx:  # read again, and applied
        tx.keep([second])
        tx.record([Application(second, ApplicationOutcome.APPLIED, 1)])
    # Its dead letter does not say so yet, and yet the key has gone on.
    refused = failed.retry(ids=[str(first.id)], who="ann").refused[str(first.id)]
    assert "later message of its key was applied" in refused
    assert (
        "read again since, and applied"
        in failed.retry(ids=[str(second.id)], who="ann").refused[str(second.id)]
    )
    assert waiting(store) == []
    letters = query(ledger, 'select "offset", state from tallymark.dead_letters order by 1')
    assert letters == [(0, "dead"), (1, "applied")]
    assert [subject for _, _, subject, _ in audits(ledger)] == [str(second.id)]


def test_what_was_read_again_after_it_had_been_set_apart_is_discarded_where_it_stands(
    store: PostgresInboxStore, failed: InboxFailed, ledger: str
) -> None:
    """Discarded, and yet in the queue, it would be applied."""
    ready, retried, done = a_row(0), a_row(1, b"bob"), message(2)
    with store.begin() as tx:
        tx.quarantine(
            [(each, "its time was far from now") for each in (ready.message, retried.message, done)]
        )
    (_, queued) = fill(store, ready, retried)
    fail(store, queued, 60)
    with store.begin() as tx:
        tx.keep([done])
        tx.record([Application(done, ApplicationOutcome.APPLIED, 1)])
    names = [str(each.id) for each in (ready.message, retried.message, done)]
    change = failed.discard(ids=names, who="ann", reason="not ours")
    assert set(change.changed) == set(names[:2])
    assert "read again since, and applied" in change.refused[names[2]]
    assert query(ledger, "select count(*) from tallymark.queue") == [(0,)]
    letters = query(ledger, 'select "offset", state, seq from tallymark.dead_letters order by 1')
    assert letters == [(0, "discarded", None), (1, "discarded", None), (2, "applied", None)]


def test_an_operator_waits_for_the_worker_that_has_the_key(
    make_store: MakeStore, failed: InboxFailed, ledger: str
) -> None:
    """Nothing is retried or discarded under a worker's hands."""
    store = make_store()
    (row,) = fill(store, a_row(0))
    fail(store, row, 0.0)
    done: list[Callable[[], object]] = []
    with store.begin() as tx:
        claimed = tx.claim(0, ClaimBounds(["transfers"], keys=1, rows=1, max_bytes=100)).rows
        operator = threading.Thread(
            target=lambda: done.append(failed.discard(who="ann", reason="x").__repr__)
        )
        operator.start()
        locked = "select count(*) from pg_locks where locktype = 'advisory' and not granted"
        wait_for(lambda: query(ledger, locked)[0][0], what="the operator waits for the key")
        tx.finish(claimed)
    operator.join(20)
    assert query(ledger, "select count(*) from tallymark.queue") == [(0,)]
    assert query(ledger, "select count(*) from tallymark.dead_letters where state = 'discarded'") == [(0,)]


@pytest.mark.parametrize("action", ["retry", "discard"])
@pytest.mark.parametrize("hold_key", [True, False])
def test_what_dies_under_the_operators_hands_is_what_he_changes(
    make_store: MakeStore, failed: InboxFailed, ledger: str, action: str, hold_key: bool
) -> None:
    """He saw it being tried; until he had its key, it was dead. No dead letter is left behind that says so for ever."""
    store = make_store()
    row, _ = fill(store, a_row(0), a_row(1))
    fail(store, row, 0.0)
    act = {"retry": failed.retry, "discard": failed.discard}[action]
    operator = threading.Thread(target=act, kwargs={"who": "ann", "reason": "x"})
    with store.begin() as tx:
        (first, *_) = tx.claim(0, ClaimBounds(["transfers"], keys=1, rows=2, max_bytes=1 << 20)).rows
        operator.start()
        locked = "select count(*) from pg_locks where locktype = 'advisory' and not granted"
        wait_for(lambda: query(ledger, locked)[0][0], what="the operator waits for the key")
        tx.fail([Failed(first, "insufficient funds", "Traceback …", None, hold_key)])
    operator.join(20)
    states = query(ledger, "select state, seq is null from tallymark.dead_letters")
    if action == "discard":
        assert states == [("discarded", True)]
        assert waiting(store) == [1]
    else:
        assert states == [("retrying", False)]
        assert waiting(store) == [0, 1]
        with store.begin() as tx:
            tx.finish(tx.claim(0, ClaimBounds(["transfers"], keys=1, rows=2, max_bytes=1 << 20)).rows)
        assert query(ledger, "select state from tallymark.dead_letters") == [("applied",)]


def test_a_retry_waits_for_those_who_apply_beside_the_queue(
    make_store: MakeStore, failed: InboxFailed, ledger: str
) -> None:
    """Pitfall 18, raced: an inline batch has found the key free and applies a later message of it."""
    store, inline = make_store(), make_store()
    row = passed_over(store, 0)
    found: list[str] = []
    with inline.begin() as tx:
        later = message(1)
        tx.keep([later])
        assert tx.held([row.key_hash]) == frozenset()
        operator = threading.Thread(
            target=lambda: found.extend(failed.retry(ids=[str(row.message.id)], who="ann").refused)
        )
        operator.start()
        locked = "select count(*) from pg_locks where locktype = 'advisory' and not granted"
        wait_for(lambda: query(ledger, locked)[0][0], what="the operator waits at the gate")
    operator.join(20)
    assert found == [str(row.message.id)]
    assert waiting(store) == []


def test_a_discard_waits_for_nobody_who_applies_unless_it_may_have_been_read_again(
    make_store: MakeStore, failed: InboxFailed, ledger: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten thousand would wait for as many batches. What was kept before it died cannot be kept anew."""
    monkeypatch.setattr(inboxoperators, "_PATIENCE", "1s")
    store, inline = make_store(), make_store()
    row, apart = passed_over(store, 0), message(1, key=b"bob")
    with store.begin() as tx:
        tx.quarantine([(apart, "its time was far from now")])
    with inline.begin() as tx:
        tx.keep([message(2)])
        assert not tx.any_queued()
        assert failed.discard(ids=[str(row.message.id)], who="ann", reason="not ours").refused == {}
        with pytest.raises(Problem, match="busy with this for 1s"):
            failed.discard(ids=[str(apart.id)], who="ann", reason="not ours")
    letters = query(ledger, 'select "offset", state, seq from tallymark.dead_letters order by 1')
    assert letters == [(0, "discarded", None), (1, "dead", None)]


def test_a_retry_waits_for_those_who_queue(make_store: MakeStore, failed: InboxFailed, ledger: str) -> None:
    """The same, deferred: a later message of the key has drawn its place, and nobody can see it yet."""
    store, deferred = make_store(), make_store()
    row = passed_over(store, 0)
    found: list[str] = []
    with deferred.begin() as tx:
        later = a_row(1)
        tx.keep([later.message])
        tx.enqueue([later])
        operator = threading.Thread(
            target=lambda: found.extend(failed.retry(ids=[str(row.message.id)], who="ann").changed)
        )
        operator.start()
        locked = "select count(*) from pg_locks where locktype = 'advisory' and not granted"
        wait_for(
            lambda: query(ledger, locked)[0][0] or not operator.is_alive(), what="the operator at the gate"
        )
    operator.join(20)
    assert found == [str(row.message.id)]
    assert waiting(store) == [0, 1], "in the order of the log"


def test_where_positions_are_is_written_down(store: PostgresInboxStore, operators: InboxOperators) -> None:
    """Of a consumer whose positions are Kafka's there are none here: whoever counts by them must know that."""
    store.enlist(instance(), 60)
    assert not operators.status("ledger")[0].in_kafka
    store.enlist(replace(instance(), positions="kafka"), 60)
    assert operators.status("ledger")[0].in_kafka


def test_a_late_retry_where_the_handler_takes_any_order(
    store: PostgresInboxStore, failed: InboxFailed
) -> None:
    """As the consumer's last process declared it: nobody has to say it again."""
    store.enlist(replace(instance(), unordered=("transfers",)), 60)
    row = passed_over(store, 0)
    apply(store, 1)
    assert failed.retry(ids=[str(row.message.id)], who="ann").refused == {}
    assert waiting(store) == [0]
