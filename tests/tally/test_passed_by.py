"""Which windows a later run passes by: those that are certified, settled, for everybody, and by nobody's hand changed."""

from __future__ import annotations

import uuid
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from tallymark.broker.reach import admin_client
from tallymark.lifecycle import Stage, Verdict
from tallymark.pipeline.reconcile import uncompared
from tallymark.pipeline.reconcilecells import Cells
from tallymark.pipeline.reconcilecertify import EMPTY_AT_ONCE, examined, stated
from tallymark.pipeline.reconcileground import TallyConfig
from tallymark.pipeline.reconcilerange import choose_range
from tallymark.pipeline.reconcilesources import Sources
from tallymark.pipeline.reconcileverify import Verification, data, links
from tallymark.store.postgres.findings import Findings
from tallymark.store.postgres.migrations import migrate
from tallymark.store.postgres.tally import ConsumerView
from tallymark.tally.certificates import Statement
from tallymark.tally.chain import issued, trusted
from tallymark.tally.findings import Finding, Scope
from tallymark.tally.windows import Frontier
from tests import journal
from tests.tally.test_accounting import TEN, first_of, said, whole
from tests.tally.test_certifying import NOW, P0, digest, ground, ledger


def test_empty_windows_are_certified_so_that_a_later_run_gets_past_them() -> None:
    found = whole()
    found.outbox[4], found.log[4] = whole(4).outbox[4], whole(4).log[4]
    found.inbox["ledger"][4] = {"t": digest(*TEN)}
    found.effects["ledger", 4] = digest(*TEN)
    where = ground(view=replace(ground().view, frontier=Frontier(54, None, 54)))
    given = [each for _, each in examined(where, found, set()) if isinstance(each, Statement)]
    assert [(each.window.start, each.written) for each in given] == [
        *((0, 10), (10, 0), (20, 0), (30, 0), (40, 10))
    ]
    assert first_of(where, *given) == 50
    assert [each.resume["t/0"] for each in given] == [40, 40, 40, 40, 100]
    # Those that were certified already are not asked for again; and never more than so many.
    where.certified = {1: {}, 2: {}}
    assert [window.start for window, _ in examined(where, found, set())] == [0, 30, 40]
    far = ground(view=replace(ground().view, frontier=Frontier(10**15, None, 10**15)))
    assert len(list(examined(far, found, set()))) == EMPTY_AT_ONCE + 2


def test_a_closed_window_without_a_certificate_has_a_reason() -> None:
    assert dict(examined(ground(), whole(), {0}))[whole().window(0)] == "something was found in it"


def test_a_run_over_copies_knows_nothing_of_what_was_after_the_archive_was_made() -> None:
    earlier, later = NOW - timedelta(hours=1), NOW + timedelta(hours=1)
    assert (ground().looked_at, ground(log_copied_at=later).looked_at) == (NOW, NOW)
    old = ground(log_copied_at=earlier)
    assert (old.looked_at, stated(old, whole(), 0).looked_at) == (earlier, earlier)
    # Messages are no younger for that: where nothing is logged, for the relay stands, they are late.
    assert old.view.at == NOW


def test_what_a_copy_shows_in_part_is_not_compared_and_that_is_said() -> None:
    view = replace(ground().view, frontier=Frontier(99, 40, 40))
    assert uncompared(ground(view=view, beyond=view.frontier.visible + 1)) == [
        "bank: a transaction was open when it was copied; from position 41 on nothing is compared"
    ]
    assert uncompared(ground(beyond=100)) == []
    assert uncompared(ground(view=view)) == []


def test_a_window_is_looked_at_again_for_a_consumer_that_was_not_asked() -> None:
    alone = ground(consumers={})
    given = said(alone, whole())
    assert first_of(alone, given) == 10
    # Another one is owed it; and where nobody knows when it began, it is.
    both = ground(consumers={"ledger": ledger(), "audit": ledger()})
    assert first_of(both, given) == 0
    again = said(both, _kept_by_both())
    assert isinstance(again, Statement)
    assert isinstance(given, Statement)
    assert again.supersedes(given)
    # Who was not asked now keeps what was said of him, settled or not.
    assert not given.supersedes(again)
    assert not given.supersedes(replace(again, parked=1))
    assert first_of(both, again) == 10
    # One that began behind it, or reads something else, is owed nothing of it.
    assert first_of(ground(consumers={"late": ledger(starts={P0: 10})}), given) == 10
    assert first_of(ground(consumers={"late": ledger(starts={P0: 9})}), given) == 0
    other = ConsumerView("ledger", "other", frozenset({"other"}), NOW, 2**32)
    assert first_of(ground(consumers={"other": other}), given) == 10


def test_who_looked_earlier_supersedes_nobody_who_looked_later() -> None:
    """A run over copies, or one that took longer: what it says is older than the certificate that is there."""
    later = said(ground(ledger(dead_at=[0])), whole(applied=digest(*range(1, 10))))
    assert isinstance(later, Statement)
    earlier = replace(later, parked=1, looked_at=NOW - timedelta(seconds=1))
    more = replace(earlier, offsets={"t/0": (0, 70)})
    for each in (earlier, more):
        assert not each.supersedes(later)
        assert replace(each, looked_at=NOW).supersedes(later)
        # Of the first forms nobody knows.
        assert each.supersedes(replace(later, looked_at=None))
        assert not each.supersedes(replace(later, looked_at=None), issued_at=NOW), (
            "by when it was given, then"
        )
    assert later.supersedes(earlier)


def _kept_by_both(other: str = "audit") -> Cells:
    found = whole()
    found.inbox[other][0] = {"t": digest(*TEN)}
    found.effects[other, 0] = digest(*TEN)
    return found


def test_one_that_was_retired_bars_no_certificate_of_its_successor() -> None:
    given = said(ground(), whole())
    after = ground(consumers={"ledger2": ledger()})
    again = said(after, _kept_by_both("ledger2"))
    assert isinstance(again, Statement)
    assert isinstance(given, Statement)
    assert first_of(after, given) == 0
    assert not again.supersedes(given)
    assert again.supersedes(given, retired={"ledger"})
    assert first_of(after, again) == 10
    # Nobody came after it: what was certified stays as it is, but for what waited for it.
    nobody = said(ground(consumers={}), whole())
    dead = said(ground(ledger(dead_at=[0])), whole(applied=digest(*range(1, 10))))
    assert isinstance(nobody, Statement)
    assert isinstance(dead, Statement)
    assert not nobody.supersedes(given, retired={"ledger"})
    assert nobody.supersedes(dead, retired={"ledger"})
    assert not nobody.supersedes(dead)


def test_one_that_was_retired_is_held_to_nothing() -> None:
    given = issued(stated(ground(), whole(), 0), None)

    def wrong(**changes: Any) -> list[str]:
        found = Verification()
        data([given], ground(consumers={}, **changes), whole(), found)
        return [each["what"] for each in found.wrong]

    assert wrong() == ["no database or snapshot that was given has a consumer ledger"]
    assert wrong(retired=frozenset({"ledger"})) == []


def test_a_window_of_which_something_is_open_is_looked_at_again_and_those_behind_it() -> None:
    given = [said(ground(), whole()), stated(ground(), whole(1), 1), stated(ground(), whole(2), 2)]
    assert first_of(ground(), *given) == 30
    assert first_of(ground(), *given, amiss={1, 7}) == 10
    assert first_of(ground(), *given, amiss={0, 2}) == 0
    assert first_of(ground(), *given, amiss={3}) == 30


@pytest.fixture
def chain(database: str) -> Findings:
    migrate(database)
    return Findings(database)


def test_what_was_tampered_with_counts_for_nothing_and_breaks_nothing(
    chain: Findings, database: str, bootstrap_servers: str
) -> None:
    given = [stated(ground(), whole(number), number) for number in range(3)]
    chain.certify(given)
    sources = Sources({"bank": database}, {}, {}, admin_client({"bootstrap.servers": bootstrap_servers}))

    def begins() -> tuple[int, int, int]:
        where = ground()
        choose_range(where, sources, TallyConfig())
        return where.first, where.rows, len(where.remarks)

    assert begins() == (30, 10, 0)
    # What stands beside the first of all says nothing of how wide windows are.
    journal.query(database, "update tallymark.certificates set window_end = 11 where number = 1")
    assert begins() == (0, 10, 1)
    journal.query(database, "update tallymark.certificates set window_end = 10 where number = 1")
    # No JSON any more, and the first of all: how wide windows are is told by the next one.
    for number, first in ((2, 10), (1, 0)):
        journal.query(
            database,
            "update tallymark.certificates set statement = statement || '}' where number = %s",
            [number],
        )
        assert begins() == (first, 10, 1)
    found = Verification()
    links(chain.chain(), found)
    assert [(each["certificate"], each["window"]) for each in found.wrong] == [(1, [0, 10]), (2, [10, 20])]
    # The last one is still as it was signed.
    assert [each.said.window.start for each in chain.certify(given)] == [0, 10]
    assert chain.certify(given) == []


def test_what_a_run_says_that_looked_before_a_certificate_is_closed_by_the_next_run(
    chain: Findings, database: str, bootstrap_servers: str
) -> None:
    """It ended behind the one that found the window clean: nobody would have read it again."""
    sources = Sources({"bank": database}, {}, {}, admin_client({"bootstrap.servers": bootstrap_servers}))

    def begins(**changes: Any) -> int:
        where = ground(**changes)
        choose_range(where, sources, TallyConfig())
        return where.first

    def ran(*found: Finding, after_s: int) -> None:
        run, scope = uuid.uuid4(), Scope(0, 99, whole=True)
        chain.begin(run, scope, who="ann")
        chain.keep(run, scope, found, at=NOW + timedelta(seconds=after_s))
        chain.end(run, {"consumers": {"ledger": ["t"], "audit": ["t"]}})

    def lost(position: int | None, consumer: str, verdict: Verdict = Verdict.LOST_IN_INBOX) -> Finding:
        return Finding(f"m{position}", None, "t", 0, 5, position, consumer, Stage.INBOX, verdict, "")

    chain.certify([stated(ground(), whole(number), number) for number in range(3)])
    both = {"ledger": ledger(), "audit": ledger(starts={P0: 100})}
    assert begins(consumers=both) == 30
    ran(lost(15, "ledger"), after_s=-60)
    assert begins(consumers=both) == 10
    ran(after_s=0)
    assert begins(consumers=both) == 30
    # Whatever the verdict: where all was accounted for when it was certified, nobody is dead there.
    ran(lost(25, "ledger", Verdict.DEAD), after_s=60)
    assert begins(consumers=both) == 20
    # Without a position it is in no window; and what a run cannot close is no reason to read all again.
    ran(lost(None, "ledger"), lost(5, "audit"), after_s=120)
    assert begins(consumers=both) == 0
    assert begins() == 30


def test_a_run_keeps_the_end_of_the_chain_against_those_who_cut_it_off(
    chain: Findings, database: str
) -> None:
    def ran(*numbers: int) -> None:
        run = uuid.uuid4()
        chain.begin(run, Scope(0, 99), who="ann")
        chain.certify([stated(ground(), whole(number), number) for number in numbers])
        chain.end(run, {"messages": 7})

    def wrong() -> list[int]:
        found = Verification()
        links(chain.chain(), found, chain.ends())
        return [each["certificate"] for each in found.wrong]

    ran()
    assert chain.ends() == []
    ran(0)
    ran(1, 2)
    seen = {(each.number, each.hash) for each in chain.chain() if each.number in (1, 3)}
    assert set(chain.ends()) == seen
    assert chain.runs()[0]["summary"]["messages"] == 7
    assert wrong() == []
    journal.query(database, "delete from tallymark.certificates where number = 3")
    assert wrong() == [3]
    journal.query(database, "delete from tallymark.certificates")
    assert wrong() == [3]
    # A run that gives them again does not hide it.
    ran(1)
    assert wrong() == [1, 3]


def test_the_chain_goes_on_with_a_successor(chain: Findings) -> None:
    chain.certify([stated(ground(), whole(), 0)])
    again = stated(ground(consumers={"ledger2": ledger()}), _kept_by_both("ledger2"), 0)
    assert chain.certify([again]) == []
    assert len(chain.certify([again], retired={"ledger"})) == 1
    assert chain.certify([again], retired={"ledger"}) == []


def test_a_certificate_that_stands_beside_another_window_is_no_certificate() -> None:
    given = issued(stated(ground(), whole(), 0), None)
    assert trusted([given]) == [given]
    assert trusted([replace(given, window=whole().window(1))]) == []
