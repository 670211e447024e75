"""Threads that hang are left behind, and counted: each holds what it holds until the process ends (P7)."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Sequence

import pytest

from tallymark.apply.watch import Watch
from tallymark.errors import Problem
from tallymark.inbox.crew import MOST_LEFT_BEHIND, Crew
from tallymark.inbox.ports import InboxStore, Queued
from tallymark.store.postgres.inboxstore import PostgresInboxStore
from tests.inbox_store.conftest import queued
from tests.waiting import wait_for


@dataclasses.dataclass
class Hanging:
    """A hand whose handler does not come back until it is let go."""

    store: InboxStore
    let_go: threading.Event
    watch: Watch = dataclasses.field(default_factory=Watch)
    trouble: str | None = None

    def suspect(self, messages: Sequence[Queued], reason: str) -> None: ...

    def run(self) -> None:
        self.watch.began([queued(0)], 0.0)
        self.let_go.wait(60)


def test_where_too_many_hang_the_process_ends(store: PostgresInboxStore) -> None:
    let_go, crew = threading.Event(), Crew()

    def run(hand: object) -> None:
        assert isinstance(hand, Hanging)
        hand.run()

    crew.hire("worker", lambda: Hanging(store, let_go), run)
    hung = 0

    def more() -> bool:
        nonlocal hung
        hung += crew.look_after()
        return hung == MOST_LEFT_BEHIND

    try:
        wait_for(more, what="as many hang as may")
        with pytest.raises(Problem, match="33 threads hang"):
            wait_for(lambda: crew.look_after() < 0, what="one more hangs")
    finally:
        let_go.set()
    wait_for(lambda: not crew.alive, what="they came back")
    assert crew.look_after() <= 1, "and those that came back do not count"
