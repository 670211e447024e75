"""What tests of the tally stand on: an outbox, its consumers, and Spark."""

from __future__ import annotations

import pytest

from tests.cli.conftest import run
from tests.inbox.conftest import MakeInboxGround, make_inbox_ground
from tests.inbox.ground import Ground as InboxGround
from tests.pipeline.conftest import spark
from tests.relay.conftest import MakeGround, make_ground
from tests.tally.ground import Journey

__all__ = ["journey", "make_ground", "make_inbox_ground", "run", "spark"]


@pytest.fixture
def journey(make_ground: MakeGround, make_inbox_ground: MakeInboxGround) -> Journey:
    """An outbox, its topic of three partitions, and one consumer of it."""
    bank = make_ground(partition_rows=1_000_000)
    like = InboxGround("", bank.servers, bank.topic)
    return Journey(bank, make_inbox_ground(like=like))
