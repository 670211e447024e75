"""What a certificate accounts for: from cells alone, without Spark."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from tallymark.lifecycle import Stage, Verdict
from tallymark.pipeline.reconcilecells import BUCKET, Cells, LogCell, Resent, add_effects, add_inbox
from tallymark.pipeline.reconcilecertify import copies_of, examined, spoiled, stated
from tallymark.pipeline.reconcileeffects import add_window_effects, alike_effects, place_resent
from tallymark.pipeline.reconcileground import Ground
from tallymark.pipeline.reconcilerange import pass_certified
from tallymark.pipeline.reconcileverify import Verification, data
from tallymark.store.postgres.tally import ConsumerView
from tallymark.tally.certificates import ACCOUNTED, Statement, canonical
from tallymark.tally.chain import Certificate, chained_hash, issued, trusted
from tallymark.tally.digest import Digest
from tallymark.tally.findings import Finding
from tallymark.tally.records import ParkedRow
from tests.tally.test_certifying import P0, cells, digest, ground, ledger

TEN = range(10)


def whole(number: int = 0, *, applied: Digest | None = None) -> Cells:
    """A window of ten messages that are written, logged and kept."""
    made = cells(kept=digest(*TEN), places={P0: (10 * number, 10 * number + 9)}, number=number)
    made.effects["ledger", number] = digest(*TEN) if applied is None else applied
    return made


def said(where: Ground, found: Cells) -> Statement | str:
    """Of the first window."""
    return dict(examined(where, found, set()))[found.window(0)]


def terms(statement: Statement | str) -> tuple[int, int, int, int, int]:
    assert isinstance(statement, Statement), statement
    count = statement.consumers["ledger"]
    return count.applied, count.queued, count.dead, count.discarded, count.again


def first_of(where: Ground, *statements: Statement | str, amiss: Collection[int] = ()) -> int:
    """Where a later run begins."""
    again = ground(consumers=where.consumers)
    pass_certified(again, [each for each in statements if isinstance(each, Statement)], amiss)
    return again.first


# Unfinished


def test_what_waits_in_a_queue_is_certified_as_such_and_looked_at_again() -> None:
    waits = ground(ledger(queued_at=[3, 4]))
    given = said(waits, whole(applied=digest(0, 1, 2, 5, 6, 7, 8, 9)))
    assert terms(given) == (8, 2, 0, 0, 0)
    assert first_of(waits, given) == 0
    # Drained: it has a certificate again, and is passed by.
    done = said(ground(), whole())
    assert isinstance(done, Statement)
    assert isinstance(given, Statement)
    assert done.supersedes(given)
    assert not given.supersedes(given)
    assert not done.supersedes(done)
    assert first_of(waits, done) == 10


def test_what_was_applied_while_it_was_read_is_not_counted_twice() -> None:
    assert terms(said(ground(ledger(queued_at=[3, 4])), whole())) == (10, 0, 0, 0, 0)


def test_a_dead_letter_bars_no_certificate_and_is_looked_at_again() -> None:
    nine = digest(*range(1, 10))
    dead = ground(ledger(dead_at=[0]))
    given = said(dead, whole(applied=nine))
    assert terms(given) == (9, 0, 1, 0, 0)
    assert first_of(dead, given) == 0
    given_up = ground(ledger(discarded_at=[0]))
    settled = said(given_up, whole(applied=nine))
    assert terms(settled) == (9, 0, 0, 1, 0)
    assert first_of(given_up, settled) == 10
    # What was found dead is accounted for by its term; what was lost is not.
    assert {Verdict.DEAD, Verdict.PARKED} == ACCOUNTED


def test_what_is_parked_bars_no_certificate_and_is_looked_at_again() -> None:
    found = whole()
    found.log[0][P0] = LogCell(digest(*range(1, 10)), 0, 8)
    found.inbox["ledger"][0]["t"] = found.effects["ledger", 0] = digest(*range(1, 10))
    parked = ground(all_parked=[ParkedRow("m0", 0, "failed")])
    given = said(parked, found)
    assert isinstance(given, Statement)
    assert (given.written, given.logged, given.parked) == (10, 9, 1)
    assert first_of(parked, given) == 0
    assert said(ground(), found) == ("written 10 <> logged 9 + parked 0 + discarded 0")


# Effects


def test_what_has_no_effect_is_not_called_applied() -> None:
    assert said(ground(), whole(applied=digest(*range(9)))) == (
        "ledger: logged 10 <> applied 9 + queued 0 + dead 0 + discarded 0 + again 0"
    )


def row(**values: Any) -> Any:
    class Row(SimpleNamespace):
        def __getitem__(self, name: str) -> Any:
            return getattr(self, name)

    return Row(**values)


def sums(of: Digest, prefix: str) -> dict[str, int]:
    return {f"{prefix}{at}": each for at, each in enumerate(of.limbs)} | {"n": of.count}


def test_effects_are_those_of_the_window_where_as_much_was_applied_as_kept() -> None:
    found = Cells(10)
    place = {"consumer": "ledger", "source": "/bank", "topic": "t", "partition": 0}
    for bucket, window, ids in ((0, 0, TEN), (0, 1, range(10, 13)), (1, 1, range(13, 20))):
        kept = digest(*ids)
        ends = {"low": bucket * BUCKET, "high": bucket * BUCKET + 9}
        values = place | ends | sums(kept, "l") | sums(kept, "i")
        add_inbox(found, [row(**values, bucket=bucket, w=window)], {"ledger": "ledger"})
    # Of the second stretch one was applied twice, and one not at all.
    for bucket, of in ((0, digest(*range(13))), (1, digest(*range(14, 20), 19))):
        add_effects(found, [row(**place, bucket=bucket, **sums(of, "i"))], {"ledger": "ledger"})
    unlike = set(found.unlike())
    assert unlike == {("ledger", "t", 0, 1)}
    alike_effects(found, unlike)
    assert found.effects_of("ledger", 0) == digest(*TEN)
    looked_up = [
        row(
            **place,
            bucket=1,
            w=1,
            twice=1,
            strays=0,
            low=None,
            high=None,
            **sums(digest(*range(14, 20)), "i"),
        ),
        # Asked along with it, and known already.
        row(**place, bucket=0, w=0, twice=0, strays=0, low=None, high=None, **sums(digest(*TEN), "i")),
        # Another outbox's.
        row(**(place | {"source": "/shop"}), bucket=1, w=1, twice=3, strays=0, **sums(digest(99), "i")),
    ]
    add_window_effects(found, looked_up, {"ledger": "ledger"}, unlike, {"/bank"})
    assert found.effects_of("ledger", 0) == digest(*TEN)
    assert found.effects_of("ledger", 1) == digest(10, 11, 12, *range(14, 20))
    assert found.twice == {("ledger", 1): 1}


def verified(
    given: Certificate, today: Cells, reader: ConsumerView | None = None, **changes: Any
) -> list[str]:
    found = Verification()
    data([given], ground(reader, **changes), today, found)
    return [each["what"] for each in found.wrong]


def certificate(where: Ground, found: Cells) -> Certificate:
    given = said(where, found)
    assert isinstance(given, Statement), given
    return issued(given, None)


def test_effects_that_were_taken_away_or_made_twice_do_not_fit_their_certificate() -> None:
    given = certificate(ground(), whole())
    assert verified(given, whole()) == []
    assert verified(given, whole(applied=digest(*range(9)))) == [
        "ledger has applied 9 messages, not 10, or others"
    ]
    assert len(verified(given, whole(applied=digest(*range(1, 11))))) == 1
    # Hashed by another engine, only their number can be compared.
    other = whole(applied=digest(*range(1, 11)))
    other.hashed = "xxhash64"
    assert verified(given, other) == []


def test_what_was_given_up_switches_no_comparison_off() -> None:
    reader = ledger(discarded_at=[0])
    nine = digest(*range(1, 10))
    given = certificate(ground(reader), whole(applied=nine))
    assert verified(given, whole(applied=nine), reader) == []
    today = cells(kept=digest(*range(1, 10)), places={P0: (0, 9)})
    assert any("the inbox of ledger holds 9" in each for each in verified(given, today, reader))


def test_what_was_unfinished_then_is_held_to_its_equation_now() -> None:
    given = certificate(ground(ledger(queued_at=[3])), whole(applied=digest(0, 1, 2, *range(4, 10))))
    assert verified(given, whole()) == []
    assert verified(given, whole(applied=digest(*range(9)))) == [
        "ledger: logged 10 <> applied 9 + queued 0 + dead 0 + discarded 0 + again 0"
    ]


def altered(found: Cells, *, kept: Digest) -> Cells:
    found.inbox["ledger"][0]["t"] = kept
    return found


OTHERS = "ledger has applied 9 messages, not 9, or others"
UNLIKE_LOG = "the inbox of ledger holds other messages than the log"


def test_a_dead_letter_switches_no_comparison_off() -> None:
    dead = ledger(dead_at=[0])
    nine, other = digest(*range(1, 10)), digest(*range(9), 99)
    given = certificate(ground(dead), whole(applied=nine))
    # It is dead still; it was applied since.
    for reader, applied in ((dead, nine), (ledger(), digest(*TEN))):
        assert verified(given, whole(applied=applied), reader) == []
        (wrong,) = verified(given, altered(whole(applied=applied), kept=other), reader)
        assert wrong.startswith("the inbox of ledger holds 10 messages")
    assert verified(given, whole(applied=digest(*range(9))), dead) == [OTHERS]
    # What was never kept is kept since.
    unkept = ledger(dead_at=[0], unkept_at=[0])
    given = certificate(ground(unkept), altered(whole(applied=nine), kept=nine))
    assert verified(given, altered(whole(applied=nine), kept=nine), unkept) == []
    assert len(verified(given, altered(whole(applied=nine), kept=digest(*range(9))), unkept)) == 1
    assert verified(given, whole()) == []
    assert verified(given, altered(whole(), kept=other)) == [UNLIKE_LOG]


def without_the_first(*, log: Digest, kept: Digest) -> Cells:
    found = altered(whole(applied=digest(*range(1, 10))), kept=kept)
    found.log[0][P0] = LogCell(log, 0, 8)
    return found


def test_what_is_parked_switches_no_comparison_off() -> None:
    nine, other = digest(*range(1, 10)), digest(*range(1, 9), 99)
    parked: dict[str, Any] = {"all_parked": [ParkedRow("m0", 0, "failed")]}
    given = certificate(ground(**parked), without_the_first(log=nine, kept=nine))
    assert verified(given, without_the_first(log=nine, kept=nine), **parked) == []
    for log, kept, station in ((other, nine, "the log"), (nine, other, "the inbox of ledger")):
        (wrong,) = verified(given, without_the_first(log=log, kept=kept), **parked)
        assert wrong.startswith(f"{station} holds 9 messages")
    # It was sent since.
    assert verified(given, whole()) == []
    found = altered(whole(), kept=digest(*range(9), 99))
    assert verified(given, found) == [UNLIKE_LOG]
    found.log[0][P0].digest = digest(*range(9), 99)
    assert verified(given, found) == ["the log holds other messages than the outbox"]


def old_form(statement: Statement, **changes: Any) -> Certificate:
    """As it was written before statements had a version."""
    text = json.loads(canonical(statement))
    del text["version"], text["hashed"]
    for count in text["consumers"].values():
        del count["effects"], count["discarded"]
        count.update(changes)
    written = json.dumps(text, sort_keys=True, separators=(",", ":"))
    return Certificate(1, written, "0" * 64, chained_hash("0" * 64, written), statement.window)


def test_certificates_of_the_old_form_still_hold_as_far_as_they_say_something() -> None:
    given = old_form(stated(ground(), whole(), 0))
    assert trusted([given]) == [given]
    assert (given.said.version, given.said.settled) == (1, True)
    assert first_of(ground(), given.said) == 10
    assert verified(given, whole()) == []
    assert len(verified(given, whole(applied=digest(*range(9))))) == 1
    assert stated(ground(), whole(), 0).supersedes(given.said)
    # What they called dead was given up: a dead letter got none.
    given_up = old_form(stated(ground(), whole(), 0), dead=1, applied=9)
    assert (given_up.said.settled, given_up.said.violations()) == (True, [])


# Sent again


def test_a_copy_that_a_consumer_had_before_is_looked_up() -> None:
    """Position 3 is a resend of what stands at 77, which the ledger keeps from there."""
    where = ground(view=replace(ground().view, resends=[(3, 77, "m77")]))
    found = whole(applied=digest(0, 1, 2, *range(4, 10)))
    found.inbox["ledger"][0]["t"] = digest(0, 1, 2, *range(4, 10))
    place_resent(where, found)
    assert isinstance(said(where, found), str)
    found.resent["ledger"]["m77"] = Resent(77, digest(3), digest(3))
    assert terms(said(where, found)) == (9, 0, 0, 0, 1)
    # Kept where it stands, it is no copy; and what left its batch stands nowhere.
    found.resent["ledger"]["m77"] = Resent(3, digest(3), digest(3))
    assert isinstance(said(where, found), str)
    parked = ground(view=where.view, all_parked=[ParkedRow("m77", 3, "failed")])
    found.resent_in.clear()
    place_resent(parked, found)
    assert found.resent_in == {7: {"m77": {77}}}


def test_stations_that_hold_as_many_and_not_the_same_get_no_certificate() -> None:
    found = whole()
    found.outbox[0]["t"] = digest(*range(1, 11))
    assert said(ground(), found) == "the log holds other messages than the outbox"
    found = cells(kept=digest(*range(1, 11)), places={P0: (0, 9)})
    assert said(ground(), found) == "the inbox of ledger holds other messages than the log"


def test_a_fault_of_a_message_spoils_the_windows_of_its_resends_too() -> None:
    where = ground(view=replace(ground().view, resends=[(53, 3, "m3"), (77, 53, "m3")]))
    finding = Finding("m3", None, "t", 0, 3, 3, "", Stage.LOG, Verdict.ALTERED, "")
    assert spoiled(finding, copies_of(where), 10) == {0, 5, 7}
    assert spoiled(replace(finding, id="m4", position=14), copies_of(where), 10) == {1}
    assert spoiled(replace(finding, id="m5", position=None), copies_of(where), 10) == set()


# Who is not asked


def test_whose_name_another_database_has_too_is_not_absent() -> None:
    """Runs knew it by its name alone, before there was a second one."""
    second = replace(ledger(), database="audit")
    both = ground(consumers={"ledger/ledger": ledger(), "audit/ledger": second})
    assert both.absent({"ledger", "ledger/ledger", "sales"}) == {"sales"}
    assert ground().absent({"ledger/ledger", "audit/ledger"}) == {"audit/ledger"}
    assert ground(retired=frozenset({"sales"}), left_out=["tail"]).absent({"sales", "tail"}) == set()
