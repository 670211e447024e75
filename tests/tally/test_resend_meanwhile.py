"""What is sent again never comes behind what others write of its key meanwhile (pitfall 18); and who has to be asked."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Timer
from typing import Any

import psycopg
import pytest

from tallymark.errors import Problem
from tallymark.lifecycle import Role
from tallymark.store.postgres.connection import Connection
from tallymark.store.postgres.resend import Resending, wanted_of
from tests.tally.resends import Ground, tables
from tests.waiting import wait_for

__all__ = ["tables"]

WRITE = (
    "insert into tallymark.outbox (id, topic, key, value) values (tallymark.new_id(), 'transfers', %s, 'y')"
)
LOOKED, WRITTEN = "what main has applied", "what others have written"
SESSIONS = (
    "select count(*) from pg_stat_activity"
    " where datname = current_database() and application_name = 'tallymark tally resend'"
)


@pytest.fixture
def one_key(tables: str) -> Ground:
    return Ground(tables, ["alice", "bob", "alice"])


@pytest.fixture
def writer(one_key: Ground) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(one_key.url) as connection:
        yield connection


class Impatient(Resending):
    """Its sessions may idle in a transaction for a second, not for a minute."""

    @contextmanager
    def _open(self, url: str, role: Role) -> Iterator[Connection]:
        with super()._open(url, role) as connection:
            connection.execute("set local idle_in_transaction_session_timeout = '1s'")
            yield connection


def resend(
    ground: Ground,
    *numbers: int,
    when: str = "",
    then: Callable[[], object] = list,
    kind: type[Resending] = Resending,
) -> list[str]:
    """`then`: what somebody does when it is told that it does what begins so."""

    def told(text: str) -> None:
        if when and text.startswith(when):
            then()

    found = [{"id": ground.ids[n], "verdict": "lost-in-inbox", "position": n + 1} for n in numbers]
    made = kind(ground.url, {"main": ground.url}, progress=told, patience_s=2.0).resend(
        wanted_of(found), who="ann", reason="", any_order=False, dry_run=False
    )
    return [str(each["id"]) for each in made.resent]


def written(ground: Ground) -> int:
    return int(ground.query("select count(*) from tallymark.outbox")[0][0])


def test_what_is_committed_between_the_look_and_the_resend_is_seen(
    one_key: Ground, writer: psycopg.Connection[Any]
) -> None:
    def write() -> None:
        writer.execute(WRITE, [b"bob"])
        writer.commit()

    with pytest.raises(Problem, match=f"later message of the key of {one_key.ids[1]} was written meanwhile"):
        resend(one_key, 1, when=LOOKED, then=write)
    assert written(one_key) == 4


def test_what_was_drawn_before_and_is_committed_later_is_waited_for(
    one_key: Ground, writer: psycopg.Connection[Any]
) -> None:
    writer.execute(WRITE, [b"bob"])
    with pytest.raises(Problem, match="was written meanwhile"):
        resend(one_key, 1, when=WRITTEN, then=Timer(0.3, writer.commit).start)
    assert written(one_key) == 4


def test_who_does_not_end_is_not_waited_for_for_ever(
    one_key: Ground, writer: psycopg.Connection[Any]
) -> None:
    writer.execute(WRITE, [b"carol"])
    with pytest.raises(Problem, match="is still open"):
        resend(one_key, 1)
    writer.commit()
    # Another key's is in nobody's way, and neither is what was there when it was looked.
    assert resend(one_key, 1) == [one_key.ids[1]]


def test_who_writes_behind_it_is_in_nobodys_way(one_key: Ground, writer: psycopg.Connection[Any]) -> None:
    def write() -> None:
        writer.execute(WRITE, [b"bob"])
        writer.commit()

    assert resend(one_key, 1, when=WRITTEN, then=write) == [one_key.ids[1]]


def test_an_inbox_takes_the_time_that_it_needs_to_answer(
    one_key: Ground, writer: psycopg.Connection[Any]
) -> None:
    """The outbox's transaction idles meanwhile, and is not ended for that."""

    def hold() -> None:
        writer.execute("lock table tallymark.inbox_identity in access exclusive mode")
        Timer(2.0, writer.commit).start()

    assert resend(one_key, 1, when=LOOKED, then=hold, kind=Impatient) == [one_key.ids[1]]


def test_who_stops_with_rows_that_it_has_added_stops_the_relays_for_no_longer_than_others(
    one_key: Ground,
) -> None:
    """From the first row on it holds a floor: there it may idle as long as any session of ours, and then it is ended."""

    def stop() -> None:
        wait_for(lambda: one_key.query(SESSIONS) == [(0,)], within=20, what="its session is ended")

    with pytest.raises(Problem, match="due to idle-in-transaction timeout"):
        resend(one_key, 1, when=WRITTEN, then=stop, kind=Impatient)
    assert written(one_key) == 3


def second_consumer(ground: Ground) -> None:
    ground.query(
        "insert into tallymark.consumers (name, topics, mode) values ('audit', '{transfers}', 'inline')"
    )


def test_a_later_one_that_is_sent_again_for_others_is_still_on_its_way(one_key: Ground) -> None:
    """The ledger lacks the first; the second is sent again for the audit's sake, and the ledger has yet to read it."""
    second_consumer(one_key)
    found = [
        {"id": one_key.ids[n], "verdict": "lost-in-inbox", "position": n + 1, "consumer": consumer}
        for n, consumer in ((0, "ledger"), (2, "audit"))
    ]
    done = Resending(one_key.url, {"main": one_key.url}).resend(
        wanted_of(found), who="ann", reason="", any_order=False, dry_run=False
    )
    assert [each["id"] for each in done.resent] == [one_key.ids[2]]
    assert "is on its way to ledger" in done.refused[one_key.ids[0]]


def test_what_is_lost_for_all_needs_everybody_that_the_tally_knew(one_key: Ground) -> None:
    readers = {"ledger": ["transfers"], "audit": ["transfers"], "news": ["papers"]}
    one_key.missed(1, "")
    one_key.query(
        "insert into tallymark.tallies (run, who, from_position, to_position, summary)"
        " select run, 'ann', 0, 9, %s::json from tallymark.findings",
        json.dumps({"consumers": readers}),
    )
    _, refused = one_key.resend(1)
    assert "audit lacks it, and its database was not asked" in refused[one_key.ids[1]]
    second_consumer(one_key)
    assert one_key.resend(1)[0] == [one_key.ids[1]]
