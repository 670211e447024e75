"""The least-privilege roles: each can do its work, and a producer cannot get round its floor."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import timedelta
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest

from tallymark.errors import AccessDenied
from tallymark.lifecycle import MessageState, Role
from tallymark.message import Entry, new_id
from tallymark.outbox.ports import AddOptions
from tallymark.store.postgres.migrations import apply_grants, migrate
from tallymark.store.postgres.relaystore import PostgresRelayStore
from tallymark.store.postgres.retention import Retention
from tallymark.store.postgres.writer import PostgresWriter

PASSWORD = "only-for-this-test"


def as_user(url: str, user: str) -> str:
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=f"{user}:{PASSWORD}@{parts.hostname}:{parts.port}"))


@pytest.fixture
def logins(database: str) -> Iterator[dict[str, str]]:
    """A login for each of two group roles, in a database with an outbox and the grants."""
    migrate(database, role=Role.PRODUCER, lanes=1)
    apply_grants(database)
    apply_grants(database)  # safe to repeat
    users = {role: f"{role}_{uuid.uuid4().hex[:8]}" for role in ("producer", "relay")}
    with psycopg.connect(database, autocommit=True) as owner:
        for role, user in users.items():
            owner.execute(f"create role {user} login password '{PASSWORD}' in role tallymark_{role}")
    yield {role: as_user(database, user) for role, user in users.items()}
    with psycopg.connect(database, autocommit=True) as owner:
        for user in users.values():
            owner.execute(f"drop role {user}")


def an_entry() -> Entry:
    return Entry(new_id(), "transfers", b"alice", b"{}", "{}")


def test_a_producer_adds_and_asks(logins: dict[str, str]) -> None:
    writer, entry = PostgresWriter(), an_entry()
    with psycopg.connect(logins["producer"]) as tx:
        writer.add(tx, entry, AddOptions(dedup_key="order-1", serialize_key=True))
        writer.add_many(tx, [an_entry(), an_entry()])
    with psycopg.connect(logins["producer"]) as tx:
        status = writer.status(tx, entry.id)
        assert status is not None
        assert status.state is MessageState.PENDING


@pytest.mark.parametrize(
    "statement",
    [
        "insert into tallymark.outbox (position, id, topic) values (1, gen_random_uuid(), 'transfers')",
        "insert into tallymark.outbox_1000000 (id, topic) values (gen_random_uuid(), 'transfers')",
        "alter table tallymark.outbox disable trigger outbox_take_floor",
        "select setval('tallymark.outbox_position', 1)",
        "delete from tallymark.outbox",
        "update tallymark.outbox set value = ''",
        "select value from tallymark.outbox",
        "update tallymark.lanes set covered = 0",
    ],
)
def test_a_producer_cannot_get_round_its_floor(logins: dict[str, str], statement: str) -> None:
    with psycopg.connect(logins["producer"]) as tx, pytest.raises(psycopg.errors.InsufficientPrivilege):
        tx.execute(statement)


def test_a_relay_takes_reads_and_claims(logins: dict[str, str]) -> None:
    with psycopg.connect(logins["producer"]) as tx:
        PostgresWriter().add(tx, an_entry(), AddOptions())
    store = PostgresRelayStore(logins["relay"])
    try:
        store.identity()
        lane = store.take("relay", 10)
        assert lane is not None
        piece = store.read(lane, 0, store.frontier(0), 100, 1 << 20)
        assert [row[2] for row in piece.rows] == ["transfers"]
        assert store.progress(lane, piece.upto).covered == piece.upto
        assert store.move_due(10) == 0
    finally:
        store.close()


@pytest.mark.parametrize("first", ["a-relay", "z-relay"])
def test_whoever_has_the_rights_keeps_house_though_another_is_first_by_name(
    database: str, logins: dict[str, str], first: str
) -> None:
    """Else nobody would, and writers would find no partition one day."""
    with psycopg.connect(database) as owner:
        for name in ("owners-relay", first):
            owner.execute(
                "insert into tallymark.relays (owner, host, pid, mode, version, seen_until)"
                " values (%s, '', 1, 'sync', '', now() + interval '1 hour')",
                [name],
            )
        owner.execute("select setval('tallymark.outbox_position', 40000000)")
    if first == "a-relay":
        with pytest.raises(AccessDenied):
            Retention(logins["relay"], keep=timedelta(days=7), owner=first).run_once()
    else:
        assert Retention(logins["relay"], keep=timedelta(days=7), owner=first).run_once().made == 0
    assert Retention(database, keep=timedelta(days=7), owner="owners-relay").run_once().made > 0
