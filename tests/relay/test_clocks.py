"""Messages bear the database's clock: relays' clocks are nobody's, and may be an hour apart."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tallymark.lifecycle import Mode
from tests.relay.ground import QUICK, Ground, until_idle


@pytest.mark.parametrize("mode", Mode)
def test_all_of_a_batch_have_the_time_at_which_it_was_claimed(ground: Ground, mode: Mode) -> None:
    """Handing so many over takes milliseconds: by the relay's own clock they would differ."""
    ground.add(5000)
    with ground.worker(replace(QUICK, mode=mode, batch_messages=5000)) as worker:
        until_idle(worker)
    ((claimed_ms,),) = ground.query(
        "select (extract(epoch from claimed_at) * 1000)::bigint from tallymark.batches where messages > 0"
    )
    found = ground.log()
    assert len(found) == 5000
    (at_ms,) = {record.at_ms for record in found}
    # Two looks at one clock, in one statement: PostgreSQL says nothing of which comes first.
    assert abs(at_ms - claimed_ms) < 1000
