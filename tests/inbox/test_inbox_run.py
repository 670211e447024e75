"""An inbox as a process: the happy way, in both modes."""

from __future__ import annotations

import pytest

from tests.inbox.ground import Ground


@pytest.mark.parametrize("mode", ["inline", "deferred"])
def test_every_message_is_kept_and_applied_once(inbox_ground: Ground, mode: str) -> None:
    inbox_ground.send(300)
    inbox_ground.apply_all(300, mode=mode)
    found = inbox_ground.compare()
    assert found.expected == 300
    assert found.is_clean, found
    assert inbox_ground.value("select count(*) from tallymark.inbox") == 300
    assert inbox_ground.value("select count(*) from tallymark.applications where outcome = 'applied'") == 300
    assert inbox_ground.value("select count(*) from tallymark.queue") == 0
    assert inbox_ground.value("select count(*) from tallymark.instances") == 0
