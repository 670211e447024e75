"""A fresh outbox with fresh topics for each test; its receipts topic goes with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tallymark.broker.kafka import AdminClient
from tallymark.lifecycle import Role
from tallymark.store.postgres.migrations import migrate
from tests.cli.conftest import run
from tests.conftest import MakeTopic
from tests.relay.ground import Ground

__all__ = ["ground", "make_ground", "run"]

MakeGround = Callable[..., Ground]


@pytest.fixture
def make_ground(
    make_database: Callable[[], str], make_topic: MakeTopic, admin: AdminClient, bootstrap_servers: str
) -> Iterator[MakeGround]:
    """`make_ground(lanes=1, topics=1, partition_rows=…)`: an outbox with so many topics of three partitions."""
    made: list[Ground] = []

    def make(*, lanes: int = 1, topics: int = 1, partition_rows: int = 100_000, ahead: int = 2) -> Ground:
        url = make_database()
        done = migrate(
            url,
            role=Role.PRODUCER,
            lanes=lanes,
            partition_rows=partition_rows,
            partitions_ahead=ahead,
        )
        assert done.outbox_id is not None
        ground = Ground(url, bootstrap_servers, done.outbox_id, [make_topic() for _ in range(topics)])
        made.append(ground)
        return ground

    yield make
    if made:
        for future in admin.delete_topics([ground.receipts for ground in made]).values():
            future.exception(30)  # not every test made one


@pytest.fixture
def ground(make_ground: MakeGround) -> Ground:
    """One outbox of one lane, one topic."""
    return make_ground()
