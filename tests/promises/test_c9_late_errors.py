"""C9: a message whose error shows late, or looks like nobody's fault for ever, fails alone; its partition goes on."""

from __future__ import annotations

import pytest

from tests.inbox.ground import Ground
from tests.waiting import wait_for


@pytest.mark.parametrize(
    ("do", "mode"),
    [
        ("deferred-violation", "inline"),
        ("serialization", "deferred"),
        pytest.param("deferred-violation", "deferred", marks=pytest.mark.full),
        pytest.param("serialization", "inline", marks=pytest.mark.full),
    ],
)
def test_it_becomes_a_dead_letter_and_the_others_are_applied(
    inbox_ground: Ground, do: str, mode: str
) -> None:
    ground = inbox_ground
    ground.send(20)
    bad = ground.send(1, account="account-1", do=do)[0]
    ground.send(20, account="account-2")
    with ground.inbox(mode=mode, attempts=2) as child:
        ground.wait_applied(40, child)
        wait_for(
            lambda: (
                ground.query("select id::text, attempts from tallymark.dead_letters where state = 'dead'")
                == [(bad, 2)]
            ),
            what="it is dead",
        )
    assert ground.compare(without=[bad]).is_clean
