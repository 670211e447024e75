"""A store for a thread that others wait for: where the database says nothing it gives up, and comes back."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any

import psycopg
import pytest

from tallymark.errors import OutcomeUnknown, Problem, TallymarkError
from tallymark.store.postgres import prompt
from tallymark.store.postgres.inboxoperators import InboxOperators
from tallymark.store.postgres.inboxstore import PostgresInboxStore
from tests.inbox_store.conftest import MakeStore, instance, offsets, query, taken, wanted
from tests.waiting import wait_for

OURS = {("transfers", 0): 1}
ASKS: dict[str, Callable[[PostgresInboxStore], Any]] = {
    "positions": lambda store: store.positions(),
    "take": taken,
    "found_topic": lambda store: store.found_topic([wanted(topic="new")]),
    "release": lambda store: store.release("me", OURS),
    "halt": lambda store: store.halt(("transfers", 0), 1, "it cannot be read"),
}
WAITING = (
    """select pid from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"""
)
# What is met at a commit: a disk that stalls (it hears of no cancellation), a server that goes, a constraint that was put
# off until now.
WAITS = """perform pg_advisory_xact_lock(4711);
           exception when query_canceled then perform pg_advisory_xact_lock(4711)"""
ENDS = "perform pg_terminate_backend(pg_backend_pid())"
REFUSES = "raise exception 'not today'"
COMMITS: dict[str, tuple[str, Callable[[PostgresInboxStore, InboxOperators], Any]]] = {
    "found_topic": ("positions", lambda store, _: store.found_topic([wanted()])),
    "enlist": ("instances", lambda store, _: store.enlist(instance(), 60)),
    "pause": ("audit", lambda _, operators: operators.pause("ledger", who="ann", reason="")),
}


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
        wait_for(lambda: not query(ledger, WAITING), within=4, what="nothing waits in the server for nobody")
    assert offsets(store) == {("transfers", 0): 0}


def at_commit(url: str, table: str, what: str) -> None:
    query(
        url,
        f"""create function public.at_commit() returns trigger language plpgsql as $$ begin {what}; return null; end $$;
            create constraint trigger at_commit after insert on tallymark.{table} deferrable initially deferred
               for each row execute function public.at_commit()""",
    )


def test_whoever_polls_waits_for_no_commit(fresh_ledger: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Statements are answered, and commits are not. Whether it was done is unknown: whoever asks again finds it."""
    monkeypatch.setattr(prompt, "ANSWER_S", 1)
    at_commit(fresh_ledger, "positions", WAITS)
    with closing(PostgresInboxStore(fresh_ledger, "ledger", prompt=True)) as store:
        with psycopg.connect(fresh_ledger) as other:
            other.execute("select pg_advisory_xact_lock(4711)")
            with pytest.raises(OutcomeUnknown, match="during a commit"):
                store.found_topic([wanted(start=7)])
        store.found_topic([wanted(start=9)])
        assert offsets(store) == {("transfers", 0): 7}, "it was only late"


@pytest.mark.parametrize("asked", COMMITS)
def test_what_is_met_at_a_commit_is_said_in_our_words(fresh_ledger: str, asked: str) -> None:
    """Anything else would pass whoever waits for the database to come back, and end the process."""
    table, ask = COMMITS[asked]
    operators = InboxOperators(fresh_ledger)
    with closing(PostgresInboxStore(fresh_ledger, "ledger")) as store:
        if asked == "pause":
            store.enlist(instance(), 60)
        at_commit(fresh_ledger, table, ENDS)
        with pytest.raises(OutcomeUnknown, match="during a commit"):
            ask(store, operators)
        query(fresh_ledger, "drop function public.at_commit cascade")
        at_commit(fresh_ledger, table, REFUSES)
        with pytest.raises(Problem, match="not today"):
            ask(store, operators)
        query(fresh_ledger, "drop function public.at_commit cascade")
        ask(store, operators)
