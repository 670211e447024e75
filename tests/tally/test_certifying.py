"""Which windows are certified, looked at again and held to their certificates: from cells alone, without Spark."""

from __future__ import annotations

import tracemalloc
import uuid
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tallymark.lifecycle import Stage, Verdict
from tallymark.pipeline.reconcilecells import Cells, LogCell, Resent
from tallymark.pipeline.reconcilecertify import examined, open_for, reopened, stated
from tallymark.pipeline.reconcileeffects import place_resent
from tallymark.pipeline.reconcileground import Ground
from tallymark.pipeline.reconcilelater import Taken
from tallymark.pipeline.reconcileverify import Verification, data
from tallymark.store.postgres.findings import Findings
from tallymark.store.postgres.migrations import migrate
from tallymark.store.postgres.tally import ConsumerView, ProducerView
from tallymark.tally.certificates import Statement
from tallymark.tally.chain import Certificate, issued
from tallymark.tally.digest import Digest, message_digest
from tallymark.tally.findings import Finding, Scope
from tallymark.tally.records import Place
from tallymark.tally.windows import Frontier
from tests.tally.cases import uuid7

NOW = datetime(2026, 11, 1, tzinfo=UTC)
NOW_MS = int(NOW.timestamp() * 1000)
P0, P1 = ("t", 0), ("t", 1)


def digest(*numbers: int) -> Digest:
    return Digest.of(message_digest(str(n), None, None) for n in numbers)


def ledger(**changes: Any) -> ConsumerView:
    view = ConsumerView("ledger", "ledger", frozenset({"t"}), NOW, 2**32, next_offsets={P0: 100, P1: 100})
    return replace(view, **changes)


def ground(reader: ConsumerView | None = None, **changes: Any) -> Ground:
    """An outbox of a hundred positions in windows of ten, all of them sent."""
    producer = ProducerView("bank", 1, 1, Frontier(99, None, 99), (99,), {}, {"t": ("id", 2)}, [], NOW)
    starts = {P0: 0, P1: 0}
    made = Ground(
        "bank", producer, ["t"], {"t": 2}, {}, starts, {P0: 100, P1: 100}, {}, 0, 100, 10, dict(starts)
    )
    made.consumers = {"ledger": reader or ledger()}
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def cells(*, kept: Digest, places: dict[Place, tuple[int, int]], number: int = 0) -> Cells:
    """One window of ten messages in the log, and what the ledger kept of them."""
    made = Cells(10)
    made.outbox[number]["t"] = digest(*range(10))
    made.ids[number] = uuid7(NOW_MS), uuid7(NOW_MS)
    for at, (place, (low, high)) in enumerate(places.items()):
        made.log[number][place] = LogCell(digest(*range(10)) if at == 0 else Digest(), low, high)
    made.inbox["ledger"][number]["t"] = kept
    # Any sums will do for ids.
    made.effects["ledger", number] = kept
    return made


def said(view: ConsumerView, found: Cells) -> list[Statement]:
    first = dict(examined(ground(view), found, set())).get(found.window(0))
    return [first] if isinstance(first, Statement) else []


def test_a_partition_that_was_not_taken_yet_is_not_passed() -> None:
    found = cells(kept=digest(*range(9)), places={P0: (0, 8), P1: (0, 0)})
    assert (
        open_for(ground(ledger(next_offsets={P0: 100})), found, 0)
        == "ledger stands at offset 0 of t/1: 1 to go"
    )
    assert said(ledger(next_offsets={P0: 100}), found) == []
    assert open_for(ground(), found, 0) is None


def test_what_was_logged_before_a_consumer_began_is_excused() -> None:
    found = cells(kept=digest(5, 6, 7, 8, 9), places={P0: (0, 9)})
    found.beginnings["ledger", "t", 0] = 5
    assert len(said(ledger(), found)) == 1
    # It is written down that it began before: the first ones are lost.
    assert said(ledger(starts={P0: 0}), found) == []
    assert len(said(ledger(starts={P0: 5}), found)) == 1
    # A replay of single messages has kept something before that: what lies in between is not owed.
    found.beginnings["ledger", "t", 0] = 2
    assert found.beginning("ledger", ledger(starts={P0: 5}), P0) == 5
    assert found.beginning("ledger", ledger(), P0) == 2


def test_where_nobody_knows_when_it_began_nothing_is_excused() -> None:
    assert said(ledger(), cells(kept=Digest(), places={P0: (0, 9)})) == []


def test_what_was_applied_twice_is_not_certified_and_not_verified() -> None:
    found = cells(kept=digest(*range(10)), places={P0: (0, 9)})
    given = certificate(found)
    found.twice["ledger", 0] = 1
    assert (
        dict(examined(ground(), found, set()))[found.window(0)]
        == "ledger has made effects more than once: 1 too many"
    )
    assert [each["what"] for each in verified(ledger(), given, found).wrong] == [
        "ledger has made effects more than once: 1 too many"
    ]


def test_a_window_that_may_stand_behind_an_open_transaction_is_open() -> None:
    found = cells(kept=digest(*range(10)), places={P0: (0, 9)})
    unstable = ground(unstable=frozenset({P1}))
    assert open_for(unstable, found, 0) is None
    found.log[0][P0].digest = digest(*range(9))
    assert open_for(ground(), found, 0) is None
    assert open_for(unstable, found, 0) == (
        "a transaction is open in t/1: what was sent behind it cannot be read yet"
    )


def test_lanes_that_do_not_keep_step_reopen_nothing() -> None:
    certified = ground(first=10, certified={0: {"t/0": (0, 12)}})
    # Read for the sake of the next window: the other lane's records lie among them.
    assert reopened(certified, cells(kept=Digest(), places={P0: (7, 12)})) == set()
    assert reopened(certified, cells(kept=Digest(), places={P0: (13, 13)})) == {0}
    assert reopened(certified, cells(kept=Digest(), places={P1: (3, 3)})) == {0}


def test_one_that_claims_the_far_future_has_nobody_count_up_to_it() -> None:
    found = cells(kept=Digest(), places={P0: (0, 9)})
    found.log[2] = {P0: LogCell(Digest(), 20, 29)}
    found.log[0][P0].behind = 50_000_000
    tracemalloc.start()
    try:
        assert found.overtaken() == [0, 2]
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def verified(reader: ConsumerView, given: Certificate, today: Cells, **changes: Any) -> Verification:
    found = Verification()
    data([given], ground(reader, **changes), today, found)
    return found


def certificate(found: Cells) -> Certificate:
    return issued(stated(ground(), found, 0), None)


def test_what_an_inbox_has_dropped_in_time_is_not_held_against_it() -> None:
    given = certificate(cells(kept=digest(*range(10)), places={P0: (0, 9)}))
    today = cells(kept=Digest(), places={P0: (0, 9)})
    assert not verified(ledger(), given, today).holds
    done = verified(ledger(kept_from_ms=NOW_MS + 1), given, today)
    assert (done.holds, done.past) == (True, 1)


def test_what_the_log_has_dropped_is_excused_only_by_retention() -> None:
    given = certificate(cells(kept=digest(*range(10)), places={P0: (0, 4), P1: (0, 4)}))
    today = cells(kept=digest(*range(10)), places={P0: (3, 4), P1: (0, 4)})
    today.log[0][P0].digest = digest(*range(3, 10))
    early = ["the log has dropped some of it before its time: t/0"]

    def look(days: int, keeps_days: int | None = 7, **starts: int) -> tuple[list[str], int]:
        view = replace(ground().view, at=NOW + timedelta(days=days))
        keeps = {} if keeps_days is None else {"t": keeps_days * 86_400.0}
        began = {P0: starts.get("p0", 3), P1: starts.get("p1", 0)}
        done = verified(ledger(), given, today, view=view, expires_after_s=keeps, starts=began)
        return [each["what"] for each in done.wrong], done.past

    assert look(0) == (early, 0)
    assert look(6) == (early, 0)
    assert look(8) == ([], 1)
    # It is kept for ever; it goes by size.
    assert look(8, None) == (early, 0)
    assert look(0, 0) == ([], 1)
    # The oldest of the window may have gone, and not all of it.
    today.ids[0] = uuid7(NOW_MS - 8 * 86_400_000), uuid7(NOW_MS)
    assert look(0) == ([], 1)
    assert look(0, p0=5) == ([], 1)
    assert look(0, p0=5, p1=5) == ([f"{early[0]}, t/1"], 0)
    # Nobody knows how old a message is whose id does not say it.
    today.ids[0] = ("ann", "bob")
    assert look(0, p0=5, p1=5) == ([], 1)


def test_what_was_lost_later_and_sent_again_is_looked_up() -> None:
    given = certificate(cells(kept=digest(*range(10)), places={P0: (0, 9)}))
    today = cells(kept=digest(*range(1, 10)), places={P0: (0, 9)})
    assert not verified(ledger(), given, today).holds
    # Message 0 was sent again, and is kept under its new position.
    resent = ground(view=replace(ground().view, resends=[(50, 0, "m0")]))
    place_resent(resent, today)
    assert not verified(ledger(), given, today).holds
    today.resent["ledger"]["m0"] = Resent(50, digest(0), digest(0))
    assert verified(ledger(), given, today).holds
    # That excuses this message, and no other.
    today.inbox["ledger"][0]["t"] = today.effects["ledger", 0] = digest(*range(0, 9))
    assert not verified(ledger(), given, today).holds


@pytest.fixture
def chain(database: str) -> Findings:
    migrate(database)
    return Findings(database)


def test_a_window_that_was_mended_is_certified_behind_the_others(chain: Findings) -> None:
    at = {n: cells(kept=digest(*range(10)), places={P0: (10 * n, 10 * n + 9)}, number=n) for n in range(4)}

    def certified(*numbers: int) -> list[int]:
        given = chain.certify([stated(ground(), at[n], n) for n in numbers])
        return [each.said.window.start // 10 for each in given]

    assert certified(0, 2) == [0, 2]
    assert certified(0, 1, 2, 3) == [1, 3]
    assert certified(0, 1, 2, 3) == []
    # What was parked when it was certified was sent since.
    at[1].log[1][P0] = replace(at[1].log[1][P0], high=70)
    assert certified(0, 1, 2) == [1]


def test_what_the_outbox_has_dropped_is_over_whatever_was_looked_at(chain: Findings) -> None:
    low, high = (
        Finding(f"m{at}", None, "t", 0, at, at, "ledger", Stage.INBOX, Verdict.LATE, "") for at in (5, 50)
    )
    scope = Scope(0, 99, whole=True)
    run = uuid.uuid4()
    chain.begin(run, scope, who="ann")
    at = datetime(2026, 11, 1, tzinfo=UTC)
    chain.keep(run, scope, [low, high], at=at)
    later = Scope(60, 99, topics=("other",), lowest=6)
    chain.begin(other := uuid.uuid4(), later, who="ann")
    chain.keep(other, later, [], at=at)
    assert [each.finding.id for each in chain.listed()] == ["m50"]


def test_who_looked_later_has_the_last_word_in_the_table_too(chain: Findings) -> None:
    lost = Finding("m5", None, "t", 0, 5, 5, "ledger", Stage.INBOX, Verdict.LOST_IN_INBOX, "")
    phantom = Finding("m6", None, "t", 0, 6, 6, "", Stage.INBOX, Verdict.PHANTOM, "")
    noon, one, two = (datetime(2026, 11, 1, hour, tzinfo=UTC) for hour in (12, 13, 14))

    def kept(at: datetime, *found: Finding, consumers: tuple[str, ...] | None = None) -> list[str]:
        scope = Scope(0, 99, consumers=consumers, whole=consumers is None)
        chain.begin(run := uuid.uuid4(), scope, who="ann")
        chain.keep(run, scope, found, at=at)
        return [each.finding.id for each in chain.listed()]

    assert kept(one, lost, phantom) == ["m5", "m6"]
    assert kept(noon) == ["m5", "m6"]
    # Asked of the ledger alone: another inbox may have told of the phantom.
    assert kept(two, lost, consumers=("", "ledger")) == ["m5", "m6"]
    assert kept(two) == []
    assert kept(one, lost) == []


def test_copies_are_held_to_no_certificate_of_what_they_do_not_reach() -> None:
    found = cells(kept=digest(*range(10)), places={P0: (0, 9)})
    given = certificate(found)
    # In the first forms a statement did not say when it was made.
    unsaid = stated(ground(), found, 0)
    older = replace(issued(replace(unsaid, looked_at=None), None), issued_at=NOW)
    lost = cells(kept=digest(*range(9)), places={P0: (0, 9)})

    def judged(
        hours: float, reader: ConsumerView | None = None, of: Certificate = given, **changes: Any
    ) -> tuple[int, int, bool]:
        """By copies that were made so much later, or earlier."""
        at = NOW + timedelta(hours=hours)
        view = replace(ground().view, at=at)
        done = verified(reader or ledger(), of, lost, **{"copied_at": at, "view": view, **changes})
        return done.recomputed, done.newer, done.holds

    behind = ledger(next_offsets={P0: 9})
    for of in (given, older):
        assert judged(1, of=of) == (1, 0, False)
        # Nothing could be compared: that is no "all hold".
        assert judged(-1, of=of) == (0, 1, False)
        # It was moved back, or restored, since: it is held to what it had.
        assert judged(1, behind, of=of) == (1, 0, False)
        assert judged(1, ledger(next_offsets={}), of=of) == (1, 0, False)
        assert judged(1, of=of, upto=9) == (1, 0, False)
    # The archive may not have come to it, whenever the databases were copied.
    assert judged(1, ends={P0: 9, P1: 100}) == (0, 1, False)
    # Certified from these very copies; of what was copied at about the same time positions tell.
    assert judged(0) == (1, 0, False)
    assert judged(0.1, behind) == (0, 1, False)
    assert judged(0.1, upto=9) == (0, 1, False)
    # As old as the oldest copy, whatever the outbox's own says.
    assert judged(-0.1, view=replace(ground().view, at=NOW + timedelta(hours=1))) == (0, 1, False)
    # Live stations are held to all of it.
    assert judged(0, behind, copied_at=None) == (1, 0, False)


def test_a_window_of_which_the_outbox_has_dropped_the_beginning_is_past() -> None:
    """Windows may be of any width, and partitions end where they end."""
    given = certificate(cells(kept=digest(*range(10)), places={P0: (0, 9)}))
    today = cells(kept=digest(*range(10)), places={P0: (0, 9)})
    today.outbox[0]["t"] = digest(*range(5, 10))
    assert not verified(ledger(), given, today).holds
    done = verified(ledger(), given, today, view=replace(ground().view, outbox_from=5))
    assert (done.holds, done.past, done.recomputed) == (True, 1, 0)


def test_what_retention_has_taken_while_all_was_read_is_held_against_nobody() -> None:
    given = certificate(cells(kept=digest(*range(10)), places={P0: (0, 9)}))
    today = cells(kept=digest(*range(10)), places={P0: (0, 9)})
    today.outbox[0]["t"] = digest()
    where = ground()
    found = Verification()
    data([given], where, today, found)
    assert not found.holds
    Taken(outbox_from=5).shorten(where)
    data([given], where, today, found := Verification())
    assert (found.holds, found.past) == (True, 1)
    Taken(kept_from_ms={"ledger": 2**47}).shorten(where)
    assert where.consumers["ledger"].kept_from_ms == 2**47


def test_a_run_that_looked_later_is_heard_before_a_window_is_certified(chain: Findings) -> None:
    noon, one, two = (datetime(2026, 11, 1, hour, tzinfo=UTC) for hour in (12, 13, 14))
    lost = Finding("m5", None, "t", 0, 5, 5, "ledger", Stage.INBOX, Verdict.LOST_IN_INBOX, "")
    dead = Finding("m6", None, "t", 0, 6, 6, "ledger", Stage.APPLY, Verdict.DEAD, "")
    nowhere = Finding("m7", None, "t", 0, 7, None, "", Stage.LOG, Verdict.PHANTOM, "")
    scope = Scope(0, 99, whole=True)
    chain.begin(run := uuid.uuid4(), scope, who="ann")
    chain.keep(run, scope, [lost, dead, nowhere], at=one)
    assert chain.found_later(noon) == [5]
    assert chain.found_later(one) == []
    assert chain.found_later(two) == []


def test_an_archive_that_was_begun_later_has_dropped_nothing() -> None:
    given = certificate(cells(kept=digest(*range(10)), places={P0: (0, 9)}))
    today = cells(kept=digest(*range(10)), places={P0: (5, 9)})
    today.log[0][P0].digest = digest(*range(5, 10))
    begun = {P0: 5, P1: 0}
    assert not verified(ledger(), given, today, starts=begun).holds
    done = verified(ledger(), given, today, starts=begun, copied_at=NOW)
    assert (done.holds, done.recomputed, done.past) == (True, 1, 1)
