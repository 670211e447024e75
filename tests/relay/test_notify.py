"""Writers that wake the relay (by option): `init --notify`, `relay.notify`."""

from __future__ import annotations

import psycopg
import pytest

from tests.cli.conftest import Run
from tests.relay.ground import Ground
from tests.waiting import wait_for

# So long that whatever is sent within the test was sent because somebody called.
NEVER_MS = 600_000


def test_a_writer_wakes_an_idle_relay(ground: Ground, run: Run) -> None:
    assert run("init", "--database", ground.url, "--role", "producer", "--notify").code == 0
    with ground.relay(notify=True, poll_ms=NEVER_MS) as relay:
        wait_for(
            lambda: ground.query(
                "select 1 from pg_stat_activity where datname = current_database() and query ilike 'listen%%'"
                " and %s",
                True,
            ),
            what="it listens",
        )
        for _ in range(5):  # each time it has gone idle again
            ground.add(10)
            ground.wait_sent(20)
        # A rolled-back writer wakes nobody, and harms nothing.
        with psycopg.connect(ground.url) as writer:
            ground.add_in(writer, 3)
            writer.rollback()
        ground.add(10)
        ground.wait_sent(20)
        relay.terminate()
        assert relay.wait() == 0, relay.output
    found = ground.compare()
    assert (found.expected, found.is_clean) == (60, True), found


def test_a_relay_that_waits_for_a_call_that_nobody_makes_is_refused(ground: Ground, run: Run) -> None:
    with ground.relay(notify=True) as relay:
        assert relay.wait() == 2, relay.output
        assert "tallymark init --notify" in relay.output
    init = ("init", "--database", ground.url, "--role", "producer")
    assert run(*init, "--notify").code == 0
    assert run(*init).code == 0, "an init that does not name it leaves it as it is"
    assert ground.value("select notify from tallymark.outbox_identity") is True
    assert run(*init, "--no-notify").code == 0
    assert ground.query("select 1 from pg_trigger where tgname = 'outbox_wake'") == []
    with ground.relay(notify=True) as relay:
        assert relay.wait() == 2, relay.output


def test_notify_and_two_phase_commit_exclude_each_other(ground: Ground, run: Run) -> None:
    """PostgreSQL's own rule, and why it is an option."""
    assert run("init", "--database", ground.url, "--role", "producer", "--notify").code == 0
    with psycopg.connect(ground.url) as writer:
        ground.add_in(writer, 1)
        with pytest.raises(psycopg.errors.FeatureNotSupported):
            writer.execute("prepare transaction 'never'")
