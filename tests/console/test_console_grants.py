"""The role that `tallymark serve` runs as: it looks and acts, and cannot make itself a token or rewrite the audit."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import psycopg
import pytest

from tallymark.lifecycle import TokenRole
from tallymark.store.postgres.migrations import apply_grants
from tests.console.ground import FAILED, SENT, Service, filled, serve
from tests.grants.test_grants import PASSWORD, as_user


@pytest.fixture
def login(database: str) -> Iterator[str]:
    filled(database)
    apply_grants(database)
    user = f"console_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(database, autocommit=True) as owner:
        owner.execute(f"create role {user} login password '{PASSWORD}' in role tallymark_console")
    yield as_user(database, user)
    with psycopg.connect(database, autocommit=True) as owner:
        owner.execute(f"drop role {user}")


def test_it_looks_and_acts_and_can_do_no_more(database: str, login: str) -> None:
    can_do_no_more(login)
    service = serve(login, tokens_by=database)
    with service.child:
        owner = Service(service.child, service.url, database, service.tokens)
        for path in (
            *("/v1/outboxes", "/v1/consumers", "/v1/messages", "/v1/outboxes/main/batches", "/metrics"),
            *("/v1/outboxes/main/parked", "/v1/consumers/ledger/dead-letters", "/v1/audit", "/v1/tokens"),
            *("/v1/consumers/ledger/parked-keys", "/v1/findings", "/v1/certificates", "/v1/pipeline/runs"),
            *("/v1/consumers/ledger/messages", f"/v1/messages/{owner.id_at(7)}", "/readyz"),
        ):
            answer = service.get(path, TokenRole.ADMIN)
            assert answer.status_code == 200, (path, answer.text, service.child.output)
        (dead, again) = owner.query("select id::text from tallymark.dead_letters order by number limit 2")
        for path in (
            "/v1/outboxes/main/lanes/0/pause",
            "/v1/consumers/ledger/pause",
            f"/v1/outboxes/main/parked/{owner.id_at(FAILED)}/retry",
            f"/v1/consumers/ledger/dead-letters/{dead[0]}/discard",
            f"/v1/messages/{owner.id_at(SENT - 1)}/resend",
        ):
            answer = service.post(path, key=path)
            assert answer.status_code == 200, (path, answer.text, service.child.output)
            assert len(answer.json()["changed"]) == 1, (path, answer.text)
        refused = service.post(f"/v1/consumers/ledger/dead-letters/{again[0]}/retry")
        assert refused.status_code == 200, refused.text


REFUSED = [
    "insert into tallymark.api_tokens (name, hash, role, created_by) values ('x', sha256('x'), 'admin', 'x')",
    "update tallymark.api_tokens set role = 'admin'",
    "delete from tallymark.audit",
    "update tallymark.audit set who = 'nobody'",
    "update tallymark.inbox set value = ''",
    "update tallymark.outbox set value = ''",
    "delete from tallymark.outbox",
    "update tallymark.positions set next_offset = 0",
    "update tallymark.lanes set covered = 0",
    "truncate tallymark.applications",
]


def can_do_no_more(login: str) -> None:
    for statement in REFUSED:
        with psycopg.connect(login) as connection, pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute(statement)
