"""What retention has taken from an inbox: nothing of it is held against it, and nothing else is asked for to know it."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from tallymark.errors import Problem
from tallymark.pipeline.reconcilelater import Taken, taken
from tallymark.pipeline.reconcilesources import Sources
from tallymark.store.postgres.tally import ConsumerView, TallyConsumers
from tallymark.tally.digest import Digest
from tests.tally.cases import uuid7
from tests.tally.resends import Ground, tables
from tests.tally.test_certifying import (
    NOW,
    NOW_MS,
    P0,
    P1,
    cells,
    certificate,
    digest,
    ground,
    ledger,
    verified,
)

__all__ = ["tables"]

PRUNED = ledger(pruned=frozenset({"t"}))


def test_ids_without_a_time_are_not_held_against_an_inbox_that_dropped_them_with_the_log() -> None:
    given = certificate(cells(kept=digest(*range(10)), places={P0: (0, 9)}))
    today = cells(kept=Digest(), places={P0: (5, 9)})
    today.log[0][P0].digest = digest(*range(5, 10))
    today.ids[0] = uuid7(NOW_MS), "9b2e8f8e-0000-4000-8000-000000000000"

    def look(reader: ConsumerView, start: int = 5) -> tuple[int, bool]:
        week = replace(ground().view, at=NOW + timedelta(days=8))
        options = {"view": week, "expires_after_s": {"t": 600.0}, "starts": {P0: start, P1: 0}}
        done = verified(reader, given, today, **options)
        return done.past, done.holds

    assert look(PRUNED) == (1, True)
    assert look(ledger()) == (1, False)
    assert look(ledger(pruned=frozenset({"other"}))) == (1, False)
    # All of them name a time, and it is none that was dropped.
    today.ids[0] = uuid7(NOW_MS), uuid7(NOW_MS)
    assert look(PRUNED) == (1, False)


def test_they_are_held_against_it_as_long_as_the_log_has_them() -> None:
    given = certificate(cells(kept=digest(*range(10)), places={P0: (0, 9)}))
    today = cells(kept=Digest(), places={P0: (0, 9)})
    today.ids[0] = "4b2e8f8e-0000-4000-8000-000000000000", uuid7(NOW_MS)
    assert not verified(PRUNED, given, today).holds
    # An archive has all that the log has dropped: it says nothing of that.
    done = verified(PRUNED, given, today, copied_at=NOW)
    assert (done.holds, done.past) == (True, 1)


def test_so_it_is_where_they_were_dropped_while_all_was_read() -> None:
    where = ground()
    Taken(pruned={"ledger": frozenset({"t"})}).shorten(where)
    assert where.consumers["ledger"].pruned == {"t"}


class Few(Sources):
    """Of which no more than two that are unfinished are held."""

    def inboxes(self) -> dict[str, TallyConsumers]:
        return {name: TallyConsumers(name, url, unfinished_limit=2) for name, url in self.consumers.items()}


def test_what_retention_took_is_asked_without_reading_queues_again(tables: str) -> None:
    """A queue may have grown past what can be held while all was read: that is no reason to throw it away."""
    one_key = Ground(tables, ["alice", "alice", "alice"])
    for number in range(3):
        one_key.keep(number, queued=True)
    one_key.query("insert into tallymark.named_pruned values ('ledger', 'transfers', 0, 7)")
    sources = Few({"main": tables}, {"main": tables}, {}, None)  # type: ignore[arg-type]
    try:
        with pytest.raises(Problem, match="wait in queues"):
            sources.inboxes()["main"].views()
        where = ground(ledger(database="main"), name="main")
        assert taken(sources, where).pruned == {"ledger": frozenset({"transfers"})}
    finally:
        one_key.query("delete from tallymark.named_pruned")
