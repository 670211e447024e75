"""Nobody without a token; each role what it may; limits on what comes in; nothing secret on the way out."""

from __future__ import annotations

import socket
from datetime import timedelta
from urllib.parse import urlsplit

import httpx
import pytest

from tallymark.lifecycle import TokenRole
from tallymark.store.postgres.tokens import Tokens
from tests.console.ground import FAILED, Service, serve

PATHS = [
    "/v1/messages",
    "/v1/outboxes",
    "/v1/consumers",
    "/metrics",
    "/v1/openapi.json",
    "/v1/no-such",
    "/",
    "/docs",
]


def is_problem(answer: httpx.Response, status: int) -> None:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["status"] == status
    assert answer.json()["title"]


@pytest.mark.parametrize("path", PATHS)
def test_nobody_without_a_token(looking: Service, path: str) -> None:
    answer = looking.get(path, None)
    is_problem(answer, 401)
    assert answer.headers["www-authenticate"].startswith("Bearer")
    for wrong in ("Bearer nonsense", "Basic dXNlcjpwYXNz", "Bearer", f"Bearer {'x' * 500}"):
        is_problem(httpx.get(looking.url + path, headers={"Authorization": wrong}, timeout=30), 401)


def test_the_probes_are_open_and_say_little(looking: Service) -> None:
    for path in ("/healthz", "/readyz"):
        answer = looking.get(path, None)
        assert (answer.status_code, answer.json()) == (200, {"ok": True})


def test_an_expired_and_a_revoked_token_are_refused_at_once(looking: Service) -> None:
    tokens = Tokens(looking.database)
    token, made = tokens.create("short-lived", TokenRole.VIEWER, who="tests", expires=timedelta(hours=1))
    headers = {"Authorization": f"Bearer {token}"}
    assert httpx.get(looking.url + "/v1/outboxes", headers=headers, timeout=30).status_code == 200
    looking.query(
        "update tallymark.api_tokens set created_at = now() - interval '2 h', expires_at = now() where number = %s",
        made.number,
    )
    told = httpx.get(looking.url + "/v1/outboxes", headers=headers, timeout=30)
    is_problem(told, 401)
    assert "expired" in told.json()["detail"]
    looking.query("update tallymark.api_tokens set expires_at = null where number = %s", made.number)
    assert httpx.get(looking.url + "/v1/outboxes", headers=headers, timeout=30).status_code == 200
    tokens.revoke("short-lived", who="tests")
    told = httpx.get(looking.url + "/v1/outboxes", headers=headers, timeout=30)
    is_problem(told, 401)
    assert "revoked" in told.json()["detail"]


@pytest.mark.parametrize(
    ("method", "path", "least"),
    [
        ("POST", "/v1/outboxes/main/lanes/0/pause", TokenRole.OPERATOR),
        ("POST", "/v1/consumers/ledger/pause", TokenRole.OPERATOR),
        ("POST", "/v1/consumers/ledger/dead-letters/x/discard", TokenRole.OPERATOR),
        ("GET", "/v1/audit", TokenRole.ADMIN),
        ("GET", "/v1/tokens", TokenRole.ADMIN),
        ("POST", "/v1/tokens/nobody/revoke", TokenRole.ADMIN),
    ],
)
def test_a_lesser_role_may_not(looking: Service, method: str, path: str, least: TokenRole) -> None:
    before = looking.value("select count(*) from tallymark.audit where action not like 'tokens%%'")
    for role in TokenRole:
        if role.includes(least):
            continue
        answer = httpx.request(
            method, looking.url + path, json={"reason": "x"}, headers=looking.headers(role), timeout=30
        )
        is_problem(answer, 403)
        assert str(least) in answer.json()["remedy"]
    assert looking.value("select count(*) from tallymark.audit where action not like 'tokens%%'") == before


def test_payloads_are_hidden_from_a_viewer(looking: Service) -> None:
    id_ = looking.id_at(FAILED + 1)
    hidden = looking.get(f"/v1/messages/{id_}", TokenRole.VIEWER)
    assert hidden.json()["payload"] is None
    assert '"n"' not in hidden.text
    shown = looking.get(f"/v1/messages/{id_}", TokenRole.OPERATOR).json()["payload"]
    assert shown["text"] == f'{{"n":{FAILED + 1}}}'
    assert shown["headers"]["ce_source"] == "/bank"


def test_browsers_are_told_to_be_careful(looking: Service) -> None:
    for answer in (looking.get("/v1/outboxes"), looking.get("/healthz", None), looking.get("/v1/x", None)):
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-store"
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert "server" not in answer.headers


def test_unknown_routes_and_methods_are_problems(looking: Service) -> None:
    is_problem(looking.get("/v1/no-such-thing"), 404)
    told = httpx.delete(looking.url + "/v1/outboxes", headers=looking.headers(TokenRole.ADMIN), timeout=30)
    is_problem(told, 405)
    assert "GET" in told.headers["allow"]


def test_answers_are_packed_where_asked(looking: Service) -> None:
    answer = looking.get("/v1/messages", limit=500)
    assert answer.headers["content-encoding"] == "gzip"
    assert len(answer.json()["items"]) == 500


@pytest.mark.parametrize("length", ["104857600", "65537"])
def test_a_body_of_100_mb_is_refused_before_it_is_read(looking: Service, length: str) -> None:
    address = urlsplit(looking.url)
    head = (
        f"POST /v1/consumers/ledger/pause HTTP/1.1\r\nHost: x\r\n"
        f"Authorization: Bearer {looking.tokens[TokenRole.OPERATOR]}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
    )
    with socket.create_connection((address.hostname or "", address.port or 0), timeout=20) as connection:
        connection.sendall(head.encode())
        answer = connection.recv(65536)
    assert b" 413 " in answer.split(b"\r\n", 1)[0]
    assert b"application/problem+json" in answer


def test_a_body_that_does_not_say_how_large_it_is_is_cut_off_too(looking: Service) -> None:
    def chunks() -> object:
        for _ in range(100):
            yield b" " * 1_000_000

    try:
        answer = httpx.post(
            looking.url + "/v1/consumers/ledger/pause",
            content=chunks(),  # type: ignore[arg-type] # a generator of bytes
            headers={**looking.headers(TokenRole.OPERATOR), "Content-Type": "application/json"},
            timeout=30,
        )
        is_problem(answer, 413)
    except (httpx.WriteError, httpx.ReadError, httpx.RemoteProtocolError):
        pass  # it hung up while we were still sending: what was not read was not kept
    assert looking.get("/healthz", None).status_code == 200


def test_too_many_wrong_tokens_and_the_address_waits(shared_database: str) -> None:
    service = serve(shared_database, "--wrong-tokens", "3", suffix="-limited")
    with service.child:
        assert service.get("/v1/outboxes").status_code == 200
        bad = {"Authorization": "Bearer tmk_" + "x" * 43}
        said = [
            httpx.get(service.url + "/v1/outboxes", headers=bad, timeout=30).status_code for _ in range(5)
        ]
        assert said == [401, 401, 401, 429, 429]
        limited = httpx.get(service.url + "/v1/outboxes", headers=bad, timeout=30)
        is_problem(limited, 429)
        assert 0 < int(limited.headers["retry-after"]) <= 61
        # Who was let in before still is.
        assert service.get("/v1/outboxes").status_code == 200
        output = service.child.output
    assert "tmk_x" not in output
    for token in service.tokens.values():
        assert token not in output


def test_nothing_that_was_asked_or_said_is_in_the_log(looking: Service) -> None:
    looking.get("/v1/messages", key="very-private-key", topic="nowhere")
    looking.get("/v1/messages", limit="very-private-limit")
    looking.get(f"/v1/messages/{looking.id_at(77)}", TokenRole.OPERATOR)
    output = looking.child.output
    assert "very-private" not in output
    assert '"n"' not in output
    for token in looking.tokens.values():
        assert token not in output
