"""The typed client: every action, the same as over HTTP by hand, and every refusal as an error of ours."""

from __future__ import annotations

import pytest

from tallymark.console.client import Client
from tallymark.errors import AccessDenied, Problem, Unreachable, UsageError
from tallymark.lifecycle import MessageState, TokenRole
from tests.console.ground import FAILED, ROWS, SENT, WAITING, Service


def test_every_action_is_there_and_does_what_it_says(own: Service) -> None:
    dead = [
        id_ for (id_,) in own.query("select id::text from tallymark.dead_letters order by number limit 2")
    ]
    with Client(own.url, own.tokens[TokenRole.OPERATOR]) as client:
        assert client.pause_lane("main", 0, reason="a look").changed == ("lane 0",)
        assert own.value("select paused from tallymark.lanes where lane = 0")
        assert client.resume_lane("main", 0, reason="seen").changed == ("lane 0",)
        failed, waiting = own.id_at(FAILED), own.id_at(WAITING)
        assert client.retry_parked("main", failed, reason="put right").changed == (failed,)
        assert client.discard_parked("main", waiting, reason="of no use").changed == (waiting,)
        assert client.discard_dead("ledger", dead[0], reason="of no use").changed == (dead[0],)
        assert "overwrite newer state" in client.retry_dead("ledger", dead[1], reason="?").unchanged[dead[1]]
        assert client.pause_consumer("ledger", database="main", reason="a look").changed == ("ledger",)
        assert client.resume_consumer("ledger", database="main", reason="seen").changed == ("ledger",)
        with pytest.raises(Problem, match="there is no such consumer"):
            client.pause_consumer("ledger", database="elsewhere", reason="?")
        lost = own.id_at(SENT - 1)
        first = client.resend(lost, outbox="main", reason="lost", key="once")
        again = client.resend(lost, outbox="main", reason="lost", key="once")
        assert (first.changed, first.repeated, again.changed, again.repeated) == (
            (lost,),
            False,
            (lost,),
            True,
        )
    # Each that changed something, once.
    told = own.query("select action from tallymark.audit where who like 'token%%' order by at, seq")
    assert [action for (action,) in told] == [
        "relay.pause",
        "relay.resume",
        "failed.retry",
        "failed.discard",
        "failed.discard",
        "inbox.pause",
        "inbox.resume",
        "tally.resend",
    ]


def test_looking(looking: Service) -> None:
    with Client(looking.url, looking.tokens[TokenRole.VIEWER]) as client:
        (outbox,) = client.outboxes()
        (consumer,) = client.consumers()
        assert (outbox["name"], consumer["name"]) == ("main", "ledger")
        id_ = looking.id_at(1)
        found = client.message(id_)
        assert found is not None
        assert found["id"] == id_
        assert client.message("00000000-0000-7000-8000-000000000000") is None
        failed = {each.position: each for each in client.messages(state=MessageState.FAILED)}
        assert (str(failed[FAILED].id), failed[FAILED].reason) == (looking.id_at(FAILED), "too large")
        assert len(list(client.messages(topic="notes"))) == ROWS // 10, "page after page"


def test_refusals_are_errors_of_ours(looking: Service) -> None:
    with pytest.raises(UsageError, match="starts with http"):
        Client("localhost:8321", "t")
    with Client(looking.url, "tmk_wrong") as stranger, pytest.raises(AccessDenied):
        stranger.outboxes()
    with Client(looking.url, looking.tokens[TokenRole.VIEWER]) as viewer:
        with pytest.raises(AccessDenied):
            viewer.pause_consumer("ledger", reason="may I?")
        with pytest.raises(Problem, match="no such consumer"):
            list(viewer.sent_to("stranger"))
    with Client("http://127.0.0.1:9", "t") as nowhere, pytest.raises(Unreachable, match="does not answer"):
        nowhere.consumers()
