"""C10, C11, pitfall 13: what comes again, under the same id or another, early or late, changes nothing."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from tallymark.message import new_id
from tests.inbox.ground import Ground, headers
from tests.waiting import wait_for

MESSAGES = 200


@pytest.mark.parametrize("mode", ["inline", pytest.param("deferred", marks=pytest.mark.full)])
@pytest.mark.parametrize(
    "scheme",
    ["saved-id", *(pytest.param(each, marks=pytest.mark.full) for each in ("unique-constraint", "version"))],
)
def test_everything_is_delivered_again(inbox_ground: Ground, scheme: str, mode: str) -> None:
    """From offset 0 with everything known; then, where the scheme needs no saved id, with those gone too."""
    ground = inbox_ground
    ground.send(MESSAGES)
    ground.apply_all(MESSAGES, scheme=scheme, mode=mode)
    before = state(ground)
    read_again(ground, scheme=scheme, mode=mode)
    assert state(ground) == before
    assert outcomes(ground) == {"applied": MESSAGES}
    if scheme != "saved-id":
        ground.query("delete from tallymark.inbox")
        read_again(ground, scheme=scheme, mode=mode)
        assert state(ground) == before
        told = "already" if scheme == "unique-constraint" else "older"
        assert outcomes(ground) == {"applied": MESSAGES, told: MESSAGES}
    found = ground.compare()
    assert found.is_clean, found


def test_two_consumers_in_one_database_both_apply(inbox_ground: Ground) -> None:
    ground = inbox_ground
    ids = ground.send(100)
    with ground.inbox() as one, ground.inbox(name=f"{ground.name}-other") as other:
        ground.wait_applied(200, one, other)
        for child in (one, other):
            child.terminate()
        for child in (one, other):
            assert child.wait() == 0, child.output
    assert Counter(row[0] for row in ground.query("select message_id from effect")) == dict.fromkeys(ids, 2)
    kept = ground.query("select consumer, count(*) from tallymark.inbox group by 1 order by 1")
    assert kept == [(ground.name, 100), (f"{ground.name}-other", 100)]


@pytest.mark.parametrize("batch", [False, True])
def test_an_older_version_after_a_newer_one(inbox_ground: Ground, batch: bool) -> None:
    ground = inbox_ground
    ids = ground.send_values(
        [{"n": n, "account": "account-1", "amount": 10 * n} for n in (1, 3, 2, 4, 4)], transaction=5
    )
    with ground.inbox(scheme="version", batch=batch) as child:
        ground.wait_applied(3, child)
        wait_for(lambda: sum(outcomes(ground).values()) == 5, what="all five are told apart")
    assert [row[0] for row in ground.query("select n from effect order by seq")] == [1, 3, 4]
    assert ground.value("select balance from account where id = 'account-1'") == 80
    older = ground.query("select id::text from tallymark.applications where outcome = 'older' order by seq")
    assert older == [(ids[2],), (ids[4],)]


def test_an_id_that_is_used_again(inbox_ground: Ground) -> None:
    """With the same contents it is the same message; with others it is nobody's guess, and named."""
    ground = inbox_ground
    same, other = str(new_id()), str(new_id())
    first = {"n": 1, "account": "account-1", "amount": 5}
    second = {"n": 2, "account": "account-1", "amount": 6}
    ground.send_values([first], id=same)
    ground.send_values([first], id=other)
    ground.send_values([first, first], id=same)  # twice within one batch, too
    ground.send_values([second], id=other)
    # Another source's ids are its own.
    ground.send_raw(
        [(b"account-2", json.dumps({**first, "account": "account-2"}).encode(), headers(same, "/shop"))]
    )
    with ground.inbox() as child:
        ground.wait_applied(3, child)
        wait_for(lambda: ground.value("select count(*) from tallymark.dead_letters") == 1, what="it is named")
        wait_for(all_read(ground), what="everything is read")
    assert ground.applied() == 3
    ((id_, reason),) = ground.query("select id::text, reason from tallymark.dead_letters")
    assert (id_, reason) == (other, "its id was used before, for other contents")


def test_messages_without_an_id_are_known_by_their_place(inbox_ground: Ground) -> None:
    ground = inbox_ground
    record = (b"account-1", b'{"n": 1, "account": "account-1", "amount": 5}', None)
    ground.send_raw([record, record], partition=0)
    ground.apply_all(2)
    read_again(ground)
    names = ground.query("select message_id from effect order by 1")
    assert [name.rpartition("@")[0] for (name,) in names] == [
        f"{ground.topic}/0/{offset}" for offset in (0, 1)
    ]
    assert ground.value("select balance from account where id = 'account-1'") == 10


def read_again(ground: Ground, **options: Any) -> None:
    """An operator goes back to the beginning; all of it is read."""
    ground.query(
        "update tallymark.positions set next_offset = 0, epoch = epoch + 1, owner = null, owner_kind = null,"
        " lease_until = null, topic_id = ''"
    )
    with ground.inbox(**options) as child:
        wait_for(all_read(ground), what="everything is read again")
        wait_for(lambda: ground.value("select count(*) from tallymark.queue") == 0, what="the queue is empty")
        child.terminate()
        assert child.wait() == 0, child.output


def all_read(ground: Ground) -> Callable[[], bool]:
    """Whether the positions lie behind the log's last messages."""
    last = {record.partition: record.offset for record in ground.log()}

    def is_so() -> bool:
        positions = ground.positions()
        return all(positions.get(partition, 0) > offset for partition, offset in last.items())

    return is_so


def state(ground: Ground) -> list[tuple[object, ...]]:
    return ground.query("select id, balance from account order by 1") + ground.query(
        "select * from effect order by seq"
    )


def outcomes(ground: Ground) -> dict[str, int]:
    return dict(ground.query("select outcome, count(*) from tallymark.applications group by 1"))
