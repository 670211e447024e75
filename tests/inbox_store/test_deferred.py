"""Constraints that are checked at the commit: looked at before it, so that it is known whose message violates them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext

import pytest

from tallymark.apply.failure import is_deferred_violation
from tallymark.store.postgres.inboxstore import PostgresInboxStore
from tests.inbox_store.conftest import message, query
from tests.inbox_store.handing import Use, handle, nested, run, state


@pytest.fixture
def holding(ledger: str) -> Iterator[str]:
    """Checked at the commit, as Django makes its foreign keys; one that is checked at once unless it is told not to."""
    query(
        ledger,
        "create table holding (name text constraint holding_name references account deferrable initially deferred,"
        " slot integer constraint holding_slot unique deferrable)",
    )
    yield ledger
    query(ledger, "drop table holding")


def hold(name: str, slot: int) -> Use:
    return lambda tx: run(tx, f"insert into holding values ('{name}', {slot})")


def test_what_a_commit_refuses_can_be_known_before(any_store: PostgresInboxStore, holding: str) -> None:
    with pytest.raises(Exception, match="holding_name") as refused:
        handle(any_store, hold("alice", 1), hold("nobody", 2))
    assert is_deferred_violation(refused.value), (
        "at the commit: as an error of a constraint, whatever wraps it"
    )
    with any_store.begin() as tx:
        tx.keep([message(0)])
        for name, slot in (("alice", 1), ("nobody", 2), ("bob", 3)):
            refusal = pytest.raises(Exception, match="holding_name") if name == "nobody" else nullcontext()
            with refusal, tx.savepoint():
                hold(name, slot)(tx.handed)
                tx.settle_handed(check=True)
    assert query(holding, "select slot from holding order by 1") == [(1,), (3,)]
    assert state(holding)[0] == 1


def test_a_look_leaves_constraints_as_they_are(any_store: PostgresInboxStore, holding: str) -> None:
    with any_store.begin() as tx:
        hold("alice", 1)(tx.handed)
        tx.settle_handed(check=True)
        hold("carol", 2)(tx.handed)  # still deferred: carol comes only now
        run(tx.handed, "insert into account values ('carol', 0)")
        with pytest.raises(Exception, match="holding_slot"), nested(tx.handed):
            hold("alice", 1)(tx.handed)  # still at once
        tx.settle_handed(check=True)
    assert query(holding, "select slot from holding order by 1") == [(1,), (2,)]
