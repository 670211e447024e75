"""P5: a handler that ends its transaction past the guard costs its own message, and no other's effect (C9)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from tallymark.apply.applier import Applier
from tallymark.apply.handlers import Handlers
from tallymark.apply.incoming import Message
from tallymark.inbox.book import Book
from tallymark.inbox.config import InboxConfig
from tallymark.inbox.handover import Batch
from tallymark.inbox.identity import key_hash
from tallymark.inbox.keeper import Keeper
from tallymark.inbox.ports import Queued, Received
from tallymark.inbox.screening import Screen
from tallymark.inbox.workers import Noticed, Worker
from tallymark.store.postgres.inboxstore import PostgresInboxStore
from tests.inbox_store.conftest import MakeStore, message, query, taken

CONFIG = InboxConfig("ledger", ("transfers",))
BAD = 3
Ending = Callable[[Any], None]


def beneath(tx: Any, statement: str) -> None:
    """By a cursor that nothing guards."""
    raw = tx.connection if hasattr(tx, "execute_wrapper") else tx
    if hasattr(tx, "begin_nested"):
        raw = tx.connection().connection.driver_connection
    psycopg.ClientCursor(raw).execute(statement)


def ends(statement: str) -> Ending:
    return lambda tx: beneath(tx, statement)


def ends_and_raises(tx: Any) -> None:
    beneath(tx, "commit")
    raise RuntimeError("and then something else")


def applier(end: Ending, called: list[int], *, batch: bool = False) -> Applier:
    handlers = Handlers()

    def write(message: Message, tx: Any) -> None:
        called.append(message.offset or 0)
        if message.offset == BAD:
            end(tx)
        statement = f"insert into effect values ({message.offset})"
        if hasattr(tx, "execute_wrapper"):
            tx.cursor().execute(statement)
        elif hasattr(tx, "begin_nested"):
            tx.connection().exec_driver_sql(statement)
        else:
            tx.execute(statement)

    def write_all(messages: Sequence[Message], tx: Any) -> None:
        for each in messages:
            write(each, tx)

    if batch:
        handlers.handler("transfers", batch=True)(write_all)
    else:
        handlers.handler("transfers")(write)
    return Applier(handlers)


@pytest.fixture
def effects(ledger: str) -> str:
    query(ledger, "drop table if exists effect")
    query(ledger, "create table effect (n integer)")
    return ledger


def messages() -> list[Received]:
    """Six of them, each of a key of its own but for the last, which stands behind the third."""
    keys = [0, 1, 2, 3, 4, 3]
    return [message(n, key=b"%d" % key) for n, key in enumerate(keys)]


def keep(store: PostgresInboxStore, apply: Applier) -> None:
    """One inline batch, with its position."""
    (position,) = taken(store)
    book = Book()
    book.take(position)
    place = position.place
    now = datetime.now(UTC)
    screen = Screen(apply.needs_saved_id, now - timedelta(days=1), now)
    keeper = Keeper(store, apply, book, screen, CONFIG, threading.Event())
    keeper.run_once(Batch(messages(), {place: 0}, {place: 6}, {}, {place: position.epoch}))
    assert store.positions()[place].next_offset == 6


def work(store: PostgresInboxStore, apply: Applier) -> None:
    """Rounds until nothing is due."""
    worker = Worker(store, apply, CONFIG, threading.Event(), held_back=threading.Event(), noticed=Noticed())
    for _ in range(20):
        done = worker.run_round()
        if done is not None and not done.claimed:
            return
    raise AssertionError("a message is worked on without end")


def left(ledger: str) -> tuple[list[int], list[int], list[tuple[int, str]]]:
    """Effects, applications and dead letters, by offset; and that nothing but what waits behind those is queued."""
    made = [n for (n,) in query(ledger, "select n from effect order by n")]
    marked = (
        'select i."offset" from tallymark.applications a join tallymark.inbox i using (id, source, consumer)'
    )
    applied = [n for (n,) in query(ledger, f"{marked} order by 1")]
    dead = query(ledger, 'select "offset", reason from tallymark.dead_letters order by 1')
    return made, applied, dead


@pytest.mark.parametrize(
    ("end", "said"),
    [
        (ends("commit"), "something that ended its transaction"),
        (ends("rollback"), "something that ended its transaction"),
        (ends_and_raises, "RuntimeError: and then something else"),
    ],
    ids=["commit", "rollback", "commit-and-raise"],
)
@pytest.mark.parametrize("deferred", [False, True], ids=["inline", "deferred"])
@pytest.mark.parametrize(
    "kind",
    ["psycopg", *(pytest.param(each, marks=pytest.mark.full) for each in ("sqlalchemy", "django"))],
    indirect=True,
)
def test_every_other_message_has_its_effect_once(
    any_store: PostgresInboxStore, effects: str, end: Ending, said: str, deferred: bool
) -> None:
    called: list[int] = []
    apply = applier(end, called)
    if deferred:
        with any_store.begin() as tx:
            rows = messages()
            tx.keep(rows)
            tx.enqueue([Queued(m, key_hash(m.topic, m.key, m.id)) for m in rows])
    else:
        keep(any_store, apply)
    work(any_store, apply)
    made, applied, dead = left(effects)
    assert made == applied == [0, 1, 2, 4], "each once, and what stands behind the dead one waits"
    assert [offset for offset, _ in dead] == [BAD]
    assert said in dead[0][1]
    assert called.count(BAD) == 1, "it is not called again"
    assert query(effects, 'select "offset", state from tallymark.queue order by seq') == [
        (3, "dead"),
        (5, "ready"),
    ]


@pytest.mark.parametrize("statement", ["commit", "rollback"])
def test_of_a_list_that_ended_its_transaction_nobody_knows_what_was_made(
    make_store: MakeStore, effects: str, statement: str
) -> None:
    """Committed, all of it is dead: to apply any of it again could be twice. Rolled back, the one is looked for."""
    store, called = make_store(), list[int]()
    apply = applier(ends(statement), called, batch=True)
    keep(store, apply)
    work(store, apply)
    made, applied, dead = left(effects)
    if statement == "commit":
        assert (made, applied) == ([0, 1, 2], [])
        assert [offset for offset, _ in dead] == [0, 1, 2, 3, 4, 5]
    else:
        assert made == applied == [0, 1, 2, 4]
        assert [offset for offset, _ in dead] == [BAD]
