"""A store for a thread that others wait for: where the database says nothing it gives up, and comes back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from tallymark.errors import TallymarkError
from tallymark.store.postgres import prompt
from tallymark.store.postgres.inboxstore import PostgresInboxStore
from tests.inbox_store.conftest import MakeStore, offsets, query, taken, wanted

OURS = {("transfers", 0): 1}
ASKS: dict[str, Callable[[PostgresInboxStore], Any]] = {
    "positions": lambda store: store.positions(),
    "take": taken,
    "found_topic": lambda store: store.found_topic([wanted(topic="new")]),
    "release": lambda store: store.release("me", OURS),
    "halt": lambda store: store.halt(("transfers", 0), 1, "it cannot be read"),
}
WAITING_ENDED = """select pg_terminate_backend(pid, 5000) from pg_stat_activity
 where datname = current_database() and wait_event_type = 'Lock'"""


@pytest.mark.parametrize("asked", ASKS)
def test_whoever_polls_waits_for_no_answer(
    make_store: MakeStore, ledger: str, monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    monkeypatch.setattr(prompt, "ANSWER_S", 1)
    store = make_store(prompt=True)
    taken(store)
    with psycopg.connect(ledger) as other:
        other.execute("set idle_in_transaction_session_timeout = '8s'")
        other.execute("lock table tallymark.positions in access exclusive mode")
        with pytest.raises(TallymarkError, match=r"lost the connection|no answer within"):
            ASKS[asked](store)
        ended = query(ledger, WAITING_ENDED)
    assert ended == [(True,)], "the server would do it yet"
    assert offsets(store) == {("transfers", 0): 0}
