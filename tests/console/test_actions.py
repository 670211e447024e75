"""Actions: done once however often they are asked for, with their audit, or not at all when killed in between."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any

import httpx
import pytest

from tallymark.console.client import Client
from tallymark.console.problems import Refused
from tallymark.console.world import Served, World
from tallymark.inbox.identity import named_id
from tallymark.lifecycle import TokenRole
from tallymark.store.postgres.searchpool import SearchPool
from tests.console.ground import FAILED, ROWS, SENT, Service, filled, serve


def audit(service: Service) -> list[tuple[str, str, str, str]]:
    return [
        (who, action, subject, reason)
        for who, action, subject, reason in service.query(
            "select who, action, subject, reason from tallymark.audit where who like 'token%%' order by at, seq"
        )
    ]


def test_pausing_and_resuming_a_lane(own: Service) -> None:
    done = own.post("/v1/outboxes/main/lanes/0/pause", reason="a look")
    assert done.json() == {"changed": ["lane 0"], "unchanged": {}, "repeated": False}
    assert own.value("select paused from tallymark.lanes where lane = 0")
    again = own.post("/v1/outboxes/main/lanes/0/pause", reason="a look")
    assert again.json()["changed"] == []
    assert own.post("/v1/outboxes/main/lanes/0/resume", reason="seen").json()["changed"] == ["lane 0"]
    assert not own.value("select paused from tallymark.lanes where lane = 0")
    assert audit(own) == [
        ("token operator", "relay.pause", "lanes 0", "a look"),
        ("token operator", "relay.resume", "lanes 0", "seen"),
    ]
    assert own.post("/v1/outboxes/main/lanes/9/pause").status_code == 404
    assert own.post("/v1/outboxes/other/lanes/0/pause").status_code == 404


def test_pausing_and_resuming_a_consumer(own: Service) -> None:
    with Client(own.url, own.tokens[TokenRole.OPERATOR]) as client:
        assert client.pause_consumer("ledger", reason="migration").changed == ("ledger",)
        assert own.value("select paused from tallymark.consumers")
        assert client.pause_consumer("ledger", reason="migration").unchanged
        assert client.resume_consumer("ledger", reason="done").changed == ("ledger",)
    assert own.post("/v1/consumers/stranger/pause").status_code == 404
    assert [row[1] for row in audit(own)] == ["inbox.pause", "inbox.resume"]


def test_retrying_and_discarding_what_is_parked(own: Service) -> None:
    id_ = own.id_at(FAILED)
    path = f"/v1/outboxes/main/parked/{id_}"
    assert own.post(f"{path}/retry").json()["changed"] == [id_]
    assert own.value("select state from tallymark.parked where position = %s", FAILED) == "retrying"
    assert own.post(f"{path}/retry").json()["unchanged"] == {id_: "it has not failed"}
    own.query("update tallymark.parked set state = 'failed' where position = %s", FAILED)
    assert own.post(f"{path}/discard", reason="gone").json()["changed"] == [id_]
    assert own.post(f"{path}/discard", reason="gone").json()["changed"] == []
    assert [row[1] for row in audit(own)] == ["failed.retry", "failed.discard"]
    assert own.post("/v1/outboxes/main/parked/not-an-id/retry").status_code == 422


def test_retrying_and_discarding_dead_letters(own: Service) -> None:
    first, second = own.query("select id::text from tallymark.dead_letters order by number limit 2")
    path = "/v1/consumers/ledger/dead-letters"
    assert own.post(f"{path}/{second[0]}/discard", reason="gone").json()["changed"] == [second[0]]
    # A later message of its key was applied: refused, with the reason.
    told = own.post(f"{path}/{first[0]}/retry").json()
    assert told["changed"] == []
    assert "could overwrite newer state" in told["unchanged"][first[0]]
    assert own.post(f"{path}/unknown/retry").json()["unchanged"] == {"unknown": "it has not failed"}
    assert [row[1:3] for row in audit(own)] == [("failed.discard", second[0])]


def test_all_dead_letters_of_an_id_are_one_transaction(own: Service) -> None:
    """The key answers for all of them: one that was left out by a crash would be left out for ever."""
    ((id_,),) = own.query("select id::text from tallymark.dead_letters order by number limit 1")
    own.query(
        'insert into tallymark.dead_letters (consumer, source, id, topic, partition, "offset", state, reason)'
        " select consumer, source, id, topic, partition, \"offset\" + 1000000, 'dead', 'no'"
        " from tallymark.dead_letters where id = %s",
        id_,
    )
    try:
        told = own.post(f"/v1/consumers/ledger/dead-letters/{id_}/discard", key="both").json()
        assert told["changed"] == [id_, id_]
        rows = own.query("select xmin::text from tallymark.audit where subject = %s", id_)
        assert (len(rows), len(set(rows))) == (2, 1)
        again = own.post(f"/v1/consumers/ledger/dead-letters/{id_}/discard", key="both").json()
        assert (again["changed"], again["repeated"]) == ([id_, id_], True)
    finally:
        own.query('delete from tallymark.dead_letters where "offset" > 1000000')


def test_which_of_two_consumers_of_one_name_must_be_said(own: Service) -> None:
    with closing(SearchPool(own.database)) as pool:
        world = World({name: Served(name, own.database, "tallymark", pool) for name in ("one", "other")})
        assert world.consumer("ledger", "other").name == "other"
        with pytest.raises(Refused) as refused:
            world.consumer("ledger")
        assert (refused.value.status, "one, other" in (refused.value.remedy or "")) == (409, True)
        with pytest.raises(Refused) as refused:
            world.consumer("ledger", "elsewhere")
        assert refused.value.status == 404
    assert own.post("/v1/consumers/ledger/pause?database=main").json()["changed"] == ["ledger"]
    assert own.post("/v1/consumers/ledger/pause?database=other").status_code == 404


def test_an_id_may_hold_slashes(own: Service) -> None:
    name = "orders/2026/7?#%2F"
    own.query(
        "insert into tallymark.dead_letters (consumer, source, id, named, topic, partition, state, reason)"
        " values ('ledger', '/shop', %s, %s, 'transfers', 0, 'dead', 'no')",
        named_id(name.encode()),
        name,
    )
    try:
        with Client(own.url, own.tokens[TokenRole.OPERATOR]) as client:
            found = client.message(name)
            assert found is not None
            assert found["id"] == name
            assert client.message("orders/2026/8") is None
            assert client.discard_dead("ledger", name, reason="gone").changed == (name,)
        assert own.value("select state from tallymark.dead_letters where named = %s", name) == "discarded"
    finally:
        own.query("delete from tallymark.dead_letters where named is not null")


def test_sending_a_message_again(own: Service) -> None:
    lost = own.id_at(SENT - 1)
    done = own.post(f"/v1/messages/{lost}/resend", reason="lost in the inbox", key="again").json()
    assert done == {"changed": [lost], "unchanged": {}, "repeated": False}
    assert own.value("select count(*) from tallymark.outbox where id = %s", lost) == 2
    assert own.post(f"/v1/messages/{lost}/resend", key="again", reason="lost in the inbox").json()["repeated"]
    # Without a key it is refused by nature: it was resent, or its new row is on its way.
    why = own.post(f"/v1/messages/{lost}/resend").json()["unchanged"][lost]
    assert "resent since" in why or "sent anyway" in why
    assert own.value("select count(*) from tallymark.outbox where id = %s", lost) == 2
    pending = own.id_at(ROWS)
    assert "sent anyway" in own.post(f"/v1/messages/{pending}/resend").json()["unchanged"][pending]
    assert own.post("/v1/messages/00000000-0000-7000-8000-000000000000/resend").status_code == 404
    assert [row[1:3] for row in audit(own)] == [("tally.resend", lost)]


def test_a_reason_is_needed(own: Service) -> None:
    headers = own.headers(TokenRole.OPERATOR)
    wrong: list[Any] = [
        {},
        {"reason": ""},
        {"reason": 7},
        {"reason": "x" * 501},
        {"reason": "x", "more": 1},
        [],
        "x",
    ]
    for body in wrong:
        answer = httpx.post(own.url + "/v1/consumers/ledger/pause", json=body, headers=headers, timeout=30)
        assert answer.status_code == 422, body
    answer = httpx.post(own.url + "/v1/consumers/ledger/pause", content=b"{", headers=headers, timeout=30)
    assert answer.status_code == 422
    assert audit(own) == []


def test_the_same_key_is_answered_as_the_first_time(own: Service) -> None:
    (id_,) = own.query("select id::text from tallymark.dead_letters order by number limit 1")[0]
    path = f"/v1/consumers/ledger/dead-letters/{id_}/discard"
    first = own.post(path, key="k-1").json()
    second = own.post(path, key="k-1").json()
    assert first == {"changed": [id_], "unchanged": {}, "repeated": False}
    assert second == {"changed": [id_], "unchanged": {}, "repeated": True}
    assert own.post(path).json()["changed"] == []
    reused = own.post("/v1/consumers/ledger/pause", key="k-1")
    assert reused.status_code == 409
    assert "another request" in reused.json()["detail"]
    assert len(audit(own)) == 1
    assert own.value("select details->>'key' from tallymark.audit where who = 'token operator'") == "k-1"


def test_keys_are_each_bearers_own(own: Service) -> None:
    path = "/v1/outboxes/main/lanes/0"
    assert own.post(f"{path}/pause", TokenRole.OPERATOR, key="same").json()["changed"]
    assert own.post(f"{path}/resume", TokenRole.ADMIN, key="same").json()["changed"]


def test_many_at_once_with_one_key_do_it_once(own: Service) -> None:
    id_ = own.id_at(FAILED)
    answers: list[dict[str, object]] = []

    def ask() -> None:
        answers.append(own.post(f"/v1/outboxes/main/parked/{id_}/retry", key="one").json())

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [answer["changed"] for answer in answers] == [[id_]] * 8
    assert sum(not answer["repeated"] for answer in answers) == 1
    assert len(audit(own)) == 1


ACTIONS: dict[str, tuple[Callable[[Service], str], str]] = {
    "lane": (
        lambda _: "/v1/outboxes/main/lanes/0/pause",
        "select count(*) from tallymark.lanes where paused",
    ),
    "consumer": (
        lambda _: "/v1/consumers/ledger/pause",
        "select count(*) from tallymark.consumers where paused",
    ),
    "parked": (
        lambda service: f"/v1/outboxes/main/parked/{service.id_at(FAILED)}/retry",
        "select count(*) from tallymark.parked where state = 'retrying'",
    ),
    "resend": (
        lambda service: f"/v1/messages/{service.id_at(SENT - 3)}/resend",
        "select count(*) from tallymark.resends",
    ),
    "dead-letter": (
        lambda service: (
            "/v1/consumers/ledger/dead-letters/"
            + str(service.value("select id::text from tallymark.dead_letters order by number limit 1"))
            + "/discard"
        ),
        "select count(*) from tallymark.dead_letters where state = 'discarded'",
    ),
}


def killed(database: str, point: str, names: Sequence[str]) -> None:
    """Each action is killed at the point; then asked for again, as a client does that got no answer."""
    done = point == "console.after_commit"
    paths = {}
    for name in names:
        path_of, count = ACTIONS[name]
        service = serve(database, crash_point=point)
        before = len(audit(service))
        paths[name] = path_of(service)
        with service.child:
            with pytest.raises(httpx.HTTPError):
                pytest.fail(f"{name}: answered: {service.post(paths[name], key=f'key-{name}').text}")
            assert service.child.wait() == -signal.SIGKILL, service.child.output
        assert service.value(count) == int(done), name
        assert len(audit(service)) - before == int(done), name
    after = serve(database)
    with after.child:
        for name, path in paths.items():
            told = after.post(path, key=f"key-{name}").json()
            assert told["repeated"] is done, name
            assert len(told["changed"]) == 1, name
            assert after.value(ACTIONS[name][1]) == 1, name
        assert len(audit(after)) == len(names)


@pytest.mark.parametrize(
    ("point", "names"),
    [
        ("console.before_commit", ["parked", "dead-letter", "resend"]),
        ("console.after_commit", ["dead-letter"]),
    ],
)
def test_killed_in_mid_action_it_happened_once_or_not_at_all(
    database: str, point: str, names: Sequence[str]
) -> None:
    filled(database)
    killed(database, point, names)


@pytest.mark.full
@pytest.mark.parametrize("point", ["console.before_commit", "console.after_commit"])
def test_any_action_killed_happened_once_or_not_at_all(database: str, point: str) -> None:
    filled(database)
    killed(database, point, list(ACTIONS))
