"""A fresh consumer's database and topic for each test."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

from tallymark.lifecycle import Role
from tallymark.store.postgres.migrations import migrate
from tests.conftest import MakeTopic
from tests.inbox.ground import ACCOUNTS, TABLES, Ground

MakeInboxGround = Callable[..., Ground]


@pytest.fixture
def make_inbox_ground(
    make_database: Callable[[], str], make_topic: MakeTopic, bootstrap_servers: str
) -> MakeInboxGround:
    """`make_inbox_ground(partitions=3, role=…)`; `like=` another ground: the same topic, another consumer."""
    made: list[Ground] = []

    def make(
        partitions: int = 3,
        *,
        role: Role = Role.CONSUMER,
        like: Ground | None = None,
        **topic_settings: str,
    ) -> Ground:
        url = make_database()
        migrate(url, role=role)
        with psycopg.connect(url) as connection:
            connection.execute(TABLES.encode())
            for number in range(ACCOUNTS):
                connection.execute("insert into account (id) values (%s)", [f"account-{number}"])
        topic = make_topic(partitions, **topic_settings) if like is None else like.topic
        # A name of its own: it is Kafka's group too, and the next test begins with none.
        made.append(Ground(url, bootstrap_servers, topic, name=f"ledger-{topic[-8:]}-{len(made)}"))
        return made[-1]

    return make


@pytest.fixture
def inbox_ground(make_inbox_ground: MakeInboxGround) -> Ground:
    return make_inbox_ground()
