"""What is certified is not read again: a later run begins behind it, on all stations."""

from __future__ import annotations

from typing import Any

import pytest

from tests.tally.ground import Journey, named
from tests.tally.test_snapshots import live, tallied


@pytest.mark.full
def test_a_later_run_begins_behind_what_is_certified(spark: Any, journey: Journey) -> None:
    ledger = journey.ledger.name
    old = journey.add([f"key-{n % 20}" for n in range(1000)])
    journey.send()
    journey.receive()
    first = tallied(spark, live(journey), keep=True)
    # The last window has room for more: it is open.
    assert (first.found, first.windows, first.certified, len(first.still_open)) == (0, 6, 5, 1)
    nothing_new = tallied(spark, live(journey), keep=True)
    assert (nothing_new.found, nothing_new.windows, nothing_new.messages) == (0, 1, 1)

    new = journey.add([f"key-{n % 20}" for n in range(300)])
    journey.send()
    journey.receive()
    journey.on_ledger("delete from tallymark.inbox where id = any(%s::uuid[])", [new[0], new[250]])
    journey.on_ledger("delete from tallymark.applications where id = %s", new[260])
    journey.on_ledger(
        "update tallymark.applications set seq = nextval('tallymark.applications_seq'), applied_at = now()"
        " where id = %s",
        new[10],
    )
    # Behind the back of its certificate: only a look at everything sees it.
    journey.on_ledger("delete from tallymark.inbox where id = %s", old[500])
    expected = {
        (new[0], ledger, "lost-in-inbox", "inbox"),
        (new[250], ledger, "lost-in-inbox", "inbox"),
        (new[260], ledger, "unapplied", "apply"),
        (new[10], ledger, "reordered", "apply"),
    }
    later = tallied(spark, live(journey), keep=True).as_json()
    assert named(later["findings"]) == expected
    assert later["messages"] == 301
    whole = tallied(spark, live(journey), everything=True).as_json()
    assert named(whole["findings"]) == expected | {(old[500], ledger, "lost-in-inbox", "inbox")}
    assert whole["messages"] == 1300
