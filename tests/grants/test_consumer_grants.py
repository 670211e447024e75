"""The consumer's role: it keeps, applies and moves on, and cannot rewrite what was kept or what was applied."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import psycopg
import pytest

from tallymark.inbox.ports import Application, ClaimBounds, Failed, Instance, Move, Queued, Wanted
from tallymark.lifecycle import ApplicationOutcome, OwnerKind, Role
from tallymark.store.postgres.inboxfailed import InboxFailed
from tallymark.store.postgres.inboxoperators import InboxOperators
from tallymark.store.postgres.inboxstore import PostgresInboxStore
from tallymark.store.postgres.migrations import apply_grants, migrate
from tallymark.store.postgres.pipelinestore import PipelineStore
from tests.grants.test_grants import PASSWORD, as_user
from tests.inbox_store.conftest import message


@pytest.fixture
def logins(database: str) -> Iterator[dict[str, str]]:
    migrate(database, role=Role.CONSUMER)
    apply_grants(database)
    apply_grants(database)  # safe to repeat
    users = {role: f"{role}_{uuid.uuid4().hex[:8]}" for role in ("consumer", "reader")}
    with psycopg.connect(database, autocommit=True) as owner:
        # The newest partitions are missing, so that someone has to make them.
        (newest,) = owner.execute(
            "select max(relname) from pg_class where relname ~ '^inbox_[0-9]+$'"
        ).fetchone() or ("",)
        owner.execute(f"drop table tallymark.{newest}, tallymark.{newest.replace('inbox', 'applications')}")
        for role, user in users.items():
            owner.execute(f"create role {user} login password '{PASSWORD}' in role tallymark_{role}")
    yield {role: as_user(database, user) for role, user in users.items()}
    with psycopg.connect(database, autocommit=True) as owner:
        for user in users.values():
            owner.execute(f"drop role {user}")


def work(url: str) -> None:
    """All that an inbox does, and an operator at it."""
    store = PostgresInboxStore(url, "ledger")
    try:
        store.enlist(Instance("me", "ledger", ("transfers",), "deferred", "1", "host", 1), 60)
        store.found_topic([Wanted("transfers", 0, "id", 0), Wanted("transfers", 1, "id", 0)])
        (mine,) = store.take("me", OwnerKind.SERVICE, 60, [Wanted("transfers", 0, "id", 0)])
        kept = [message(0), message(1), message(2)]
        with store.begin() as tx:
            tx.keep(kept)
            rows = [
                Queued(each, 1, seq)
                for each, seq in zip(kept, tx.enqueue([Queued(m, 1) for m in kept]), strict=True)
            ]
            tx.advance([Move("transfers", 0, mine.epoch, 0, 3, None, None)])
        foreign = message(7, id=uuid.UUID(int=7), named="order-7")
        with store.begin() as tx:
            again = [kept[0], foreign, foreign._replace(offset=8)]
            assert list(tx.keep(again).repeated) == [0, 2]
            assert tx.held([1]) == {1}
            assert len(tx.claim(0, ClaimBounds(["transfers"], keys=1, rows=9, max_bytes=1 << 20)).rows) == 3
            tx.finish(rows[:1])
            tx.fail([Failed(rows[1], "no", "", None), Failed(rows[2], "no", "", 60.0)])
            tx.record([Application(kept[0], ApplicationOutcome.APPLIED, 1)])
            tx.raise_version("transfers", b"alice", 1)
            tx.quarantine([(message(9), "odd")])
        store.heartbeat("me", 60, {mine.place: mine.epoch})
        store.memory()
        store.count_fenced([mine.place])
        store.halt(mine.place, mine.epoch, "look")
        failed, operators = InboxFailed(url), InboxOperators(url)
        failed.retry(who="ann", ids=[str(kept[1].id)])
        failed.discard(who="ann", reason="x")
        operators.pause("ledger", who="ann", reason="x")
        operators.seek("ledger", {mine.place: 1}, who="ann", reason="x")
        operators.status("ledger")
        store.release("me", {mine.place: mine.epoch})
        store.leave("me")
    finally:
        store.close()


def test_a_consumer_keeps_applies_and_goes_on(logins: dict[str, str]) -> None:
    work(logins["consumer"])


def test_a_consumer_runs_the_pipeline_and_forgets_old_runs(logins: dict[str, str]) -> None:
    url = logins["consumer"]
    inbox = PostgresInboxStore(url, "ledger")
    store = PipelineStore(url, lambda: inbox, schema="tallymark", consumer="ledger", run="0" * 12)
    store.begin("me", ["transfers"], "local")
    with psycopg.connect(url) as tx:
        tx.execute(
            "insert into tallymark.runs (run, consumer, owner, topics, master, host, pid, version, seen_at)"
            " values ('111111111111', 'ledger', 'o', '{}', 'm', 'h', 1, '0', now() - interval '31 days')"
        )
    store.forget()
    with psycopg.connect(url) as tx:
        assert tx.execute("select run from tallymark.runs").fetchall() == [("0" * 12,)]
    store.end(None)
    inbox.close()


def test_a_reader_sees_it_all(logins: dict[str, str]) -> None:
    work(logins["consumer"])
    assert [status.consumer for status in InboxOperators(logins["reader"]).status()] == ["ledger"]
    assert InboxFailed(logins["reader"]).messages(limit=10) is not None
    with psycopg.connect(logins["reader"]) as tx, pytest.raises(psycopg.errors.InsufficientPrivilege):
        tx.execute("update tallymark.positions set next_offset = 0")


@pytest.mark.parametrize(
    "statement",
    [
        "update tallymark.inbox set value = ''",
        "delete from tallymark.inbox",
        "delete from tallymark.applications",
        "update tallymark.applications set outcome = 'applied'",
        "insert into tallymark.inbox_named (id, source, topic, partition, consumer) values"
        " (gen_random_uuid(), '', '', 0, '')",
        "drop table tallymark.inbox_past",
        "update tallymark.inbox_identity set kept_from = now()",
        "delete from tallymark.dead_letters",
        "delete from tallymark.audit",
        "delete from tallymark.positions",
        "select setval('tallymark.queue_seq', 65536)",
    ],
)
def test_a_consumer_cannot_rewrite_what_was(logins: dict[str, str], statement: str) -> None:
    with psycopg.connect(logins["consumer"]) as tx, pytest.raises(psycopg.errors.InsufficientPrivilege):
        tx.execute(statement)
