"""A lane that is left in the midst of a transaction does not take its process with it."""

from __future__ import annotations

import pytest

from tests.children import start_child
from tests.relay.ground import Ground


@pytest.mark.full
@pytest.mark.parametrize(("how", "rounds"), [("close", 400), ("renew", 150)])
def test_producers_are_let_go_whatever_they_wait_for(ground: Ground, how: str, rounds: int) -> None:
    """librdkafka ends it with SIGABRT where it is destroyed as it tells Kafka of partitions: one in some hundred."""
    with start_child(["-m", "tests.relay.closing", ground.servers, ground.topic, str(rounds), how]) as child:
        assert child.wait(within=280) == 0, child.output
