"""C9: whatever a message does to its handler, the partition goes on; its own key waits, in order, and is named.

Each account stands for one fate. Its messages are: a good one, the odd one, a good one.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tallymark.message import new_id
from tallymark.store.postgres.inboxfailed import InboxFailed
from tests.conftest import MakeTopic
from tests.inbox.ground import Ground, headers
from tests.inbox.test_offsets import send_with_header
from tests.waiting import wait_for

# What the odd message does, the attempts after which it is dead, and what its dead letter says.
FATES: dict[str, tuple[int, str]] = {
    "raise": (3, "RuntimeError: the handler was told to fail"),
    "permanent": (1, "NoSuchAccount"),
    "commit": (1, "handler called tx.commit()"),
    "rollback": (1, "handler called tx.rollback()"),
    "close": (1, "handler called tx.close()"),
    "sql-commit": (1, 'handler called tx.execute("COMMIT")'),
}


@pytest.mark.parametrize("mode", ["inline", "deferred"])
def test_a_bad_message_holds_its_key_and_nothing_else(inbox_ground: Ground, mode: str) -> None:
    ground = inbox_ground
    fates = [*FATES, "raise-once", "broken", "good"]
    account = {fate: f"account-{number}" for number, fate in enumerate(fates)}
    odd = {}
    ground.send_values([value(ground, account[fate]) for fate in fates])
    for fate in fates:
        if fate == "broken":
            odd[fate] = str(new_id())
            ground.send_raw([(account[fate].encode(), b'{"n": 1, ', headers(odd[fate]))])
        else:
            (odd[fate],) = ground.send_values([value(ground, account[fate], do=fate)])
    ground.send_values([value(ground, account[fate]) for fate in fates])
    held = len(FATES) + 1
    with ground.inbox(mode=mode, batch_messages=500) as child:
        ground.wait_applied(3 * len(fates) - 2 * held, child)
        wait_for(lambda: dead(ground) == held, what="what is bad is dead")
        # The same process, the same partitions: they go on.
        ground.send_values([value(ground, account["good"]) for _ in range(20)])
        ground.wait_applied(3 * len(fates) - 2 * held + 20, child)
        child.terminate()
        assert child.wait() == 0, child.output
    for fate in fates:
        effects = ground.query("select n, amount from effect where account = %s order by seq", account[fate])
        (balance,) = ground.query("select balance from account where id = %s", account[fate])[0]
        assert balance == sum(amount for _, amount in effects), f"{fate}: half of it was applied"
        assert [n for n, _ in effects] == sorted(n for n, _ in effects), f"{fate}: out of order"
        waiting = ground.query(
            "select state, attempts from tallymark.queue where id = any(%s)", [[odd[fate]]]
        )
        behind = ground.value(
            "select count(*) from tallymark.queue q join tallymark.inbox i using (id, source, consumer)"
            " where convert_from(i.key, 'utf8') = %s",
            account[fate],
        )
        if fate in ("raise-once", "good"):
            assert (len(effects), waiting, behind) == (23 if fate == "good" else 3, [], 0)
            continue
        attempts, reason = FATES.get(fate, (1, "DecodeFailed"))
        assert (len(effects), waiting, behind) == (1, [("dead", attempts)], 2), fate
        ((found, traceback, counted, offset),) = ground.query(
            'select reason, traceback, attempts, "offset" from tallymark.dead_letters where id = %s',
            odd[fate],
        )
        assert reason in found
        assert counted == attempts
        assert offset is not None
        assert fate == "broken" or "app.py" in traceback
    attempt = "select attempt from tallymark.applications where id = %s"
    assert ground.value(attempt, odd["raise-once"]) == 2


def test_a_value_that_does_not_fit_its_model(inbox_ground: Ground, make_topic: MakeTopic) -> None:
    ground = inbox_ground
    topic = make_topic(1)
    good, bad = [{"n": n, "account": "account-1", "amount": 3} for n in (1, 2)], {"n": "many", "account": 5}
    ids = [str(new_id()) for _ in range(3)]
    ground.send_raw(
        [
            (b"good", json.dumps(good[0]).encode(), headers(ids[0])),
            (b"bad", json.dumps(bad).encode(), headers(ids[1])),
            (b"good", json.dumps(good[1]).encode(), headers(ids[2])),
        ],
        topic=topic,
    )
    ground.apply_all(2, modelled=[topic])
    ((id_, reason, attempts),) = ground.query("select id::text, reason, attempts from tallymark.dead_letters")
    assert (id_, attempts) == (ids[1], 1)
    assert "Transfer" in reason


def test_a_message_whose_headers_cannot_be_read_is_applied_on_an_operators_word(inbox_ground: Ground) -> None:
    """The partition goes on behind it; it has a value, and its dead letter says what it lacks."""
    ground = inbox_ground
    made = json.dumps(value(ground, "account-1")).encode()
    send_with_header(ground.servers, ground.topic, b"\xff\xfe", value=made)
    ground.send(40)
    with ground.inbox() as child:
        ground.wait_applied(40, child)
        wait_for(lambda: dead(ground) == 1, what="it is set apart")
        ((id_, reason),) = ground.query("select named, reason from tallymark.dead_letters")
        assert "a name among them is not UTF-8" in reason
        assert InboxFailed(ground.url).retry(ids=[id_], who="ann").changed == [id_]
        ground.wait_applied(41, child)
        child.terminate()
        assert child.wait() == 0, child.output
    assert ground.value("select count(*) from tallymark.positions where halted is not null") == 0


def test_where_any_order_will_do_nothing_waits(inbox_ground: Ground) -> None:
    ground = inbox_ground
    for do in (None, "raise", None):
        ground.send_values([value(ground, "account-1", do=do)])
    with ground.inbox(order="any") as child:
        ground.wait_applied(2, child)
        wait_for(lambda: dead(ground) == 1, what="what is bad is dead")
    assert ground.query("select n from effect order by n") == [(1,), (3,)]


@pytest.mark.parametrize("mode", ["inline", pytest.param("deferred", marks=pytest.mark.full)])
def test_a_list_with_one_bad_message_in_it(inbox_ground: Ground, mode: str) -> None:
    ground = inbox_ground
    values = [value(ground, f"account-{number % 12}") for number in range(60)]
    values[30]["do"] = "raise"
    ids = ground.send_values(values)
    behind = [each for each in values[30:] if each["account"] == values[30]["account"]]
    with ground.inbox(batch=True, mode=mode) as child:
        ground.wait_applied(60 - len(behind), child)
        wait_for(lambda: dead(ground) == 1, what="what is bad is dead")
        child.terminate()
        assert child.wait() == 0, child.output
    assert ground.value("select id::text from tallymark.dead_letters") == ids[30]
    assert ground.value("select count(*) from tallymark.queue") == len(behind)
    found = ground.compare(without=[ids[values.index(each)] for each in behind])
    assert found.is_clean, found


@pytest.mark.parametrize("mode", ["inline", pytest.param("deferred", marks=pytest.mark.full)])
def test_a_handler_that_hangs(inbox_ground: Ground, mode: str) -> None:
    """It is reported, counts as a failed attempt and is tried again; when the thread wakes, its transaction is over."""
    ground = inbox_ground
    ground.send(60)
    (hung,) = ground.send(1, account="account-1", do="hang")
    ground.send(60)
    with ground.inbox(mode=mode, handler_timeout=1, hangs=15, workers=2) as child:
        ground.wait_applied(121, child)
        assert "did not come back within 1 s" in child.output
        ground.send(20)
        ground.wait_applied(141, child)
        child.terminate()
        assert child.wait() == 0, child.output
    assert ground.value("select attempt from tallymark.applications where id = %s", hung) == 2
    assert dead(ground) == 0
    found = ground.compare()
    assert found.is_clean, found


def value(ground: Ground, account: str, *, do: str | None = None) -> dict[str, Any]:
    ground.sent += 1
    return {"n": ground.sent, "account": account, "amount": 7, **({"do": do} if do else {})}


def dead(ground: Ground) -> int:
    return int(ground.value("select count(*) from tallymark.dead_letters where state = 'dead'"))
