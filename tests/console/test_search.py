"""Looking for messages: every page, every state, whatever is typed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tallymark.lifecycle import TokenRole
from tests.console.ground import DISCARDED, FAILED, ROWS, SENDING, SENT, WAITING, Service

NASTY = [
    "'; drop table tallymark.outbox; --",
    "1 or 1=1",
    "%s %(id)s {schema} %%",
    "../../etc/passwd",
    "\\x00\\",
    "𝕬🦄\u202e",
    "<script>alert(1)</script>",
    "a" * 5000,
    "\x01\x02",
    "-1",
    "1e9",
    "null",
]


def pages(service: Service, path: str, **query: Any) -> list[dict[str, Any]]:
    """All items, page by page, as a client would take them."""
    found: list[dict[str, Any]] = []
    cursor: dict[str, Any] = {}
    while True:
        answer = service.get(path, TokenRole.ADMIN, **query, **cursor)
        assert answer.status_code == 200, answer.text
        page = answer.json()
        found += page["items"]
        if page["next"] is None:
            return found
        cursor = {"cursor": page["next"]}


def positions(service: Service, where: str) -> list[int]:
    rows = service.query(f"select position from tallymark.outbox where {where} order by position desc")
    return [row[0] for row in rows]


@pytest.mark.parametrize(
    ("query", "where"),
    [
        ({}, "true"),
        ({"topic": "notes"}, "topic = 'notes'"),
        ({"key": "key-7"}, "key = 'key-7'"),
        ({"topic": "transfers", "key": "key-7"}, "topic = 'transfers' and key = 'key-7'"),
        ({"topic": "nowhere"}, "false"),
        ({"state": "pending"}, f"position > {SENDING}"),
        ({"state": "sending"}, f"position > {SENT} and position <= {SENDING}"),
        (
            {"state": "sent"},
            f"position <= {SENT} and position not in ({FAILED}, {WAITING}, {DISCARDED})",
        ),
        ({"state": "failed"}, f"position in ({FAILED}, {WAITING})"),
        ({"state": "discarded"}, f"position in ({DISCARDED})"),
    ],
)
def test_all_pages_together_are_what_is_there(looking: Service, query: dict[str, str], where: str) -> None:
    found = pages(looking, "/v1/messages", **query, limit=333)
    assert [each["position"] for each in found] == positions(looking, where)
    if "state" in query:
        assert {each["state"] for each in found} <= {query["state"]}


def test_delayed_ones_have_pages_too(looking: Service) -> None:
    found = pages(looking, "/v1/messages", state="delayed", limit=2)
    assert len(found) == 5
    assert all(each["due_at"] and each["position"] is None for each in found)


def test_between_two_times(looking: Service) -> None:
    start, end = looking.query("select min(created_at), max(created_at) from tallymark.outbox")[0]
    low, high = start + (end - start) * 0.3, start + (end - start) * 0.4
    found = pages(looking, "/v1/messages", **{"from": low.isoformat(), "to": high.isoformat()}, limit=500)
    expected = looking.query(
        "select position from tallymark.outbox where created_at >= %s and created_at < %s order by position desc",
        low,
        high,
    )
    assert [each["position"] for each in found] == [row[0] for row in expected]
    assert 500 < len(found) < 700


def test_a_range_of_ten_years_is_as_good_as_any(looking: Service) -> None:
    ten_years = {
        "from": (datetime.now(UTC) - timedelta(days=3652)).isoformat(),
        "to": (datetime.now(UTC) + timedelta(days=1)).isoformat(),
    }
    assert len(pages(looking, "/v1/messages", **ten_years, limit=500)) == ROWS
    for edge in ("0001-01-01T00:00:00Z", "9999-12-31T23:59:59-12:00", "0001-01-01T00:00:00+14:00"):
        assert looking.get("/v1/messages", **{"from": edge}).status_code == 200
        assert looking.get("/v1/messages", **{"to": edge}).status_code == 200


@pytest.mark.parametrize("text", NASTY)
def test_whatever_is_typed_is_an_answer_or_a_clear_no(looking: Service, text: str) -> None:
    for name in ("topic", "key", "from", "to", "state", "outbox", "cursor", "limit"):
        answer = looking.get("/v1/messages", **{name: text})
        assert answer.status_code in (200, 404, 422), (name, answer.text)
        if answer.status_code != 200:
            assert answer.headers["content-type"] == "application/problem+json"
            assert text not in answer.text or len(text) < 5  # what was typed is not said back
    from urllib.parse import quote

    for path in (
        "/v1/messages/{}",
        "/v1/consumers/{}",
        "/v1/consumers/{}/messages",
        "/v1/outboxes/{}/parked",
    ):
        answer = looking.get(path.format(quote(text, safe="")))
        assert answer.status_code in (404, 405, 422), (path, answer.text)
    assert looking.value("select count(*) from tallymark.outbox") == ROWS


@pytest.mark.parametrize("id_", ["not-an-id", "00000000-0000-0000-0000-000000000000", "%00", "x" * 300])
def test_an_id_that_is_none_is_a_404_or_422(looking: Service, id_: str) -> None:
    assert looking.get(f"/v1/messages/{id_}").status_code in (404, 422)


def test_a_message_has_its_whole_trace(looking: Service) -> None:
    applied = looking.get(f"/v1/messages/{looking.id_at(200 + 1)}").json()
    assert [event["station"] for event in applied["events"]].count("apply") == 1
    assert {event["station"] for event in applied["events"]} >= {"outbox", "relay", "inbox", "apply"}
    pending = looking.get(f"/v1/messages/{looking.id_at(ROWS)}").json()
    assert [event["what"] for event in pending["events"]] == ["added in its transaction", "waits to be sent"]
    assert pending["events"][1]["because"] == "no relay has lane 0"


def test_the_trace_is_that_of_the_command_line(looking: Service) -> None:
    from tallymark.store.postgres.tracing import Tracer

    for position in (5, FAILED, DISCARDED, 3_000, SENDING - 1, ROWS):
        id_ = looking.id_at(position)
        expected = Tracer({"main": looking.database}).trace(id_)
        assert expected is not None
        told = looking.get(f"/v1/messages/{id_}").json()
        del told["payload"]
        # A queue that was filled by plain SQL has hashes of its own: found by id there, by key here.
        if not any("waits" in event.what or "retrying" in event.what for event in expected.events):
            assert told == expected.as_json()


def test_batches_parked_dead_letters_and_keys_have_pages(looking: Service) -> None:
    batches = pages(looking, "/v1/outboxes/main/batches", limit=3)
    assert [each["number"] for each in batches] == list(range(SENDING // 500, 0, -1))
    sending = pages(looking, "/v1/outboxes/main/batches", state="sending", lane=0)
    assert [each["upto"] for each in sending] == [SENDING]
    parked = pages(looking, "/v1/outboxes/main/parked", limit=1)
    assert [each["position"] for each in parked] == [FAILED, WAITING]
    dead = pages(looking, "/v1/consumers/ledger/dead-letters", limit=2)
    assert len(dead) == looking.value("select count(*) from tallymark.dead_letters")
    keys = pages(looking, "/v1/consumers/ledger/parked-keys", limit=2)
    assert len(keys) == looking.value("select count(*) from tallymark.queue")
    audit = pages(looking, "/v1/audit", limit=7)
    assert len(audit) == looking.value("select count(*) from tallymark.audit")


def test_what_the_tally_found_and_certified(looking: Service) -> None:
    found = pages(looking, "/v1/findings", limit=3)
    assert len(found) == 10
    assert {each["stage"] for each in found} == {"inbox"}
    assert len(pages(looking, "/v1/findings", limit=3, over=True)) == 15
    assert len(pages(looking, "/v1/findings", verdict="late")) == 5
    assert pages(looking, "/v1/findings", consumer="stranger") == []
    assert [each["number"] for each in pages(looking, "/v1/certificates", limit=3)] == [4, 3, 2, 1]
    (run,) = looking.get("/v1/tallies").json()
    assert run["summary"] == {"delivered": 4000}


def test_an_outbox_and_a_consumer_at_a_glance(looking: Service) -> None:
    (outbox,) = looking.get("/v1/outboxes").json()
    assert outbox["name"] == "main"
    assert outbox["backlog"] == ROWS - SENDING
    assert (outbox["parked"], outbox["waiting"], outbox["delayed"]) == (1, 1, 5)
    assert looking.get("/v1/outboxes/main").json()["outbox_id"] == outbox["outbox_id"]
    (consumer,) = looking.get("/v1/consumers").json()
    assert consumer["positions"][0]["next_offset"] == 4000
    assert consumer["lag"] is None  # no Kafka is given here
    assert consumer["dead"] == looking.value("select count(*) from tallymark.dead_letters")
    assert looking.get("/v1/pipeline/runs").json() == []


def test_what_a_handler_raised_is_told_to_those_who_see_payloads(looking: Service) -> None:
    """Its words may quote what the message contains."""
    path = "/v1/consumers/ledger/dead-letters"
    said = [looking.get(path, role).json()["items"][0] for role in (TokenRole.VIEWER, TokenRole.OPERATOR)]
    assert [each["reason"] for each in said] == ["ValueError", "ValueError: no"]
    for role, reason in ((TokenRole.VIEWER, "ValueError"), (TokenRole.OPERATOR, "ValueError: no")):
        events = looking.get(f"/v1/messages/{said[0]['id']}", role).json()["events"]
        assert [each["reason"] for each in events if each["what"] == "died"] == [reason]
    # Our own words are no secret.
    assert looking.get("/v1/consumers/ledger/parked-keys").json()["items"][0]["reason"] == "busy"
