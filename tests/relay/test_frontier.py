"""How far the outbox may be read, over a store that answers what a server would."""

from __future__ import annotations

from typing import cast

from tallymark.relay.config import RelayConfig
from tallymark.relay.frontier import Frontier
from tallymark.relay.lane import LaneWorker
from tallymark.relay.ports import Identity, Kafka, Lane, RelayStore


class _Server:
    """A sequence that stands somewhere, and nobody writing."""

    def __init__(self, last: int) -> None:
        self.last = last
        self.looks = 0

    def frontier(self, covered: int) -> int:
        assert self.last >= covered, "another server's answers were carried over"
        self.looks += 1
        return self.last


def test_a_bound_is_looked_up_only_where_it_gives_no_more() -> None:
    server = _Server(1000)
    frontier = Frontier(cast("RelayStore", server), poll_s=0.0)
    assert [frontier.beyond(0), frontier.beyond(999)] == [1000, 1000]
    assert server.looks == 1
    server.last = 1001
    assert frontier.beyond(1000) == 1001


def test_what_one_server_said_is_not_believed_of_the_next() -> None:
    """A replica that was promoted may have drawn less: its rows below the old bound are still to come."""
    server = _Server(1000)
    frontier = Frontier(cast("RelayStore", server), poll_s=60.0)
    assert frontier.beyond(900) == 1000
    server.last = 932
    frontier.forget()
    assert frontier.beyond(900) == 932


def test_a_lane_that_settles_anew_looks_anew() -> None:
    server = _Server(1000)
    store, kafka = cast("RelayStore", server), cast("Kafka", None)
    worker = LaneWorker(
        Lane(0, "a", 1, 900, 5, None),
        identity=Identity("an outbox", 1, None),
        store=store,
        ahead=store,
        kafka=kafka,
        frontier=(frontier := Frontier(store, poll_s=60.0)),
        config=RelayConfig(),
    )
    assert frontier.beyond(900) == 1000
    server.last = 932
    worker.reset()
    assert frontier.beyond(900) == 932
